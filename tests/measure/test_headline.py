"""One finding has one verdict, whoever says it: headline, terminal, report, JSON."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from coterie.measure.claims import judge_guarantee
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.findings import (
    UNDEFENDED,
    AuditResult,
    Check,
    Defended,
    Finding,
    LeftOut,
    Limit,
    over_seeds,
    telling,
)
from coterie.measure.headline import brief_of, by_defence, judged, sentences_of
from coterie.measure.intervals import Interval, Sample, pooled
from coterie.measure.verdicts import Verdict
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.report.decision import next_steps
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.report.terminal import show

LAUNCHED = "DP-SGD"


def found(family: str, right: int, defence: str = UNDEFENDED, of: int = 100, stress: bool = False) -> Finding:
    one = Finding.of("guess", "AUC", Sample.share(right, of), 0.5, "clients", "nothing")
    return replace(one, family=family, adversary="server", defence=defence, stress=stress)


def printed(result: AuditResult) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=300))
    return out.getvalue()


def test_json_says_of_what_is_launched_what_the_headline_says() -> None:
    """62 of 100 is a leak for itself, and not as one of ten: nine have no place for the defence."""
    others = [found(f"other {number}", 50) for number in range(9)]
    result = AuditResult("x", {}, [found("one", 62, LAUNCHED), found("one", 62), *others], [], launched=LAUNCHED)
    assert result.findings[0].verdict is Verdict.LEAKS
    assert dict(judged(result))["one"].verdict is Verdict.UNDECIDED
    assert result.verdicts["one"][LAUNCHED] == "undecided"


def test_what_the_defence_has_no_place_in_has_one_verdict() -> None:
    """Judged undefended either way: as one of twelve it is undecided, and as one of two it would leak."""
    many = [found(f"other {number}", 50, LAUNCHED) for number in range(11)]
    result = AuditResult("x", {}, [*many, found("bare", 63)], [], launched=LAUNCHED)
    assert result.verdicts["bare"][UNDEFENDED] == "undecided"
    assert "Without a defence it leaks" not in result.headline
    assert result.headline.count("bare") == 1


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_found_all_say_the_same(seed: int) -> None:
    draw = np.random.default_rng(seed)
    findings = []
    for number in range(int(draw.integers(1, 9))):
        places = [UNDEFENDED, *([LAUNCHED] if draw.random() < 0.6 else []), *(["other"] if draw.random() < 0.5 else [])]
        stress = bool(draw.random() < 0.3)
        findings += [found(f"kind {number}", int(draw.integers(45, 70)), place, stress=stress) for place in places]
    launched = LAUNCHED if draw.random() < 0.7 else UNDEFENDED
    result = AuditResult("x", {}, findings, [], launched=launched)
    told = by_defence(result)
    for family, one in judged(result):
        assert result.verdicts[family][one.defence] == one.verdict.value
        said = [line for line in printed(result).splitlines() if f" {family.capitalize()}" in line]
        (line,) = [line for line in said if "chance" in line]
        assert one.verdict.value in line
    for sentence in sentences_of(result):
        if sentence.startswith("Without a defence it leaks"):
            for family in told:
                leaks = told[family].get(UNDEFENDED) and told[family][UNDEFENDED].verdict is Verdict.LEAKS
                assert (family in sentence) <= bool(leaks)
    for step in next_steps(result):
        for family, by in told.items():
            for name, one in by.items():
                if step.startswith(f"{family.capitalize()} leaks: under {name} "):
                    assert f"it is {one.verdict.value}" in step
    assert not any("under undefended" in step for step in next_steps(result))


MET = Check(Limit("max_toy_auc", 0.7), Interval(0.5, 0.4, 0.6), True, "meets it")
BROKE = LeftOut("odd", "ZeroDivisionError", failed=True)


@pytest.mark.parametrize("checks", [[], [MET]])
def test_an_audit_in_which_an_attack_broke_passes_nowhere(checks: list[Check]) -> None:
    result = AuditResult("x", {}, [found("one", 50)], [], checks=checks, left_out=[BROKE])
    assert not result.passed
    assert "Gate: failed" in printed(result)
    assert "Gate: passed" not in printed(result)
    assert "gate failed" in render(result)
    assert "gate passed" not in render(result)
    assert "All limits are met" not in printed(result) + render(result)
    fine = replace(result, left_out=[], checks=[MET])
    assert "Gate: passed" in printed(fine)
    assert "All limits are met" in printed(fine)
    assert "gate passed" in render(fine)


def test_junit_says_what_became_of_claims() -> None:
    guarantee = Guarantee(1.0, 1e-6, Level.RECORD, Trust.LOCAL_NOISE)
    promise = judge_guarantee(guarantee, [EpsilonBound(5.0, 1e-6, 0.95, "by hand", 0.1, 0.9, 100)])
    row = Defended("canaries", LAUNCHED, "accuracy", Interval(0.8, 0.7, 0.9), 1.0, 1.0, 1.0, promise)
    root = ElementTree.fromstring(junit_xml(AuditResult("x", {}, [], [row])).encode())
    (said,) = [one.get("value") or "" for one in root.iter("property") if "claim of" in (one.get("name") or "")]
    assert "violated (claimed 1, but epsilon >= 5" in said


def test_a_complete_leak_is_the_mean_over_seeds() -> None:
    """0.08 of accuracy lost is under a tenth where there is 0.95 to lose, and is not where there is 0.5."""
    run = Sample.average([-0.01, 0.08, 0.17] * 100, -1.0, 1.0)
    lost = Finding.of("bad client", "accuracy lost", run, 0.0, "clients", "")
    seeds = [replace(lost, perfect=most) for most in (0.95, 0.05)]
    assert over_seeds(seeds).perfect == over_seeds(seeds[::-1]).perfect == pytest.approx(0.5)
    assert over_seeds([found("x", 50)] * 3).perfect == 1.0


def test_what_cannot_be_told_apart_does_not_stand_for_what_can() -> None:
    trivial = replace(found("one", 50), chance=1.0)
    strong = found("one", 6, of=10)
    assert telling([trivial, strong]) is telling([strong, trivial]) is strong


def test_nothing_is_bounded_beside_what_nobody_could_score() -> None:
    bounded, unknown = found("one", 500, of=1000), Finding.unscored("other", "AUC", 0.5, "")
    assert bounded.verdict is Verdict.BOUNDED
    assert telling([bounded, unknown]) is unknown
    nothing = replace(unknown, why_not="it is sealed")
    assert telling([bounded, nothing]) is telling([nothing, bounded]) is bounded
    assert telling([unknown, undecided := found("one", 50)]) is undecided


def test_of_a_family_that_is_scored_in_part_nobody_says_that_nothing_was() -> None:
    one, lost = found("one", 500, of=1000), Finding.unscored("other", "AUC", 0.5, "")
    result = AuditResult("x", {}, [one, replace(lost, family="one")], [])
    assert sentences_of(result)[0] == "As configured, without a defence, not all was scored of 1 kind of attack (one)."
    alone = replace(result, findings=[replace(lost, family="one")])
    assert sentences_of(alone)[0].startswith("There was no truth to score by")
    assert " by \n" not in printed(alone)  # it has no adversary
    sealed = replace(result, findings=[replace(lost, family="one", why_not="it is sealed")])
    assert sentences_of(sealed)[0] == "There was nothing to score: it is sealed."


def test_what_leaks_without_a_defence_is_named() -> None:
    """Under the defence another attack of the kind may be the strongest."""
    defended, bare = found("one", 60, LAUNCHED), replace(found("one", 90), attack="span")
    result = AuditResult("x", {}, [defended, bare], [], launched=LAUNCHED)
    assert "Span by server: 0.900, leaks" in render(result)


def control(of: Finding, right: int) -> tuple[Finding, Finding]:
    """An attack and its control, as an audit puts them together."""
    fired = replace(of, attack=f"{of.attack} at nothing", runs=(Sample.share(right, 100),), control=True)
    fired = replace(fired, interval=pooled(fired.runs))
    return replace(of, control_runs=fired.runs), fired


def test_a_control_speaks_for_its_own_attack_alone() -> None:
    """One adversary's control fires; another's is clean, and what that one finds stays a leak."""
    clean = control(replace(found("one", 80), attack="gradients"), 50)
    fired = control(replace(found("one", 82), attack="ratios", adversary="recipient"), 81)
    same = control(replace(found("one", 70, LAUNCHED), attack="ratios", adversary="recipient"), 50)
    result = AuditResult("x", {}, [*clean, *fired, *same], [])
    (said,) = [one for one in sentences_of(result) if one.startswith("A control")]
    assert said == (
        "A control finds what is not there (one: ratios at nothing by recipient, without a defence): "
        "what ratios scored there proves nothing."
    )
    assert "leaks to 1 kind of attack (one)" in result.headline


def test_a_control_that_no_score_is_held_against_takes_none_with_it() -> None:
    attack, fired = control(found("one", 80), 81)
    result = AuditResult("x", {}, [replace(attack, control_runs=()), fired], [])
    assert sentences_of(result)[-1] == (
        "A control finds what is not there (one: guess at nothing by server, without a defence)."
    )


def test_of_many_controls_one_above_chance_is_no_finding() -> None:
    """61 of 100 is above chance alone, and is not as one of forty; an unscored one is not counted."""
    _, fired = control(found("one", 60), 61)
    assert fired.verdict is Verdict.LEAKS
    quiet = [control(found(f"other {number}", 50), 50)[1] for number in range(39)]
    assert "A control" not in AuditResult("x", {}, [fired, *quiet], []).headline
    unscored = [replace(one, interval=Interval.unknown(float("nan")), runs=()) for one in quiet]
    assert "A control" in AuditResult("x", {}, [fired, *unscored], []).headline


def test_few_lines_count_the_controls_that_fire() -> None:
    fired = [control(found(f"kind {number}", 90), 90)[1] for number in range(3)]
    result = AuditResult("x", {}, fired, [])
    assert brief_of(result).count("finds what is not there") == 1
    assert "In all, 3 controls do." in brief_of(result)
    assert result.headline.count("finds what is not there") == 3
