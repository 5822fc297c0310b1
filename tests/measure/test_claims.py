from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, Promise, judge_guarantee, worst_promise
from coterie.measure.epsilon import EpsilonBound
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
    assert ("no claim to judge" if verdict.claims_nothing else outcome.value) in str(verdict)


def test_the_worst_bound_is_the_evidence() -> None:
    verdict = judge_guarantee(PROVEN, [shown(2.0), shown(7.0), shown(0.1)])
    assert "epsilon >= 7" in verdict.evidence[0]


def test_an_audit_at_a_smaller_delta_tests_another_claim() -> None:
    with pytest.raises(InvalidInput, match="must be at least the claimed delta"):
        judge_guarantee(PROVEN, [shown(2.0, delta=1e-9)])


def test_a_promise_without_grounds_is_none() -> None:
    with pytest.raises(InvalidInput, match="evidence"):
        Promise(PROVEN, None, Outcome.HOLDS, ())


def test_only_what_is_proven_has_an_epsilon() -> None:
    assert judge_guarantee(PROVEN, []).epsilon == 1.0
    assert judge_guarantee(STATED, []).epsilon == math.inf  # a paper's word is no proof
    assert judge_guarantee(STATED, []).lower_bound is None


def test_of_several_seeds_the_worst_counts_with_its_own_evidence() -> None:
    wider = replace(PROVEN, epsilon=1.2)
    promises = [judge_guarantee(wider, [shown(0.3)]), judge_guarantee(PROVEN, [shown(0.7)])]
    both = worst_promise(promises)
    assert both is not None
    assert (both.epsilon, both.lower_bound, both.outcome) == (1.2, 0.7, Outcome.HOLDS)
    assert "epsilon >= 0.7" in both.evidence[1]
    broken = worst_promise([judge_guarantee(PROVEN, [shown(3.0)]), *promises])
    assert broken is not None
    assert (broken.outcome, broken.lower_bound) == (Outcome.VIOLATED, 3.0)
    loose = judge_guarantee(replace(PROVEN, epsilon=5.0), [])
    beside = worst_promise([judge_guarantee(PROVEN, [shown(3.0)]), loose])
    assert beside is not None
    assert beside.guarantee.epsilon == 1.0  # 3 is above the claim that it contradicts, and not above 5
    assert worst_promise([]) is None
