"""The claim's curve chooses the bound: correct mechanisms pass, each under its own curve, and broken ones do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, judge_guarantee
from coterie.measure.curves import AnyMechanism, Curve, GaussianNoise, Profile, curve_of
from coterie.measure.epsilon import Scores, epsilon_from_decisions, epsilon_lower_bound
from coterie.measure.intervals import Floats
from coterie.measure.observed import Laplace as Noise
from coterie.measure.observed import Seen
from coterie.privacy.accounting import Guarantee, Level, Neighbours, Trust, deltas_of, dpsgd_events, guarantee_of
from coterie.rng import Rng

DELTA = 1e-5


@dataclass(frozen=True)
class Audited:
    """A claim, and scores of the best test on a mechanism that keeps it (1) or has only a part of its noise."""

    claim: Guarantee
    curve: Curve
    scores: Callable[[np.random.Generator, int, float], Scores]


def claimed(events: list[dp_accounting.DpEvent], delta: float, neighbours: Neighbours) -> Guarantee:
    return guarantee_of(events, delta, Level.RECORD, Trust.LOCAL_NOISE, 1.0, neighbours)


def audited(
    events: list[dp_accounting.DpEvent],
    delta: float,
    scores: Callable[[np.random.Generator, int, float], Scores],
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
) -> Audited:
    claim = claimed(events, delta, neighbours)
    return Audited(claim, curve_of(claim), scores)


def gaussian() -> Audited:
    def scores(draw: np.random.Generator, trials: int, noise: float) -> Scores:
        return Scores(draw.normal(1, 2 * noise, trials), draw.normal(0, 2 * noise, trials))

    return audited([dp_accounting.GaussianDpEvent(2.0)], DELTA, scores)


def discrete_gaussian() -> Audited:
    """So coarse (one unit moves the sum by one step, as does the noise) that the Gaussian curve would accuse it."""
    losses = privacy_loss_distribution.from_discrete_gaussian_mechanism(1.0)
    epsilon = float(losses.get_epsilon_for_delta(DELTA))
    steps = np.arange(-40, 41)

    def scores(draw: np.random.Generator, trials: int, noise: float) -> Scores:
        weights = np.exp(-(steps**2) / 2 / noise**2)
        drawn = draw.choice(steps, (2, trials), p=weights / weights.sum()).astype(np.float64)
        return Scores(drawn[0] + 1, drawn[1])

    def deltas(epsilons: Floats) -> Floats:
        return np.array([losses.get_delta_for_epsilon(float(one)) for one in epsilons])

    claim = Guarantee(epsilon, DELTA, Level.RECORD, Trust.LOCAL_NOISE)
    return Audited(claim, Profile.of(deltas, epsilon, DELTA), scores)


def randomised_response(epsilon: float) -> Audited:
    lie = 2 / (1 + math.exp(epsilon))  # the part of the answers that is a coin's

    def scores(draw: np.random.Generator, trials: int, noise: float) -> Scores:
        said = draw.random((2, trials)) >= lie * noise / 2
        return Scores(said[0].astype(np.float64), (~said[1]).astype(np.float64))

    event = dp_accounting.RandomizedResponseDpEvent(lie, 2)
    return audited([event], 0.0, scores, Neighbours.REPLACE)


def laplace() -> Audited:
    def scores(draw: np.random.Generator, trials: int, noise: float) -> Scores:
        seen = draw.laplace(0, noise, (2, trials)) + np.array([[1.0], [0.0]])
        return Scores(*(Seen(side[:, None], np.zeros(1), np.ones(1), Noise(1.0)).log_ratios() for side in seen))

    return audited([dp_accounting.LaplaceDpEvent(1.0)], 0.0, scores)


def subsampled() -> Audited:
    """Five steps at rate 0.2; the score is the sum of the mixtures' log-likelihood ratios."""
    rate, deviation, steps = 0.2, 0.8, 5

    def scores(draw: np.random.Generator, trials: int, noise: float) -> Scores:
        seen = draw.normal(0, deviation * noise, (2, trials, steps))
        seen[0] += draw.random((trials, steps)) < rate
        ratios: Floats = np.log1p(rate * np.expm1((seen - 0.5) / deviation**2)).sum(-1)
        return Scores(ratios[0], ratios[1])

    return audited(dpsgd_events(rate, deviation, steps), DELTA, scores)


MECHANISMS: dict[str, Callable[[], Audited]] = {
    "Gaussian": gaussian,
    "discrete Gaussian": discrete_gaussian,
    "randomised response": partial(randomised_response, 1.0),
    "randomised response, epsilon 4": partial(randomised_response, 4.0),
    "Laplace": laplace,
    "Poisson-sampled Gaussian": subsampled,
}


