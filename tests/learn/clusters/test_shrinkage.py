"""Shrinking errs less than the noisy vector, wherever the truth lies; without noise it does nothing."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.learn.clusters.lloyd import followed_centres, moved_centres
from coterie.learn.clusters.shrinkage import followed, shrunk
from coterie.rng import Rng

DIMENSIONS, TRIALS, DEVIATION = 20, 4000, 0.5


def test_hand_computed() -> None:
    """Five dimensions, distance 2 from the guess and deviation 0.5: three quarters over four is taken off."""
    noisy, guess = torch.tensor([2.0, 0, 0, 0, 1]), torch.tensor([0.0, 0, 0, 0, 1])
    torch.testing.assert_close(shrunk(noisy, guess, 0.5), torch.tensor([2 * (1 - 0.75 / 4), 0, 0, 0, 1]))
    assert torch.equal(shrunk(noisy, guess, 2.0), guess)  # noise explains all of it: the guess, and not beyond it


def test_each_vector_by_its_own_noise() -> None:
    noisy = torch.ones(3, 6)
    found = shrunk(noisy, torch.zeros(6), torch.tensor([0.0, 0.5, 9.0]))
    assert torch.equal(found[0], noisy[0])
    torch.testing.assert_close(found[1], torch.full((6,), 1 - 4 * 0.25 / 6))
    assert torch.equal(found[2], torch.zeros(6))


@pytest.mark.parametrize("distance", [0.0, 0.5, 2.0, 5.0, 50.0])
def test_it_errs_less_than_the_noisy_vector_wherever_the_truth_lies(distance: float) -> None:
    """The gain in squared error of one trial has a deviation below 5, so that of the mean is below 0.08; the least
    expected gain that is asserted, at distance 5, is 2.7: no false alarm in practice. Far out the gain vanishes."""
    draws = Rng.seeded(3).child("noise").torch()
    truth = torch.zeros(TRIALS, DIMENSIONS)
    truth[:, 0] = distance
    noisy = truth + DEVIATION * torch.randn(truth.shape, generator=draws)
    found = shrunk(noisy, torch.zeros(DIMENSIONS), DEVIATION)
    before, after = ((estimate - truth).square().sum(1).mean() for estimate in (noisy, found))
    assert float(before) == pytest.approx(DIMENSIONS * DEVIATION**2, rel=0.05)
    if distance <= 5:
        assert after < before - 0.5
    else:
        assert float(after) == pytest.approx(float(before), rel=0.01)


def test_without_noise_or_in_two_dimensions_nothing_changes() -> None:
    noisy = torch.tensor([0.1, 0.2, 0.3])
    assert shrunk(noisy, torch.zeros(3), 0.0) is noisy
    assert torch.equal(shrunk(noisy[:2], torch.zeros(2), 9.0), noisy[:2])
    assert torch.equal(shrunk(torch.zeros(4), torch.zeros(4), 1.0), torch.zeros(4))  # and no 0 / 0


def test_centres_take_no_step_that_is_noise() -> None:
    """Sums of norm 10 with noise of deviation 1 in each of 102 entries: of a step of 10 / 5 nothing is left; without
    noise all of it."""
    centres, sums = torch.zeros(1, 102), torch.full((1, 102), 10 / math.sqrt(102))
    counts = torch.tensor([5.0])
    assert torch.equal(moved_centres(centres, sums, counts, noise=1.0), centres)
    assert float(moved_centres(centres, sums, counts).norm()) == pytest.approx(2)
    assert float(moved_centres(centres, sums, counts, noise=0.5).norm()) == pytest.approx(2 * (1 - 0.25))


def test_followed_by_hand() -> None:
    """Doubt 1 and noise of variance 3: a quarter. A shift of squared length 54 in six dimensions is longer than
    4 * (6 + sqrt 12) and so a move, of which noise of variance 3 explains 4 * 3 / 54. Without doubt and within noise:
    nothing."""
    small, long = torch.zeros(6), torch.full((6,), 3.0)
    share, doubt = followed(
        torch.stack([small, long, small]), torch.full((3,), math.sqrt(3)), torch.tensor([1.0, 1, 0])
    )
    torch.testing.assert_close(share, torch.tensor([0.25, 7 / 9, 0.0]))
    torch.testing.assert_close(doubt, torch.tensor([0.75, 7 / 3, 0.0]))
    exact, left = followed(long, torch.zeros(()), torch.zeros(()))
    assert (float(exact), float(left)) == (1.0, 0.0)


def test_steps_that_noise_explains_are_averaged() -> None:
    """Ten noisy steps about centres that do not move err hardly more than one with a tenth of the variance, 0.001: one
    shift in six is taken for a move. The mean squared error of 8,000 entries has a relative deviation of 1.6 %."""
    draws = Rng.seeded(1).child("noise").torch()
    truth, counts = torch.zeros(400, DIMENSIONS), torch.full((400,), 10.0)
    centres, doubt = torch.full((400, DIMENSIONS), 5.0), None
    for _ in range(10):
        sums = 10 * (truth - centres) + torch.randn(truth.shape, generator=draws)
        centres, doubt = followed_centres(centres, sums, counts, 1.0, 1.0, doubt)
    error = float(centres.square().mean())
    assert 0.9 * 0.001 < error < 2 * 0.001
    assert doubt is not None
    assert 0.001 < float(doubt.mean()) < 3 * 0.001
