"""The look at numerics beside a promise: it may break it, and errs no more often than is stated."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coterie.audit import numerics
from coterie.audit.numerics import ERROR, ONE_RELEASE, beside_numerics, numerics_of
from coterie.flow.guard import Defence
from coterie.measure.claims import Outcome, judge_guarantee
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.numerics.audit import NumericsAudit
from coterie.measure.numerics.floats import FloatFinding
from coterie.measure.numerics.seeds import SeedFinding
from coterie.measure.numerics.sensitivity import SensitivityFinding
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.rng import Rng

CLAIM = Guarantee(20.0, 1e-6, Level.RECORD, Trust.LOCAL_NOISE)
SHOWN = EpsilonBound(0.5, 1e-6, 0.95, "by hand", 0.1, 0.9, 100)
SOUND = NumericsAudit(
    SeedFinding(256, 256, 256, 0, 1000.0, 1e-6, 0.95),
    FloatFinding(SHOWN, "lowest bits", 4.0),
    SensitivityFinding(1.0, 1.0, None, 8, 1.0, 1e-6),
)


def test_what_breaks_one_release_breaks_the_promise_of_all() -> None:
    """Twice the claimed sensitivity costs an epsilon of about 11 in one release, below the 20 of the whole run."""
    broken = replace(SOUND, sensitivity=replace(SOUND.sensitivity, worst=2.0))
    assert max(bound.epsilon for bound in broken.bounds) < CLAIM.epsilon
    found = beside_numerics(judge_guarantee(CLAIM, ()), broken)
    assert found is not None
    assert found.outcome is Outcome.VIOLATED
    assert found.evidence[0] == ONE_RELEASE
    assert any("moves the sum by 2" in ground for ground in found.evidence)
    assert not any("proven" in ground for ground in found.evidence)


def test_what_an_attack_refuted_stays_with_its_bound() -> None:
    refuted = judge_guarantee(CLAIM, [replace(SHOWN, epsilon=30.0)])
    for look in (SOUND, replace(SOUND, sensitivity=replace(SOUND.sensitivity, worst=2.0))):
        found = beside_numerics(refuted, look)
        assert found is not None
        assert (found.outcome, found.lower_bound) == (Outcome.VIOLATED, 30.0)
        assert found.evidence[0] == refuted.evidence[0]
    endless = beside_numerics(refuted, replace(SOUND, seed=replace(SOUND.seed, given=32, live=32)))
    assert endless is not None
    assert endless.lower_bound == math.inf


def test_sound_numerics_change_no_outcome() -> None:
    found = beside_numerics(judge_guarantee(CLAIM, [SHOWN]), SOUND)
    assert found is not None
    assert (found.outcome, found.lower_bound) == (Outcome.HOLDS, 0.5)


def test_all_seeds_together_err_no_more_often_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def look(defence: Defence, rng: Rng, delta: float, confidence: float, level: Level) -> None:
        asked.append(1 - confidence)

    monkeypatch.setattr(numerics, "audit_defence", look)
    for seed in range(20):
        numerics_of(judge_guarantee(CLAIM, ()), Defence(), Rng.seeded(seed), seed)
    assert sum(asked) <= ERROR
    assert asked[0] == pytest.approx(ERROR / 2)
