"""The audit's engine on a family whose results are known."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.toy import FAMILY, UNITS, AsConfigured, Noise, Toy, as_configured, found, noise, subject

from coterie.audit import engine, gate, reference, work
from coterie.audit.case import Subject, label
from coterie.audit.engine import audit
from coterie.audit.evidence import Evidence
from coterie.audit.frontier import frontier, mark_dominated
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.tried import Tried
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.flow.protocol import Protocol
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import AuditResult, Check, Defended, Finding, FrontierPoint, LeftOut, Limit
from coterie.measure.intervals import Interval, Sample, proportion
from coterie.measure.members import rate_name
from coterie.measure.verdicts import Verdict
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.protocols.clusterings.kfed import KFed
from coterie.report.html import render
from coterie.run.jobs import JobFailed


@pytest.fixture(autouse=True)
def only_the_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda named=(): [FAMILY])
    monkeypatch.setattr(engine, "find", lambda name, named=(): FAMILY)
    monkeypatch.setattr(work, "find", lambda name, named=(): FAMILY)
    monkeypatch.setattr(reference, "run", as_configured)
    monkeypatch.setitem(registry.DEFENCES, "noise", "tests.audit.toy:Noise")


def run(folder: Path, **values: object) -> AuditResult:
    return audit(subject(**values), folder, processes=1)


def test_each_defence_is_scored_with_an_interval_over_all_units(tmp_path: Path) -> None:
    result = run(tmp_path)
    real = [one for one in result.findings if not one.control]
    assert [one.defence for one in real] == ["none", "noise (strength 1)", "noise (strength 4)"]
    first = real[0]
    assert first.score == pytest.approx(0.91)  # the mean of 0.90, 0.91 and 0.92
    assert (first.units, first.seeds) == (3 * UNITS, 3)
    # phi = 1000 * 0.0001 / 0.0819 = 1.221, so the units are worth 3000 / (1 + 0.221 * (3.182 / 1.960)^2) = 1896
    assert first.interval.ends == pytest.approx((0.8962, 0.9225), abs=1e-4)
    assert first.verdict is Verdict.LEAKS
    assert first.leakage == pytest.approx(0.82)


def test_a_control_is_not_called_a_leak(tmp_path: Path) -> None:
    controls = [one for one in run(tmp_path).findings if one.control]
    assert {one.verdict for one in controls} == {Verdict.BOUNDED}
    assert all("nothing to find" in one.sentence for one in controls)


def test_costs_and_claims_come_with_each_defence(tmp_path: Path) -> None:
    none, weak, strong = run(tmp_path).defended
    assert none.promise is None
    assert weak.utility.estimate == pytest.approx(0.90)
    assert strong.seconds == pytest.approx(0.5)
    assert weak.promise is not None
    assert weak.promise.epsilon == 10.0
    assert weak.promise.lower_bound == pytest.approx(0.2)  # the largest over the seeds
    assert weak.promise.evidence == ("seed 2",)  # and that seed's own evidence


class OneRun(Toy):
    """Twenty units, all of them right; or what the strength of the defence says."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        return replace(super().measure(subject, defence, seed), findings=[found(1.0, units=20)])


def only(family: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda named=(): [family])
    for module in (engine, work):
        monkeypatch.setattr(module, "find", lambda name, named=(): family)


def test_one_seed_in_which_all_is_told_is_a_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(OneRun(), monkeypatch)
    result = run(tmp_path, audit={"seeds": 1})
    assert result.findings[0].interval == proportion(20, 20)
    assert result.headline == "As configured, without a defence, this federation leaks to 1 kind of attack (toy)."


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


def _tried(folder: Path) -> list[Tried]:
    asked = subject()
    plan = work.Plan.of(asked, [(FAMILY, noise(4.0))], [work.NONE])
    return list(work.run(plan, asked, folder, processes=1).tried)


def test_an_unknown_limit_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"limit 'max_toy_acu' is unknown; did you mean 'max_toy_auc'"):
        run(tmp_path, limits={"max_toy_acu": 0.6})


def test_a_family_that_does_not_fit_is_left_out_with_a_reason(tmp_path: Path) -> None:
    result = run(tmp_path, trainer={"kind": "fedavg"})
    assert result.left_out == [LeftOut("toy", "needs ifca")]
    assert result.findings == []


def test_the_result_is_strict_json(tmp_path: Path) -> None:
    text = run(tmp_path, limits={"max_epsilon": 3.0}).to_json()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert values["findings"][0]["decision"]["verdict"] == "leaks"
    assert values["headline"].startswith("As configured, without a defence, this federation leaks")
    assert values["checks"][0]["measured"]["estimate"] == "inf"


