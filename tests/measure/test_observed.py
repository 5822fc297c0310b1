"""An audit of what each adversary sees finds what an audit of the published sum alone would miss."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import laplace, norm

from coterie.errors import InvalidInput
from coterie.measure.curves import GaussianNoise
from coterie.measure.epsilon import EpsilonBound, Scores, epsilon_lower_bound
from coterie.measure.intervals import Floats
from coterie.measure.observed import Gaussian, Laplace, Seen, by_participants, by_server, jointly, scores_of
from coterie.rng import Rng

DELTA = 1e-6
NOISE = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
TRIALS = 40_000
UNIT = np.array([0.6, -0.8])
NOTHING = np.zeros(2)


def draws(*name: str | int) -> np.random.Generator:
    return Rng.seeded(0).child(*name).numpy()


def bound(scores: Scores) -> EpsilonBound:
    return epsilon_lower_bound(scores, DELTA, Rng.seeded(0), curve=GaussianNoise())


def both(noise: Floats) -> tuple[Floats, Floats]:
    """The same noise with the unit and without it: the limits on the two rates hold for each alone."""
    return noise + UNIT, noise


@pytest.mark.parametrize(("noise", "density"), [(Gaussian(1.5), norm(0, 1.5)), (Laplace(0.7), laplace(0, 0.7))])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_score_is_the_ratio_of_the_densities(noise: Gaussian | Laplace, density: norm, rate: float) -> None:
    released, outside = draws("releases").normal(0, 2, (50, 2)), np.array([0.3, -0.2])
    found = Seen(released, outside, UNIT, noise, rate).log_ratios()
    out, moved = density.pdf(released - outside).prod(1), density.pdf(released - outside - UNIT).prod(1)
    assert found == pytest.approx(np.log((1 - rate) + rate * moved / out))


def test_local_noise_is_audited_by_message() -> None:
    """25 clients with half of the noise each: their sum would pass five times over, the message does not."""
    noise = NOISE / 2 * draws("messages").standard_normal((TRIALS, 25, 2))
    client = np.zeros((25, 2))
    client[7] = UNIT
    sides = noise + client, noise
    of_sum = scores_of(*([Seen(side.sum(1), NOTHING, UNIT, Gaussian(NOISE * 2.5))] for side in sides))
    of_message = scores_of(*([by_server(side, 7, NOTHING, UNIT, Gaussian(NOISE / 2))] for side in sides))
    assert bound(of_sum).epsilon < 0.5
    assert bound(of_message).epsilon > 1.5


def test_all_releases_are_audited_together() -> None:
    """Four releases, each at the noise that one alone needs for epsilon 1, cost epsilon 2.1 together."""
    sides = [both(NOISE * draws("release", number).standard_normal((TRIALS, 2))) for number in range(4)]
    seen = [[Seen(side[there], NOTHING, UNIT, Gaussian(NOISE)) for side in sides] for there in (0, 1)]
    truth = dp_accounting.get_epsilon_gaussian(NOISE / 2, DELTA)
    assert bound(scores_of(seen[0][:1], seen[1][:1])).epsilon < 1
    assert 1.8 < bound(scores_of(*seen)).epsilon < truth


@pytest.mark.parametrize(("clients", "least"), [(3, 1.13), (5, 1.04)])
def test_a_participant_subtracts_its_own_share(clients: int, least: float) -> None:
    """What is claimed towards the public, epsilon 1, is 1.245 towards one of three and 1.128 towards one of five."""
    share = NOISE / math.sqrt(clients)
    shares = share * draws("shares").standard_normal((200_000, clients, 2))
    left = Gaussian(share * math.sqrt(clients - 1))
    truth = dp_accounting.get_epsilon_gaussian(left.deviation, DELTA)
    seen = ([by_participants(side, shares[:, 0], NOTHING, UNIT, left)] for side in both(shares.sum(1)))
    assert least < bound(scores_of(*seen)).epsilon < truth == pytest.approx({3: 1.245, 5: 1.128}[clients], abs=1e-3)
    public = ([Seen(side, NOTHING, UNIT, Gaussian(NOISE))] for side in both(shares.sum(1)))
    assert bound(scores_of(*public)).epsilon < 1


def test_bad_input_is_named() -> None:
    seen = Seen(np.zeros((3, 2)), NOTHING, UNIT, Gaussian(1.0))
    with pytest.raises(InvalidInput, match="same in all releases"):
        jointly([seen, Seen(np.zeros((4, 2)), NOTHING, UNIT, Gaussian(1.0))])
    with pytest.raises(InvalidInput, match="at least one"):
        jointly([])
    with pytest.raises(InvalidInput, match="must have the shape"):
        Seen(np.zeros((3, 2)), np.zeros(1), UNIT, Gaussian(1.0))
    with pytest.raises(InvalidInput, match="client=2"):
        by_server(np.zeros((3, 2, 2)), 2, NOTHING, UNIT, Gaussian(1.0))
    with pytest.raises(InvalidInput, match="without noise the sum itself tells"):
        Gaussian(0.0)
    with pytest.raises(InvalidInput, match="without noise the sum itself tells"):
        Laplace(0.0)
    with pytest.raises(InvalidInput, match="rate"):
        Seen(np.zeros((3, 2)), NOTHING, UNIT, Gaussian(1.0), rate=0.0)
