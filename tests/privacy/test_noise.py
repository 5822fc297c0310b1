"""The discrete Gaussian is what it says: its table to 2^-128, what that leaves open exactly, its draws by moments."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.references.discrete_gaussian import Coins, probabilities

from coterie.errors import InvalidInput
from coterie.privacy.noise import (
    BLOCK,
    RADIX,
    REACH,
    SIGMA,
    DiscreteGaussian,
    Table,
    settled_exactly,
    sum_ripple,
    table,
    unevenness,
)
from coterie.rng import Keystream, Secrets

FALSE_ALARM = 1e-6


class Scripted(Keystream):
    """A stream whose words are known."""

    def __init__(self, *words: int) -> None:
        super().__init__(bytes(32))
        self.left = list(words)

    def words(self, count: int) -> NDArray[np.uint64]:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


def bounds(found: Table) -> list[int]:
    return [(int(high) << 64) + int(low) for high, low in zip(found.high, found.low, strict=True)]


def exact_pmf(sigma: float, reach: int) -> NDArray[np.float64]:
    return np.array([float(p) for p in probabilities(sigma, reach)])


@pytest.mark.parametrize("sigma", [3, SIGMA])
def test_the_table_is_the_distribution_to_its_last_bit(sigma: int) -> None:
    found = bounds(table(sigma))
    steps = [0, *found, 2**128]
    exact = probabilities(sigma, REACH * sigma)
    with localcontext() as context:
        context.prec = 60
        off = [
            abs(Decimal(after - before) / 2**128 - p)
            for before, after, p in zip(steps[:-1], steps[1:], exact, strict=True)
        ]
        assert max(off) < Decimal(2) ** -127


def test_no_cell_ends_where_a_bound_is_in_doubt() -> None:
    """What 16 bits settle, they settle for certain: bounds are right to 1 in 2^128, and none is so near to an edge."""
    edge = 1 << 112
    assert all(2 < bound % edge < edge - 2 for bound in bounds(table(SIGMA)) if 2 < bound < 2**128 - 2)


def test_what_128_bits_leave_open_is_settled_exactly() -> None:
    """At a bound and next to it, and beyond the table, against a distribution function of 120 digits."""
    found = table(SIGMA)
    with localcontext() as context:
        context.prec = 120
        exact, cumulated = probabilities(SIGMA, 24 * SIGMA, 120), [Decimal(0)]
        for p in exact:
            cumulated.append(cumulated[-1] + p)
        places = [bounds(found)[at] for at in (200, 1000, found.reach, 2 * found.reach - 200)]
        for drawn in [0, 1, 2**128 - 1, *(place + near for place in places for near in (-1, 0, 1))]:
            for further in (0, 2**63, 2**64 - 1):
                value = settled_exactly(SIGMA, drawn, 128, iter([further, 2**63, 2**63, 2**63]).__next__)
                uniform = Decimal((((drawn << 64) + further) << 64) + 2**63) / Decimal(2) ** 256
                assert cumulated[value + 24 * SIGMA] <= uniform <= cumulated[value + 24 * SIGMA + 1]
    assert settled_exactly(SIGMA, 0, 128, iter([0, 0, 0, 2**63, 2**63]).__next__) < -20 * SIGMA


def test_noise_in_single_precision_is_the_same_noise() -> None:
    for levels in (1, 2, 3):
        noise, root = DiscreteGaussian(levels), Secrets.seeded(3).child(levels)
        total = np.arange(-1000, BLOCK, dtype=np.float32)
        expected = total.astype(np.int64) + noise.draw(len(total), root)
        noise.sampler(root).add_to(total)
        assert np.array_equal(total.astype(np.int64), expected)
    with pytest.raises(InvalidInput, match="levels=4 must be at most 3"):
        DiscreteGaussian(4).sampler(Secrets.seeded(0)).add_to(np.zeros(1, dtype=np.float32))


def test_a_cell_settles_what_its_bits_settle() -> None:
    found = table(SIGMA)
    firsts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    lasts = firsts | np.uint64((1 << 48) - 1)
    lowest, highest = (np.searchsorted(found.high, ends, side="right") - found.reach for ends in (firsts, lasts))
    settled = found.cells != -(1 << 15)
    assert settled.mean() > 0.98
    assert (found.cells[settled] == lowest[settled]).all()
    assert (found.cells[settled] == highest[settled]).all()


def test_a_tie_is_settled_by_64_bits_more() -> None:
    found = table(SIGMA)
    for place in (600, 700, found.reach, 2 * found.reach - 700):
        bound = (int(found.high[place]) << 64) + int(found.low[place])
        expected = [sum(b <= drawn for b in bounds(found)) - found.reach for drawn in (bound - 2, bound + 2)]
        for drawn, value in zip((bound - 2, bound + 2), expected, strict=True):
            top, more = drawn >> 64, drawn & (2**64 - 1)
            cell = np.array([top >> 48], dtype=np.uint16)
            stream = Scripted((top << 16) & (2**64 - 1), more)
            assert found.settle(cell, stream)[0] == value


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
    assert noise.sigma == pytest.approx((128, 8193, 524352, 3.3558529e7, 2.1477458e9)[levels - 1], rel=1e-7)
    assert np.abs(z * noise.sigma).max() < noise.largest


def test_draws_fit_the_exact_distribution() -> None:
    """Chi-square over single values; false alarm once in a million keys."""
    count, reach = 400_000, 400
    drawn = DiscreteGaussian(1).draw(count, Secrets.seeded(6))
    inside = drawn[np.abs(drawn) <= reach]
    seen = np.bincount(inside + reach, minlength=2 * reach + 1)
    expected = exact_pmf(SIGMA, REACH * SIGMA)[REACH * SIGMA - reach : REACH * SIGMA + reach + 1] * count
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(FALSE_ALARM, len(expected))


def test_low_digits_of_large_deviations_are_uniform() -> None:
    """What is added on the coarse grid must leave no comb: 4096 residues, chi-square, once in a million keys."""
    drawn = DiscreteGaussian(3).draw(400_000, Secrets.seeded(7))
    seen = np.bincount(drawn % RADIX**2, minlength=RADIX**2)
    expected = len(drawn) / RADIX**2
    assert ((seen - expected) ** 2 / expected).sum() < chi2.isf(FALSE_ALARM, RADIX**2 - 1)


def test_the_oracle_and_the_table_agree() -> None:
    """Both against the exact probabilities for sigma 3; false alarm once in a million keys."""
    coins, count = Coins(Secrets.seeded(8)), 4_000
    oracle = Counter(coins.gaussian(9) for _ in range(count))
    found = table(3)
    uniform = Secrets.seeded(9).child("cells").words(count) >> np.uint64(48)
    ours = Counter(found.settle(uniform.astype(np.uint16), Secrets.seeded(9).child("rest").stream()).tolist())
    exact = dict(zip(range(-42, 43), exact_pmf(3, 42), strict=True))
    for seen in (oracle, ours):
        bulk = range(-7, 8)
        cells = [(seen[x], exact[x] * count) for x in bulk]
        cells.append((count - sum(n for n, _ in cells), count - sum(e for _, e in cells)))
        assert sum((n - e) ** 2 / e for n, e in cells) < chi2.isf(FALSE_ALARM, len(cells) - 1)


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
    with pytest.raises(InvalidInput, match=r"levels=7 must lie in 1..6"):
        DiscreteGaussian(7)
    with pytest.raises(InvalidInput, match="flat int64"):
        DiscreteGaussian(1).add_to(np.zeros(3), Secrets.seeded(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the lattice shows through"):
        unevenness(0.5)