def test_the_curve_over_seeds_has_the_score_as_its_area(tmp_path: Path) -> None:
    first = run(tmp_path).findings[0]
    assert first.roc is not None
    assert (first.roc.false[0], first.roc.true[0], first.roc.false[-1], first.roc.true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert first.roc.area == pytest.approx(first.score, abs=1e-12)


def test_the_frontier_recommends_the_weakest_that_meets_the_limits(tmp_path: Path) -> None:
    (swept,) = frontier(subject(limits={"max_toy_auc": 0.75, "min_accuracy": 0.8}), [FAMILY], tmp_path)
    chosen = [(point.defence, point.setting, point.note) for point in swept.points if point.recommended]
    assert chosen == [("noise", "noise (strength 1)", "strength 1")]
    assert swept.recommendation == "Toy: noise (strength 1) is the weakest setting that meets the limits."
    assert swept.title == "toy: leakage (AUC) against accuracy"
    (none,) = frontier(subject(limits={"max_toy_auc": 0.55, "min_accuracy": 0.9}), [FAMILY], tmp_path)
    assert not any(point.recommended for point in none.points)
    assert "Toy: no setting meets the limits" in none.recommendation


def test_the_frontier_recommends_nothing_that_the_gate_would_stop(tmp_path: Path) -> None:
    """Strength 1 leaks little enough, and its epsilon of 10 is forbidden."""
    limits = {"max_toy_auc": 0.75, "max_epsilon": 3.0}
    (swept,) = frontier(subject(limits=limits), [FAMILY], tmp_path)
    (chosen,) = [point for point in swept.points if point.recommended]
    assert chosen.setting == "noise (strength 4)"
    assert [point.passes for point in swept.points] == [False, False, False, True]
    assert run(tmp_path, defence={"kind": "noise", "strength": 4.0}, limits=limits).passed
    assert not run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits=limits).passed
    (other,) = frontier(subject(limits={**limits, "max_property_auc": 0.6}), [FAMILY], tmp_path)
    assert "meets the limits (not measured here: max_property_auc; an audit with it decides)." in other.recommendation
    (silent,) = frontier(subject(), [FAMILY], tmp_path)
    assert {point.passes for point in silent.points} == {None}


def test_a_dominated_setting_is_worse_in_one_and_better_in_none() -> None:
    def at(leak: float, use: float) -> FrontierPoint:
        return FrontierPoint("d", 1.0, Interval.unknown(leak), Interval.unknown(use), 0.0)

    marked = mark_dominated([at(0.9, 0.95), at(0.6, 0.9), at(0.6, 0.8), at(0.7, 0.85), at(0.5, 0.5)])
    assert [point.dominated for point in marked] == [False, False, True, True, False]


def test_known_limits_follow_from_the_families() -> None:
    known = ["max_toy_auc", "stress.max_toy_auc", "max_epsilon", "min_accuracy", "max_cost"]
    assert gate.known_limits([FAMILY]) == known


def test_options_make_the_label() -> None:
    assert label(noise(1.0)) == "noise (strength 1)"


def test_accuracy_and_leakage_are_drawn_over_rounds(tmp_path: Path) -> None:
    accuracy, leakage = run(tmp_path).charts  # the control noted nothing on the way
    assert [series.name for series in accuracy.series] == ["none", "noise (strength 1)", "noise (strength 4)"]
    assert accuracy.series[0].x == [0.0, 5.0]
    assert accuracy.series[0].y == pytest.approx([0.1, 0.95])  # the mean of 0, 0.1 and 0.2; the same for all seeds
    assert accuracy.series[0].low[0] == 0.0  # 0.1 less 4.303 * 0.1 / sqrt(3) is no accuracy
    assert leakage.title == "Leakage to a curious server: guess"
    assert leakage.reference == ("chance", 0.5)
    assert leakage.series[1].y == pytest.approx([0.5, 0.71])


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


class Choosy(Noise):
    def fits(self, protocol: Protocol[Any]) -> str:
        return "" if protocol.trains else "it needs gradients"


class Untrained(Toy):
    """Runs a clustering, whatever is configured."""

    def protocol(self, subject: Subject) -> Protocol[Any]:
        return KFed(2)


def test_a_defence_with_no_place_in_a_family_is_a_row_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(Untrained(), monkeypatch)
    monkeypatch.setitem(registry.DEFENCES, "noise", "tests.audit.test_engine:Choosy")
    result = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits={"max_toy_auc": 0.75})
    assert result.left_out == [LeftOut("toy", "it needs gradients", f"noise (strength {size})") for size in (1, 4)]
    assert "2 combinations were left out: noise (strength 1) in toy; noise (strength 4) in toy." in result.headline
    assert [row.defence for row in result.as_configured] == ["none", "noise (strength 1)"]
    assert not result.passed  # the undefended family is what is left to judge by
    assert json.loads(result.to_json())["left_out"][0] == {
        "family": "toy",
        "reason": "it needs gradients",
        "defence": "noise (strength 1)",
    }
    assert render(result).count("it needs gradients") == 2


