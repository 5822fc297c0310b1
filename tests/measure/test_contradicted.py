"""What one test of an audit refutes stands nowhere else in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.measure.claims import Outcome, Promise, judge_guarantee
from coterie.measure.contradicted import settled
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.findings import AuditResult, Defended
from coterie.measure.intervals import Interval
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Trust
from coterie.report.html import render
from coterie.report.terminal import defence_lines

PROVEN = Guarantee(3.0, 1e-6, Level.RECORD, Trust.LOCAL_NOISE)
STATED = Guarantee.none("nothing is clipped", Level.CLIENT, Trust.LOCAL_NOISE, stated=1.0)
SILENT = Guarantee.none("no noise is added", Level.CLIENT, Trust.LOCAL_NOISE)


def claimed(guarantee: Guarantee, *epsilons: float) -> Promise:
    bounds = [EpsilonBound(epsilon, 1e-6, 0.95, "by hand", 0.1, 0.9, 100) for epsilon in epsilons]
    return judge_guarantee(guarantee, bounds)


def row(family: str, defence: str, promise: Promise | None) -> Defended:
    return Defended(family, defence, "accuracy", Interval(0.8, 0.7, 0.9), 1.0, 1.0, 1.0, promise)


def outcomes(rows: list[Defended]) -> list[Outcome | None]:
    return [one.promise.outcome if one.promise else None for one in rows]


ROWS = [
    row("as configured", "ldp", claimed(STATED)),
    row("as configured", "other", claimed(STATED)),
    row("as configured", "silent", claimed(SILENT)),
    row("canaries", "ldp", claimed(STATED, 5.0)),
    row("membership", "ldp", claimed(STATED, 2.0)),
    row("profiling", "ldp", None),
]


def test_a_refuted_claim_is_refuted_in_every_row_and_each_says_by_what() -> None:
    found = settled(ROWS)
    violated, open_ = Outcome.VIOLATED, Outcome.NOT_REFUTED
    assert outcomes(found) == [violated, open_, open_, violated, violated, None]
    first = found[0].promise
    assert first is not None
    assert first.refuted_by == "canaries"  # which says most against it
    assert "refuted by canaries: claimed 1, but" in first.evidence[0]
    assert found[3:] == ROWS[3:]  # these say it themselves
    assert settled(ROWS[:3]) == ROWS[:3]


def test_terminal_report_and_headline_say_the_same() -> None:
    found = settled(ROWS)
    (line,) = [str(line) for line in defence_lines(found[:1]) if "violated" in str(line)]
    assert "violated by canaries" in line
    result = AuditResult("x", {}, [], found[3:], found[:3])
    page = render(result)
    assert page.count("refuted by canaries") == 0  # one row a claim: that of whoever measured it
    assert "1 claim of privacy is violated by measurement (ldp)" in result.headline
    alone = render(AuditResult("x", {}, [], [], found[:1]))
    assert "by canaries" in alone


@pytest.mark.parametrize(
    ("refuted", "bound", "other", "outcome"),
    [
        (PROVEN, 4.0, replace(PROVEN, epsilon=8.0), Outcome.VIOLATED),  # one program keeps both proofs, or none
        (PROVEN, 4.0, replace(PROVEN, level=Level.CLIENT), Outcome.HOLDS),  # another unit
        (PROVEN, 4.0, replace(PROVEN, trust=Trust.TRUSTED_AGGREGATOR), Outcome.HOLDS),  # somebody who sees less
        (PROVEN, 4.0, replace(PROVEN, neighbours=Neighbours.REPLACE), Outcome.HOLDS),
        (STATED, 4.0, replace(STATED, epsilon=8.0), Outcome.NOT_REFUTED),  # nobody measured more than 4
        (STATED, 4.0, replace(STATED, epsilon=2.0), Outcome.VIOLATED),
        (STATED, 4.0, SILENT, Outcome.NOT_REFUTED),
    ],
)
def test_a_refutation_reaches_claims_that_fall_with_it_and_no_others(
    refuted: Guarantee, bound: float, other: Guarantee, outcome: Outcome
) -> None:
    rows = [row("as configured", "ldp", claimed(other)), row("canaries", "ldp", claimed(refuted, bound))]
    assert outcomes(settled(rows)) == [outcome, Outcome.VIOLATED]
    assert outcomes(settled(rows[::-1])) == [Outcome.VIOLATED, outcome]


def test_of_several_refutations_the_strongest_that_is_about_this_claim_is_named() -> None:
    client = replace(PROVEN, level=Level.CLIENT)
    rows = [row("first", "d", claimed(PROVEN)), row("of clients", "d", claimed(client, 9.0))]
    found = settled([*rows, row("weak", "d", claimed(PROVEN, 4.0)), row("strong", "d", claimed(PROVEN, 5.0))])
    assert found[0].promise is not None
    assert found[0].promise.refuted_by == "strong"


def test_a_claim_s_row_shows_the_largest_bound_whatever_came_first() -> None:
    rows = [row("membership", "d", claimed(PROVEN, 0.2)), row("canaries", "d", claimed(PROVEN, 4.0))]
    page = render(AuditResult("x", {}, [], settled(rows)))
    assert "ε ≥ 4.000" in page
    assert "ε ≥ 0.200" not in page


NOTHING = Guarantee.none("batches are shuffled", Level.RECORD, Trust.LOCAL_NOISE)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (NOTHING, "no claim to judge here, but violated in canaries"),
        (STATED, "not refuted here, but violated in canaries"),
        (replace(PROVEN, level=Level.CLIENT), "holds here, but violated in canaries"),
    ],
)
def test_who_claims_something_else_names_what_was_violated(other: Guarantee, words: str) -> None:
    """As configured nothing was refuted, a line below the same defence was violated, and neither named the other."""
    rows = [row("as configured", "dp", claimed(other)), row("canaries", "dp", claimed(PROVEN, 4.0))]
    found = settled(rows)
    said = found[0].promise
    assert said is not None
    assert said.verdict == words
    assert said.outcome is claimed(other).outcome
    assert "what it claims in canaries ((3, 1e-06)-DP at record level" in said.evidence[-1]
    assert words in str(said)  # so it is in JUnit
    result = AuditResult("x", {}, [], found[1:], found[:1])
    assert words.removeprefix(said.outcome.value).strip() in render(result)
    assert any(words in str(line) for line in defence_lines(found[:1]))


def test_what_claims_nothing_is_nowhere_called_not_refuted() -> None:
    (alone,) = settled([row("as configured", "dp", claimed(NOTHING))])
    assert alone.promise is not None
    assert "no claim to judge" in str(alone.promise)
    assert "not refuted" not in f"{alone.promise} {' '.join(map(str, defence_lines([alone])))}"
