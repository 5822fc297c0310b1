from __future__ import annotations

import pytest

from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, Verdict, judge_at_least, judge_at_most, judge_guarantee
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.intervals import Interval
from coterie.privacy.accounting import Guarantee, Level, Trust

PROVEN = Guarantee(1.0, 1e-6, Level.RECORD, Trust.LOCAL_NOISE)
STATED = Guarantee.none("nothing is clipped", Level.CLIENT, Trust.LOCAL_NOISE, stated=1.0)
SILENT = Guarantee.none("no noise is added", Level.CLIENT, Trust.LOCAL_NOISE)


def shown(epsilon: float, delta: float = 1e-6) -> EpsilonBound:
    return EpsilonBound(epsilon, delta, 0.95, "by hand", 0.1, 0.9, 100)


@pytest.mark.parametrize(
    ("guarantee", "epsilons", "outcome"),
    [
        (PROVEN, [], Outcome.HOLDS),
        (PROVEN, [0.4, 1.0], Outcome.HOLDS),
        (PROVEN, [0.4, 1.01], Outcome.VIOLATED),
        (STATED, [0.9], Outcome.NOT_REFUTED),
        (STATED, [5.0], Outcome.VIOLATED),
        (SILENT, [50.0], Outcome.NOT_REFUTED),
    ],
)
def test_guarantees(guarantee: Guarantee, epsilons: list[float], outcome: Outcome) -> None:
    verdict = judge_guarantee(guarantee, [shown(e) for e in epsilons])
    assert verdict.outcome is outcome
    assert outcome.value in str(verdict)


def test_the_worst_bound_is_the_evidence() -> None:
    verdict = judge_guarantee(PROVEN, [shown(2.0), shown(7.0), shown(0.1)])
    assert "epsilon >= 7" in verdict.evidence[0]


def test_an_audit_at_a_smaller_delta_tests_another_claim() -> None:
    with pytest.raises(InvalidInput, match="must be at least the claimed delta"):
        judge_guarantee(PROVEN, [shown(2.0, delta=1e-9)])


@pytest.mark.parametrize(("limit", "outcome"), [(3.0, "holds"), (1.5, "not refuted"), (0.5, "violated")])
def test_quantities(limit: float, outcome: str) -> None:
    measured = Interval(1.5, 1.0, 2.0)
    assert judge_at_most("cost", measured, limit).outcome.value == outcome
    assert judge_at_least("gain", measured, 3.0 - limit).outcome.value == outcome


def test_a_verdict_without_grounds_is_none() -> None:
    with pytest.raises(InvalidInput, match="evidence"):
        Verdict("x", Outcome.HOLDS, ())
    with pytest.raises(InvalidInput, match="not in order"):
        Interval(1.0, 2.0, 3.0)
