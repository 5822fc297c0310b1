"""The gate: which limits are met, and on whose evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.toy import FAMILY, AsConfigured, found, noise, run, subject

from coterie.audit import gate, work
from coterie.audit.evidence import Evidence
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.tried import Tried
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import Check, Finding, LeftOut, Limit
from coterie.measure.intervals import Interval, Sample
from coterie.measure.members import rate_name
from coterie.privacy.guarantee import Guarantee, Level, Trust

pytestmark = pytest.mark.usefixtures("only_the_toy")


def test_the_gate_judges_the_configured_defence(tmp_path: Path) -> None:
    limits = {"max_toy_auc": 0.75, "min_accuracy": 0.85, "max_epsilon": 3.0}
    result = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits=limits)
    assert {str(check.limit): check.passed for check in result.checks} == {
        "max_toy_auc = 0.75": True,
        "min_accuracy = 0.85": True,
        "max_epsilon = 3": False,
    }
    assert not result.passed
    assert "breaks the limit of at most 3" in result.checks[2].reason


@pytest.mark.parametrize(("name", "limit", "end"), [("max_toy_auc", 0.72, "high"), ("min_accuracy", 0.897, "low")])
def test_the_unsafe_end_of_the_interval_decides(tmp_path: Path, name: str, limit: float, end: str) -> None:
    """Scores 0.71 and serves 0.9: either estimate keeps to its limit, and its interval does not."""
    (check,) = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits={name: limit}).checks
    assert check.limit.excess(check.measured.estimate) < 0 < check.limit.excess(getattr(check.measured, end))
    assert not check.passed
    assert check.reason.startswith("undecided: may break the limit")
    assert "would decide" in check.reason


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("name", "bound"), [("max_toy_auc", 0.72), ("min_accuracy", 0.897)])
def test_seeds_of_the_same_clients_decide_nothing(name: str, bound: float, seeds: int) -> None:
    """The gate's advice is the finding's: more clients, and never more seeds."""
    evidence = [FAMILY.measure(subject(), noise(1.0), seed) for seed in range(seeds)]
    tried = Tried(FAMILY, noise(1.0), evidence, repeated=frozenset(["clients"]))
    (check,) = gate.checks(gate.limits_of({name: bound}), [tried], [tried.defended])
    assert re.search(r"about [\d,]+ more clients would decide, and more seeds of the same would not$", check.reason)
    (anew,) = gate.checks(gate.limits_of({name: bound}), [replace(tried, repeated=frozenset())], [tried.defended])
    assert ("more seed" in anew.reason.partition(" and ")[0]) == (name == "max_toy_auc")


def test_who_always_errs_is_judged_turned_round() -> None:
    """An AUC of 0.02 is one of 0.98 to whoever takes the opposite."""

    def check(score: float, bound: float, **changed: Any) -> Check:
        finding = replace(found(score), **changed)
        tried = Tried(FAMILY, noise(1.0), [replace(FAMILY.measure(subject(), noise(1.0), 0), findings=[finding])])
        return gate.checks([Limit("max_toy_auc", bound)], [tried], [tried.defended])[0]

    erring = check(0.02, 0.75)
    assert not erring.passed
    assert erring.measured.estimate == pytest.approx(0.98)
    assert erring.reason == "breaks the limit of at most 0.75 if it is turned round"
    assert check(0.45, 0.57).reason.startswith("undecided: may break the limit of at most 0.57 if it is turned round; ")
    met = check(0.45, 0.6)
    assert (met.passed, met.measured.estimate, met.reason) == (True, 0.45, "meets the limit of at most 0.6")
    assert check(0.02, 0.75, chance=0.25).passed  # one of four answers: the opposite of a wrong one is no answer


def test_no_claim_is_an_epsilon_of_infinity(tmp_path: Path) -> None:
    (check,) = run(tmp_path, limits={"max_epsilon": 3.0}).checks
    assert not check.passed
    assert check.measured.estimate == math.inf
    assert "no formal guarantee" in check.reason


def test_a_limit_that_nothing_measured_is_broken(tmp_path: Path) -> None:
    (check,) = run(tmp_path, trainer={"kind": "fedavg"}, limits={"max_toy_auc": 0.9}).checks
    assert not check.passed
    assert "nothing measured it" in check.reason


def test_a_score_of_which_nobody_knows_how_sure_it_is_breaks_its_limit() -> None:
    lone = Sample.average([0.1], 0.0, 1.0)
    finding = replace(found(0.5), interval=Interval.unknown(0.1), runs=(lone,))
    evidence = replace(FAMILY.measure(subject(), noise(1.0), 0), findings=[finding], utility=lone)
    tried = Tried(FAMILY, noise(1.0), [evidence])
    for check in gate.checks(gate.limits_of({"max_toy_auc": 0.9, "min_accuracy": 0.05}), [tried], [tried.defended]):
        assert not check.passed
        assert check.reason.startswith("undecided: ")


def test_a_claim_that_measurement_violates_meets_no_limit(tmp_path: Path) -> None:
    (tried,) = [one for one in _tried(tmp_path) if one.choice == noise(4.0)]
    limit = [Limit("max_epsilon", 3)]
    (met,) = gate.checks(limit, [tried], [tried.defended])
    assert met.passed
    promise = tried.defended.promise
    assert promise is not None
    broken = replace(promise, outcome=Outcome.VIOLATED, lower_bound=2.9, evidence=["claimed 2.5, but 2.9"])
    evidence = [replace(one, promise=broken) for one in tried.evidence]
    (check,) = gate.checks(limit, [replace(tried, evidence=evidence)], [tried.defended])  # a stress test's run, say
    assert not check.passed
    assert "violated by measurement: claimed 2.5, but 2.9" in check.reason


def test_rates_that_were_not_scored_break_no_limit_on_areas(tmp_path: Path) -> None:
    (tried,) = [one for one in _tried(tmp_path) if one.choice == noise(4.0)]
    rate = Finding.unscored("guess", rate_name(0.001), 0.001, "")
    more = replace(tried, evidence=[replace(one, findings=[*one.findings, rate]) for one in tried.evidence])
    (check,) = gate.checks([Limit("max_toy_auc", 0.7)], [more], [more.defended])
    assert check.passed


def test_a_limit_says_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    """One finding of several without a score: those that have one are held against the limit, and it is named."""
    (tried,) = [one for one in _tried(tmp_path) if one.choice == noise(4.0)]

    def check(bound: float, why_not: str = "") -> Check:
        lost = replace(Finding.unscored("beyond", "AUC", 0.5, "", why_not), adversary="server")
        more = replace(tried, evidence=[replace(one, findings=[*one.findings, lost]) for one in tried.evidence])
        return gate.checks([Limit("max_toy_auc", bound)], [more], [more.defended])[0]

    (scored,) = gate.checks([Limit("max_toy_auc", 0.7)], [tried], [tried.defended])
    unknown = check(0.7)
    assert not unknown.passed  # nobody knows what it would have scored
    assert unknown.measured == scored.measured
    assert unknown.reason == (
        "undecided: what was measured meets the limit of at most 0.7; "
        "beyond by a server was not scored: there was nothing to score it by"
    )
    assert check(0.52).reason.startswith("breaks the limit of at most 0.52; beyond by a server was not scored")
    nothing = check(0.7, "all hold the same")
    assert nothing.passed
    assert nothing.reason == "meets the limit of at most 0.7; beyond by a server was not scored: all hold the same"


def test_a_limit_is_not_met_by_one_family_where_another_of_it_broke(tmp_path: Path) -> None:
    (tried,) = [one for one in _tried(tmp_path) if one.choice == noise(4.0)]
    broke = [("max_toy_auc", LeftOut("odd", "ZeroDivisionError", failed=True))]
    (check,) = gate.checks([Limit("max_toy_auc", 0.7)], [tried], [tried.defended], broke=broke)
    assert not check.passed
    assert check.reason.endswith("meets the limit of at most 0.7; odd broke (ZeroDivisionError)")
    (alone,) = gate.checks([Limit("max_toy_auc", 0.7)], [], [tried.defended], broke=broke)
    assert alone.reason == "nothing measured it: odd broke (ZeroDivisionError)"


def _tried(folder: Path) -> list[Tried]:
    asked = subject()
    plan = work.Plan.of(asked, [(FAMILY, noise(4.0))], [work.NONE])
    return list(work.run(plan, asked, folder, processes=1).tried)


def test_an_unknown_limit_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"limit 'max_toy_acu' is unknown; did you mean 'max_toy_auc'"):
        run(tmp_path, limits={"max_toy_acu": 0.6})


def test_known_limits_follow_from_the_families() -> None:
    known = ["max_toy_auc", "stress.max_toy_auc", "max_epsilon", "min_accuracy", "max_cost"]
    assert gate.known_limits([FAMILY]) == known


def test_an_epsilon_that_follows_from_nothing_meets_no_limit() -> None:
    stated = Guarantee.none("nothing is clipped", Level.RECORD, Trust.LOCAL_NOISE, stated=1.0)
    proven = Guarantee(1.0, 1e-5, Level.RECORD, Trust.LOCAL_NOISE)

    def check(guarantee: Guarantee) -> Check:
        promise = Promise(guarantee, None, Outcome.NOT_REFUTED, ["none"])
        evidence = replace(FAMILY.measure(subject(), noise(1.0), 0), promise=promise)
        tried = Tried(FAMILY, noise(1.0), [evidence])
        return gate.checks([Limit("max_epsilon", 3.0)], [tried], [tried.defended])[0]

    assert not check(stated).passed
    assert "no formal guarantee" in check(stated).reason
    assert check(proven).passed


def test_accuracy_and_epsilon_of_another_federation_meet_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a family trains for its attack is not what is launched: the reference run decides."""
    poor = Sample.average([0.3, 0.31], 0.0, 1.0)

    honest = AsConfigured.evidence

    def unproven(run: AsConfigured) -> Evidence:
        return replace(honest(run), promise=None, utility=poor)

    monkeypatch.setattr(AsConfigured, "evidence", unproven)
    limits = {"max_epsilon": 20.0, "min_accuracy": 0.5}
    result = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits=limits)
    epsilon, accuracy = result.checks
    assert (epsilon.measured.estimate, epsilon.passed) == (math.inf, False)
    assert accuracy.measured.estimate == pytest.approx(0.305)
    assert not accuracy.passed
    assert [row.defence for row in result.as_configured] == ["none", "noise (strength 1)"]
    assert {row.family for row in result.as_configured} == {AS_CONFIGURED}