def violated(one: Audited, trials: int, seed: int, noise: float = 1.0) -> bool:
    scores = one.scores(Rng.seeded(seed).child("releases").numpy(), trials, noise)
    bound = epsilon_lower_bound(scores, one.claim.delta, Rng.seeded(seed), curve=one.curve)
    return judge_guarantee(one.claim, [bound]).outcome is Outcome.VIOLATED


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_correct_mechanism_is_called_violated_in_at_most_5_percent_of_300_audits(name: str) -> None:
    """At the highest rate there is, 2.5 %, for a large epsilon, more than 15 of 300 have probability 0.5 %; at the
    0.7 % of the others, 1e-9. The draws are fixed."""
    one = MECHANISMS[name]()
    assert sum(violated(one, 1000, seed) for seed in range(300)) <= 15


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_broken_one_always_is(name: str) -> None:
    one = MECHANISMS[name]()
    assert all(violated(one, 20_000, seed, noise=0.5) for seed in range(20))


def test_the_gaussian_bound_accuses_the_innocent() -> None:
    """Why the claim must choose: exact (1, 0)-DP is far from what Gaussian noise of epsilon 1 at 1e-5 allows."""
    scores = randomised_response(1.0).scores(Rng.seeded(0).child("releases").numpy(), 20_000, 1.0)
    assert epsilon_lower_bound(scores, DELTA, Rng.seeded(0), curve=GaussianNoise()).epsilon > 5
    assert 0.9 < epsilon_lower_bound(scores, DELTA, Rng.seeded(0)).epsilon <= 1
    coarse = discrete_gaussian()
    scores = coarse.scores(Rng.seeded(0).child("releases").numpy(), 400_000, 1.0)
    found = epsilon_lower_bound(scores, DELTA, Rng.seeded(0), curve=GaussianNoise())
    assert found.epsilon > dp_accounting.get_epsilon_gaussian(1.0, DELTA)
    assert not violated(coarse, 400_000, 0)


def test_a_claim_gives_its_curve() -> None:
    assert {name: type(make().curve) for name, make in MECHANISMS.items()} == {
        "Gaussian": GaussianNoise,
        "discrete Gaussian": Profile,
        "randomised response": AnyMechanism,
        "randomised response, epsilon 4": AnyMechanism,
        "Laplace": AnyMechanism,
        "Poisson-sampled Gaussian": Profile,
    }
    noise = dp_accounting.LaplaceDpEvent(1.0)
    assert isinstance(curve_of(claimed([noise], DELTA, Neighbours.ADD_OR_REMOVE)), Profile)
    for nothing in (None, Guarantee(1.0, DELTA, Level.RECORD, Trust.LOCAL_NOISE)):
        assert curve_of(nothing) == AnyMechanism()
    unknown = Guarantee(
        1.0, DELTA, Level.RECORD, Trust.LOCAL_NOISE, events=(dp_accounting.dp_event.UnsupportedDpEvent(),)
    )
    assert curve_of(unknown) == AnyMechanism()


def test_a_gaussian_profile_is_the_gaussian_curve() -> None:
    """At the rates that the claim just allows, the profile's least addition is zero; slightly beyond, it is not."""
    events = [dp_accounting.GaussianDpEvent(2.0)]
    epsilon = float(dp_accounting.get_epsilon_gaussian(2.0, DELTA))
    profile = Profile.of(lambda at: np.array(deltas_of(events, at.tolist())), epsilon, DELTA)
    fpr = np.array([0.001, 0.01, 0.1, 0.3, 0.4])
    just = norm.cdf(norm.ppf(fpr) + 0.5)
    assert profile.strength(fpr, just, DELTA) == pytest.approx(np.zeros(5), abs=2e-3)
    assert (profile.strength(fpr, just + 0.01, DELTA) > 0).all()
    assert GaussianNoise().epsilon(0.5, DELTA) == pytest.approx(epsilon)
    assert profile.epsilon(0.0, DELTA) == epsilon
    assert profile.epsilon(0.0, 1e-3) < epsilon


def test_a_profile_shows_no_less_than_the_general_bound() -> None:
    curve = subsampled().curve
    for hits, alarms in ((900, 100), (500, 400), (990, 900), (30, 0)):
        general = epsilon_from_decisions(hits, 1000, alarms, 1000, DELTA)
        assert epsilon_from_decisions(hits, 1000, alarms, 1000, DELTA, curve=curve).epsilon >= general.epsilon


def test_bad_profiles_are_named() -> None:
    with pytest.raises(InvalidInput, match="one delta for each"):
        Profile((1.0,), ())
    with pytest.raises(InvalidInput, match=r"epsilons=-1\.0"):
        Profile((-1.0,), (0.1,))
    with pytest.raises(InvalidInput, match="must lie in"):
        Profile((1.0,), (1.5,))
