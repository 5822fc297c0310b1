"""The discrete Gaussian is what it says: its draws by moments, its sums by exact convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.references.discrete_gaussian import probabilities

from coterie.errors import InvalidInput
from coterie.privacy.lookup import BLOCK, SIGMA
from coterie.privacy.noise import RADIX, DiscreteGaussian, sum_ripple, unevenness
from coterie.rng import Secrets

FALSE_ALARM = 1e-6


def exact_pmf(sigma: float, reach: int) -> NDArray[np.float64]:
    return np.array([float(p) for p in probabilities(sigma, reach)])


def test_noise_in_32_bits_is_the_same_noise() -> None:
    noise, root = DiscreteGaussian(1), Secrets.seeded(3)
    drawn, narrow = noise.draw(BLOCK + 9, root), np.zeros(BLOCK + 9, dtype=np.int32)
    noise.add_to(narrow, root)
    assert np.array_equal(narrow, drawn)


@pytest.mark.parametrize("levels", [1, 3])
def test_draws_of_several_nodes_are_those_of_each_alone(levels: int) -> None:
    noise, nodes = DiscreteGaussian(levels), [Secrets.seeded(seed) for seed in range(5)]
    for node, draws in zip(nodes, noise.draws(40_000, nodes), strict=True):
        total = np.zeros(40_000, dtype=np.int64)
        noise.add_scaled(total, 1, np.int64(1), total, draws)
        assert np.array_equal(total, noise.draw(40_000, node))


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("factor", [1, -1, 3, 1 << 20])
def test_scaled_noise_is_the_whole_sum_rounded_once_and_scaled_once(levels: int, factor: int) -> None:
    noise, count, root = DiscreteGaussian(levels), BLOCK + 11, Secrets.seeded(2)
    total = np.arange(count) - count // 2
    expected = (factor * total + noise.draw(count, root)).astype(np.float32) * np.float32(0.37)
    out = np.empty(count, dtype=np.float32)
    noise.add_scaled(total, factor, np.float32(0.37), out, *noise.draws(count, [root]))
    assert np.array_equal(out, expected)


def test_32_bits_hold_the_narrowest_alone() -> None:
    narrow, root = np.zeros(1, dtype=np.int32), Secrets.seeded(3)
    with pytest.raises(InvalidInput, match="int32 where levels=2 is 1"):
        DiscreteGaussian(2).add_to(narrow, root)


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_moments(levels: int) -> None:
    """Six standard errors each: false alarms in under 2e-9 of the keys, and the key is fixed."""
    noise, count = DiscreteGaussian(levels), 400_000
    z = noise.draw(count, Secrets.seeded(5).child("moments", levels)) / noise.sigma
    error = 1 / math.sqrt(count)
    assert abs(z.mean()) < 6 * error
    assert abs(z.var() - 1) < 6 * math.sqrt(2) * error
    assert abs((z**3).mean()) < 6 * math.sqrt(15) * error
    assert abs((z**4).mean() - 3) < 6 * math.sqrt(96) * error
    assert abs((z[1:] * z[:-1]).mean()) < 6 * error
    assert noise.sigma == pytest.approx((16384, 1048704, 6.711706e7, 4.2954917e9, 2.7491147e11)[levels - 1], rel=1e-7)
    assert np.abs(z * noise.sigma).max() < noise.largest


def test_low_digits_of_large_deviations_are_uniform() -> None:
    """What is added on the coarse grid must leave no comb: 4096 residues, chi-square, once in a million keys."""
    drawn = DiscreteGaussian(3).draw(400_000, Secrets.seeded(7))
    seen = np.bincount(drawn % RADIX**2, minlength=RADIX**2)
    expected = len(drawn) / RADIX**2
    assert ((seen - expected) ** 2 / expected).sum() < chi2.isf(FALSE_ALARM, RADIX**2 - 1)


@pytest.mark.parametrize(("fine", "coarse", "factor"), [(10, 10, 9), (6, 40, 5), (3, 3, 1)])
def test_a_sum_on_two_grids_is_a_discrete_gaussian(fine: int, coarse: int, factor: int) -> None:
    """Exact convolution, against what the argument promises; doubles are right to 1e-14 here."""
    wide = np.zeros(2 * 14 * coarse * factor + 1)
    wide[::factor] = exact_pmf(coarse, 14 * coarse)
    both = np.convolve(exact_pmf(fine, 14 * fine), wide)
    sigma, reach = math.sqrt(fine**2 + (factor * coarse) ** 2), len(both) // 2
    off = log_ratio(both, exact_pmf(sigma, reach))
    assert off <= unevenness(fine * coarse / sigma) + 1e-13
    if factor == 9:
        assert off > 1e-12  # there is something to bound


def log_ratio(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """The largest, where doubles have the digits."""
    likely = expected > 1e-8
    return float(np.abs(np.log(found[likely] / expected[likely])).max())


def test_a_sum_of_shares_is_a_discrete_gaussian() -> None:
    """By exact convolution, for deviations far below those that are used. With two shares the distance shows."""
    for sigma, count in ((1.5, 2), (1.5, 5), (math.sqrt(2), 3)):
        one = exact_pmf(sigma, 30)
        total = one
        for _ in range(count - 1):
            total = np.convolve(total, one)
        off = log_ratio(total, exact_pmf(sigma * math.sqrt(count), len(total) // 2))
        assert off <= sum_ripple(sigma, count)
        assert count > 2 or off > sum_ripple(sigma, count) / 4
    assert sum_ripple(SIGMA, 1) == 0
    assert sum_ripple(SIGMA, 10_000) < 1e-290


def test_a_node_gives_the_same_noise_and_others_give_other() -> None:
    noise, root = DiscreteGaussian(3), Secrets.seeded(1)
    first = noise.draw(BLOCK + 7, root.child("a"))
    assert np.array_equal(first, noise.draw(BLOCK + 7, root.child("a")))
    other = noise.draw(BLOCK + 7, root.child("b"))
    correlation = (first * 1.0 * other).mean() / noise.variance
    assert abs(correlation) < 6 / math.sqrt(BLOCK)  # once in 5e8 keys
    total = np.arange(10, dtype=np.int64)
    noise.add_to(total, root.child("c"))
    assert np.array_equal(total - np.arange(10), noise.draw(10, root.child("c")))
    assert len(noise.draw(0, root)) == 0


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"levels=6 must lie in 1..5"):
        DiscreteGaussian(6)
    with pytest.raises(InvalidInput, match="flat int64"):
        DiscreteGaussian(1).add_to(np.zeros(3), Secrets.seeded(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the lattice shows through"):
        unevenness(0.5)