def test_what_the_ledger_says_was_spent_counts_where_less_was_promised() -> None:
    tried = Tried(FAMILY, noise(1.0), [replace(FAMILY.measure(subject(), noise(1.0), 0), spent=12.0)])
    (check,) = gate.checks([Limit("max_epsilon", 11.0)], [tried], [tried.defended])
    assert (check.measured.estimate, check.passed) == (12.0, False)


def test_an_attack_is_held_against_its_own_control() -> None:
    """Of two whose names begin alike, neither has the other's."""
    names, scores = ("guess", "guess by size"), (0.55, 0.45)
    real = [replace(found(0.7), attack=name) for name in names]
    controls = [
        replace(found(score), attack=f"{name} of a coin", control=True, control_of=name)
        for name, score in zip(names, scores[::-1], strict=True)
    ]
    evidence = replace(FAMILY.measure(subject(), noise(1.0), 0), findings=[*real, *controls])
    told = Tried(FAMILY, noise(1.0), [evidence]).findings
    assert [one.control_runs[0].mean for one in told[:2]] == [0.45, 0.55]
    unnamed = [replace(one, control_of="") for one in controls]  # then the strongest serves all
    told = Tried(FAMILY, noise(1.0), [replace(evidence, findings=[*real, *unnamed])]).findings
    assert [one.control_runs[0].mean for one in told[:2]] == [0.55, 0.55]


def test_a_limit_on_what_was_not_run_names_the_kind_of_attack() -> None:
    """Two limits are of almost one name, and only one of them is on the attack that was run."""
    limits = gate.limits_of({"max_membership_auc": 0.6, "stress.max_model_membership_auc": 0.6, "max_cost": 1.0})
    clustering, models, cost = (check.reason for check in gate.checks(limits, [], []))
    assert clustering == "nothing measured it: what it is on (membership in a clustering) was not run"
    assert "(membership in models) was not run" in models
    assert cost == "nothing measured it: what it is on was not run"