def test_a_defence_that_cannot_be_launched_stops_the_audit_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noise, "fits", lambda self, protocol: "it has no place")
    with pytest.raises(InvalidInput, match=r"defence 'noise' does not fit trainer 'ifca': it has no place; change"):
        run(tmp_path, defence={"kind": "noise", "strength": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_results_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    run(tmp_path)
    kept = set(tmp_path.rglob("*.json"))
    run(tmp_path, limits={"max_epsilon": 3.0})  # judged anew, not run anew
    assert set(tmp_path.rglob("*.json")) == kept
    run(tmp_path, seed=5)
    assert len(set(tmp_path.rglob("*.json"))) == 2 * len(kept)


def test_an_edited_data_file_is_another_audit(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_text("a,b\n1,2\n")
    asked = subject(data={"kind": "table", "path": str(data), "label": "b"})
    before = asked.fingerprint
    assert before == asked.fingerprint
    data.write_text("a,b\n1,2\n3,4\n")
    assert asked.fingerprint != before


@pytest.mark.parametrize(("count", "words"), [(1, "1 claim of privacy is"), (2, "2 claims of privacy are")])
def test_the_headline_counts_in_words(count: int, words: str) -> None:
    promise = Promise(Guarantee(1.0, 0.0, Level.RECORD, Trust.LOCAL_NOISE), 2.0, Outcome.VIOLATED, ["x"])
    row = Defended("f", "d", "accuracy", Interval.unknown(0.9), 1.0, 1.0, 1.0, promise)
    check = Check(Limit("max_epsilon", 1), Interval(2.0, 2.0, 2.0), False, "broken")
    result = AuditResult("t", {}, [], [row] * count, checks=[check] * count)
    assert words in result.headline
    assert result.headline.endswith("1 of 1 limit is broken." if count == 1 else "2 of 2 limits are broken.")


def test_a_control_that_finds_something_is_in_the_headline(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert "control" not in result.headline
    runs, interval = (Sample.share(80, 100),), proportion(80, 100)
    fooled = [replace(one, interval=interval, runs=runs) if one.control else one for one in result.findings]
    headline = replace(result, findings=fooled).headline
    assert "A control finds what is not there (toy): those scores prove nothing." in headline


def test_a_choice_reads_like_words() -> None:
    choice = Choice.model_validate(
        {
            "kind": "ifca",
            "clusters": 4,
            "exact": True,
            "poisson": False,
            "local": {"steps": 3, "lr": 0.1},
            "mix": [1, 2],
        }
    )
    assert label(choice) == "IFCA (clusters 4, exact, no poisson, local (steps 3, lr 0.1), mix (1 2))"


class Picky(Toy):
    """Does not go with strong noise, and warns of weak."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        strength = defence.options.get("strength", 0.0)
        if strength > 3:
            raise InvalidInput(f"strength={strength} is too much for this federation")
        if strength:
            warnings.warn(f"strength={strength} is little", UserWarning, stacklevel=1)
        if subject.model.options.get("hidden") == 5:
            raise InvalidInput("hidden=5 cannot be trained")
        return super().measure(subject, defence, seed)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    only(Picky(), monkeypatch)


@pytest.mark.usefixtures("picky")
def test_a_defence_that_does_not_fit_is_left_out_and_says_so(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert [row.defence for row in result.defended] == ["none", "noise (strength 1)"]
    why = "strength=4.0 is too much for this federation"
    assert result.left_out == [LeftOut("toy", why, "noise (strength 4)")]
    assert result.headline.endswith("1 combination was left out: noise (strength 4) in toy.")
    assert result.warned == {"toy under noise (strength 1)": "UserWarning: strength=1.0 is little"}
    page = render(result)
    assert all(words in page for words in ("is too much for this federation", "Warnings on the way"))


@pytest.mark.usefixtures("picky")
def test_what_the_user_named_is_not_left_out_in_silence(tmp_path: Path) -> None:
    result = run(tmp_path, defence={"kind": "noise", "strength": 4.0}, limits={"max_toy_auc": 0.99})
    assert "1 combination was left out: noise (strength 4) in toy." in result.headline
    assert "nothing measured it" in result.checks[0].reason
    with pytest.raises(JobFailed, match="hidden=5 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 5}, audit={"families": ["toy"]})


@pytest.mark.usefixtures("picky")
def test_an_audit_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no attack could be run: toy: hidden=5 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 5})


@pytest.mark.usefixtures("picky")
def test_the_frontier_goes_without_settings_that_do_not_fit(tmp_path: Path) -> None:
    notes = [point.note for swept in frontier(subject(), [Picky()], tmp_path) for point in swept.points]
    assert notes == ["", "strength 0.5", "strength 1"]
