from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, judge_guarantee
from coterie.measure.curves import GaussianNoise
from coterie.measure.epsilon import (
    EpsilonBound,
    Scores,
    auc,
    combined,
    epsilon_from_decisions,
    epsilon_lower_bound,
    epsilon_power,
    largest_of,
    roc,
    shared,
    tpr_at,
)
from coterie.measure.intervals import proportion
from coterie.privacy.accounting import Guarantee, Level, Trust
from coterie.rng import Rng

DELTA = 1e-6
NOISE = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
CLAIM = Guarantee(1.0, DELTA, Level.RECORD, Trust.TRUSTED_AGGREGATOR)


def gaussian_scores(shift: float, trials: int, seed: int) -> Scores:
    """The optimal test on a Gaussian release: the released value along the audited unit's direction, over sigma."""
    draw = Rng.seeded(seed).child("release").numpy()
    return Scores(draw.normal(shift, 1, trials), draw.normal(0, 1, trials))


def gaussian_bound(scores: Scores, delta: float, rng: Rng) -> EpsilonBound:
    return epsilon_lower_bound(scores, delta, rng, curve=GaussianNoise())


def test_the_limits_are_exact_for_a_proportion() -> None:
    found = proportion(3, 40)
    assert binom.sf(2, 40, found.low) == pytest.approx(0.025)
    assert binom.cdf(3, 40, found.high) == pytest.approx(0.025)
    assert proportion(0, 10).low == 0
    assert proportion(10, 10).high == 1


def test_decisions_by_hand() -> None:
    """100 of 100 hits and no alarm: FPR <= 1 - 0.025^(1/100) = 0.0362, TPR >= 0.9638; ln(0.9638 / 0.0362) = 3.28."""
    found = epsilon_from_decisions(100, 100, 0, 100, delta=0.0)
    limit = 1 - 0.025 ** (1 / 100)
    assert found.fpr_at_most == pytest.approx(limit)
    assert found.epsilon == pytest.approx(math.log((1 - limit) / limit))
    assert epsilon_from_decisions(50, 100, 50, 100, delta=0.0).epsilon == 0
    assert epsilon_from_decisions(0, 100, 100, 100, delta=0.0).epsilon == 0  # the wrong way round shows nothing


def test_misses_count_as_much_as_hits() -> None:
    """A test that never misses shows epsilon by 1 - FPR <= e^epsilon (1 - TPR)."""
    found = epsilon_from_decisions(1000, 1000, 500, 1000, delta=0.0)
    assert found.epsilon > math.log(0.45 / 0.004)


def test_delta_is_paid_before_epsilon() -> None:
    without, with_delta = (epsilon_from_decisions(60, 1000, 0, 1000, delta).epsilon for delta in (0.0, 0.04))
    assert without > with_delta
    assert epsilon_from_decisions(60, 1000, 0, 1000, 0.1).epsilon == 0


def test_gaussian_audit_is_within_a_factor_of_two_at_epsilon_one() -> None:
    for seed in range(10):
        found = gaussian_bound(gaussian_scores(1 / NOISE, 20_000, seed), DELTA, Rng.seeded(seed))
        assert 0.5 <= found.epsilon <= 1.0


def test_general_audit_comes_near_with_more_trials() -> None:
    found = epsilon_lower_bound(gaussian_scores(1 / NOISE, 1_000_000, 0), DELTA, Rng.seeded(0))
    assert 0.5 <= found.epsilon <= 1.0


def test_an_attack_that_knows_nothing_shows_nothing() -> None:
    alarms = sum(
        epsilon_lower_bound(gaussian_scores(0.0, 500, seed), 0.0, Rng.seeded(seed)).epsilon > 0 for seed in range(200)
    )
    assert alarms <= 10


@pytest.mark.parametrize(
    ("broken", "shift"),
    [("noise halved", 2.0), ("a record three times the clip", 3.0), ("C taken for C squared", 11.0)],
)
def test_broken_mechanisms_are_caught(broken: str, shift: float) -> None:
    for seed in range(10):
        found = gaussian_bound(gaussian_scores(shift / NOISE, 20_000, seed), DELTA, Rng.seeded(seed))
        assert judge_guarantee(CLAIM, [found]).outcome is Outcome.VIOLATED, broken


def test_more_trials_show_more() -> None:
    few, many = (gaussian_bound(gaussian_scores(0.5, n, 1), DELTA, Rng.seeded(1)).epsilon for n in (300, 30_000))
    assert few < many < dp_accounting.get_epsilon_gaussian(2.0, DELTA)


def test_choosing_the_threshold_on_the_judging_half_would_cheat() -> None:
    """The split is what keeps the promise: every trial is used either to choose or to judge, never both."""
    scores = Scores(np.arange(10.0), np.arange(10.0) + 100)
    first, second = scores.halves(Rng.seeded(0))
    assert sorted([*first.inside, *second.inside]) == list(range(10))
    assert len(first.inside) == len(second.inside) == 5


def test_power_is_what_a_perfect_attack_shows() -> None:
    """50 judged on either side: FPR <= 1 - 0.025^(1/50) = 0.0711, so at most ln(0.9289 / 0.0711) = 2.57."""
    limit = 1 - 0.025 ** (1 / 50)
    assert epsilon_power(100, 100, 0.0) == pytest.approx(math.log((1 - limit) / limit))
    perfect = epsilon_lower_bound(Scores(np.arange(100.0) + 200, np.arange(100.0)), 0.0, Rng.seeded(0))
    assert perfect.power == pytest.approx(epsilon_power(100, 100, 0.0))
    assert perfect.epsilon == pytest.approx(perfect.power, rel=0.2)  # a chosen threshold may miss one of 50
    assert "a perfect attack would have shown 2.57" in str(perfect)
    chance = epsilon_lower_bound(gaussian_scores(0.0, 100, 0), 0.0, Rng.seeded(0))
    assert chance.epsilon == 0
    assert chance.power == perfect.power
    assert epsilon_power(100, 100, DELTA, curve=GaussianNoise()) > 10


def test_runs_are_combined_by_pooling_what_was_judged() -> None:
    one, two = epsilon_from_decisions(90, 100, 5, 100, 0.0), epsilon_from_decisions(70, 100, 9, 200, 0.0)
    both = combined([one, two])
    assert both.epsilon == epsilon_from_decisions(160, 200, 14, 300, 0.0).epsilon
    assert both.trials == 500
    seeds = [gaussian_bound(gaussian_scores(1 / NOISE, 500, seed), DELTA, Rng.seeded(seed)) for seed in range(20)]
    assert max(bound.epsilon for bound in seeds) < combined(seeds).epsilon < 1.0
    assert combined([one]).epsilon == one.epsilon
    with pytest.raises(InvalidInput, match="same delta and curve"):
        combined([one, seeds[0]])
    with pytest.raises(InvalidInput, match="kept with every bound"):
        combined([EpsilonBound(1.0, 0.0, 0.95, "by hand", 0.1, 0.9, 100)])


def test_the_largest_of_many_seeds_accuses_and_all_of_them_together_do_not() -> None:
    """Yes-or-no audits of exact (1, 0)-DP with 60 seeds each. One seed is too high in 0.3 %, so the largest in 17 %.

    False alarms of this test: none of 20 at 17 % has probability 2 %, more than 1 at 0.3 % has 2e-3; the draws are
    fixed.
    """
    right = 1 / (1 + math.e)
    largest, pooled = [], []
    for audit in range(20):
        draw = Rng.seeded(audit).child("responses").numpy()
        hits, alarms = draw.binomial(200, 1 - right, 60).tolist(), draw.binomial(200, right, 60).tolist()
        bounds = [epsilon_from_decisions(h, 200, a, 200, 0.0) for h, a in zip(hits, alarms, strict=True)]
        largest.append(max(bound.epsilon for bound in bounds))
        pooled.append(combined(bounds).epsilon)
    assert sum(epsilon > 1 for epsilon in largest) >= 1
    assert sum(epsilon > 1 for epsilon in pooled) <= 1
    assert min(pooled) > 0.9


def test_the_largest_of_several_tests_says_how_sure_it_is() -> None:
    each = shared(0.95, 2)
    bounds = [epsilon_from_decisions(90, 100, alarms, 100, 0.0, each) for alarms in (5, 10)]
    worst = largest_of(bounds)
    assert worst.epsilon == bounds[0].epsilon
    assert worst.confidence == pytest.approx(0.95)


def test_roc_by_hand() -> None:
    curve = roc(Scores(np.array([3.0, 1.0]), np.array([2.0, 0.0])))
    assert curve.fpr.tolist() == [0, 0, 0.5, 0.5, 1]
    assert curve.tpr.tolist() == [0, 0.5, 0.5, 1, 1]


def test_auc_equals_the_library_and_its_interval_covers() -> None:
    """True area Phi(1 / sqrt 2). 300 intervals at 95 %: 99.99 % of the time between 270 and 298 cover it."""
    truth = float(norm.cdf(1 / math.sqrt(2)))
    covered = 0
    for seed in range(300):
        scores = gaussian_scores(1.0, 80, seed)
        covered += truth in auc(scores)
    assert 270 <= covered <= 298
    tied = Scores(np.array([1.0, 1, 2, 3]), np.array([0.0, 1, 1, 2, 2]))
    assert auc(tied).estimate == pytest.approx(roc_auc_score([1] * 4 + [0] * 5, [*tied.inside, *tied.outside]))


def test_perfect_separation_is_not_certainty() -> None:
    found = auc(Scores(np.arange(20.0) + 100, np.arange(30.0)))
    assert found.estimate == 1
    assert 0.8 < found.low < 0.9


def test_tpr_at_low_fpr() -> None:
    scores = Scores(np.array([5.0, 6.0, 7.0, 0.0]), np.arange(1000) / 1000 + 4.991)  # outside: 4.991 to 5.990
    one = tpr_at(scores, 0.01)  # ten may pass: threshold 5.981
    assert one.fpr.estimate == pytest.approx(0.01)
    assert one.tpr.estimate == pytest.approx(0.5)
    assert one.is_resolved
    assert not tpr_at(Scores(scores.inside, scores.outside[:50]), 0.001).is_resolved


@pytest.mark.parametrize(
    ("inside", "outside", "said"),
    [
        (np.array([]), np.array([1.0]), "inside scores"),
        (np.array([1.0, math.inf]), np.array([1.0]), r"inside scores\[1\]=inf is not finite"),
        (np.zeros((2, 2)), np.array([1.0]), "non-empty vector"),
    ],
)
def test_bad_scores_are_named(inside: np.ndarray, outside: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Scores(inside, outside)


def test_bad_parameters_are_named() -> None:
    scores = gaussian_scores(1.0, 10, 0)
    with pytest.raises(InvalidInput, match=r"delta=1\.5"):
        epsilon_lower_bound(scores, 1.5, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="must be positive: Gaussian noise has no finite epsilon"):
        gaussian_bound(scores, 0.0, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="at least 2"):
        epsilon_lower_bound(Scores(np.ones(1), np.ones(1)), 0.0, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="successes=11"):
        epsilon_from_decisions(11, 10, 0, 10, 0.0)
    with pytest.raises(InvalidInput, match="confidence=2"):
        epsilon_lower_bound(scores, 0.0, Rng.seeded(0), confidence=2)
