"""A release in whole numbers costs what is said, in small cases by exact enumeration, and adds up exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, RandomizedResponseDpEvent
from dp_accounting.pld import privacy_loss_distribution
from numpy.typing import NDArray
from tests.references.discrete_gaussian import probabilities

from coterie.errors import InvalidInput
from coterie.learn.whole import step_of, whole_rows
from coterie.privacy.accounting import delta_of, dpsgd_events, epsilon_near, epsilon_of
from coterie.privacy.grid import LEAST_UNITS, ROUNDING, NoiseGrid, least_units
from coterie.privacy.noise import DiscreteGaussian, unevenness
from coterie.rng import Rng, Secrets

S, REACH = 5.0, 70


def pmf(shift: int) -> NDArray[np.float64]:
    return np.roll(np.array([float(p) for p in probabilities(S, REACH)]), shift)


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("shift", [(1, 0), (3, 0), (3, 1), (2, 2), (7, 4)])
def test_a_vector_costs_no_more_than_the_real_gaussian_it_is_priced_as(shift: tuple[int, int], epsilon: float) -> None:
    """All outcomes of two entries, at a deviation of 5 steps; with r = 2 the price is that of sqrt(21)."""
    here = np.outer(pmf(0), pmf(0))
    there = np.outer(pmf(shift[0]), pmf(shift[1]))
    multiplier = math.sqrt(S**2 - ROUNDING**2) / math.hypot(*shift)
    charged = math.exp(2 * unevenness(ROUNDING)) * delta_of([GaussianDpEvent(multiplier)], epsilon)
    for p, q in ((here, there), (there, here)):
        assert hockey_stick(p, q, epsilon) <= charged + 1e-14


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("shift", [1, 5])
def test_sampled_releases_cost_no_more_than_sampled_gaussians(rate: float, shift: int) -> None:
    """One step of DP-SGD with and without the example, enumerated, both ways round."""
    without, with_it = pmf(0), (1 - rate) * pmf(0) + rate * pmf(shift)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(math.sqrt(S**2 - ROUNDING**2) / shift))
    for delta in (1e-2, 1e-4, 1e-6):
        epsilon = epsilon_of([event], delta, precision=1e-3)
        assert max(hockey_stick(with_it, without, epsilon), hockey_stick(without, with_it, epsilon)) <= delta


def test_the_price_is_no_looser_than_what_is_known() -> None:
    """Concentrated DP is looser; the exact loss distribution in one dimension, where there is one, is as tight."""
    grid = NoiseGrid(units=4096, multiple=1, noise=DiscreteGaussian(1))  # a quarter of the deviation
    ours = epsilon_near([GaussianDpEvent(grid.multiplier)], 1e-6, grid.ripple)
    one_dimension = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        sigma=128, sensitivity=32
    ).get_epsilon_for_delta(1e-6)
    assert ours == pytest.approx(one_dimension, rel=2e-3)
    rho = 1 / (2 * 4.0**2)
    concentrated = rho + 2 * math.sqrt(rho * math.log(1e6))
    assert ours < 0.9 * concentrated


def test_what_discreteness_costs_dpsgd() -> None:
    grid = NoiseGrid.planned(1.0, most=1 << 18)
    real = epsilon_of(dpsgd_events(0.02, 1.0, 300), 1e-5)
    entries = 300 * 159_010
    ours = epsilon_near(dpsgd_events(0.02, grid.multiplier, 300), 1e-5, entries * grid.ripple)
    assert ours == pytest.approx(real, rel=1e-4)


@pytest.mark.parametrize("multiplier", [1e-3, 0.5, 1.0, 4.2247, 63.0, 5e4])
@pytest.mark.parametrize("shares", [1, 3, 2000])
@pytest.mark.parametrize("most", [1 << 15, 1 << 18, 1 << 30])
def test_a_plan_meets_its_multiplier_and_wastes_nothing(multiplier: float, shares: int, most: int) -> None:
    grid = NoiseGrid.planned(multiplier, most, shares=shares)
    assert multiplier <= grid.multiplier <= multiplier * (1 + 1.1 / grid.units)
    assert LEAST_UNITS // 2 <= grid.units <= most
    assert grid.deviation == pytest.approx(grid.multiplier, rel=1e-3)
    assert grid.capacity > 10**6
    assert grid.ripple < 4e-30


def test_a_plan_takes_the_cheapest_noise() -> None:
    assert NoiseGrid.planned(1.0, 1 << 18).noise.levels == 2
    assert NoiseGrid.planned(1.0, 1 << 30, least=100).noise.levels == 1
    assert NoiseGrid.planned(1.0, 1 << 40, least=least_units(11_000_000)).noise.levels == 2
    assert NoiseGrid.planned(100.0, 1 << 18).noise.levels == 3
    with pytest.raises(InvalidInput, match=r"multiplier=10000000.0 must be at most 8.39e\+06"):
        NoiseGrid.planned(1e7, 1 << 18)


def test_capacity_is_below_overflow() -> None:
    for grid in (NoiseGrid.planned(1e-3, 1 << 40, shares=2000), NoiseGrid.planned(4.0, 1 << 16)):
        assert grid.capacity * (grid.sensitivity + grid.noise.largest) < 2**63
    with pytest.raises(InvalidInput, match="no room in 64 bits"):
        NoiseGrid(1 << 40, 1 << 40, DiscreteGaussian(1))


def test_exact_sums_are_the_same_whoever_adds_the_noise() -> None:
    """One client's rows put on the grid, added in any order, with noise at the end, in shares, or at each client."""
    rows = torch.randn(6, 40, generator=Rng.seeded(0).torch(), dtype=torch.float64)
    grid = NoiseGrid.planned(2.0, 1 << 30, shares=6)
    whole = whole_rows(rows, 3.0, grid.units).numpy().astype(np.int64)
    root = Secrets.seeded(1)
    alone = [grid.noised(np.zeros(40), root.child("client", i)) for i in range(6)]
    shares = [grid.noised(row, root.child("client", i)) for i, row in enumerate(whole)]
    assert np.array_equal(sum(shares), whole[::-1].sum(0) * grid.multiple + sum(alone))
    words = [share.view(np.uint64) for share in shares]
    wrapped = np.add.reduce([word + np.uint64(2**63 + 5) for word in words]) - np.uint64(6 * (2**63 + 5) % 2**64)
    assert np.array_equal(wrapped.view(np.int64), sum(shares))
    released = grid.values(sum(shares, np.zeros(40, dtype=np.int64)), step_of(3.0, grid.units, 40, torch.float64))
    clipped = rows * (3.0 / rows.norm(dim=1, keepdim=True)).clamp_max(1)
    noise = released - clipped.sum(0).numpy()
    assert 2.6 < noise.std() < 9.4  # a deviation of 2 * 3, by five standard errors: once in a million keys


@pytest.mark.parametrize("multiplier", [1.0, 0.05])
def test_a_large_release_is_the_small_steps_in_one(multiplier: float) -> None:
    """In single precision or not, with a grid of the noise that is finer or not, over what was added up or not."""
    grid, nodes = NoiseGrid.planned(multiplier, 1 << 16, 1 << 12), [Secrets.seeded(2), Secrets.seeded(3)]
    total = np.stack([np.arange(-70_000, 70_001), np.arange(140_001)])
    expected = [
        grid.values(grid.noised(rows, node), 0.01 * (1 + at))
        for at, (rows, node) in enumerate(zip(total, nodes, strict=True))
    ]
    for kind in (np.int64, np.float64, np.int32):
        for largest in (140_001, 1 << 30):
            same, origins = total.astype(kind), [[row] for row in total]
            out = grid.release(iter(same), origins, [0.01, 0.02], nodes, largest, total.shape[1])
            assert out.dtype == np.float32
            assert np.allclose(out, expected, rtol=1e-6)
    huge = np.array([[2**40, -(2**40)]])
    assert np.allclose(grid.release(huge.copy(), [[huge]], [1.0], nodes[:1], 2**41, 2), huge, rtol=1e-5)
    with pytest.raises(InvalidInput, match="length of a total=2 must be the parameters', 1"):
        grid.release(huge.copy(), [[huge]], [1.0], nodes[:1], 2**41, 1)


def test_noise_of_a_release_hangs_on_what_the_total_follows_from() -> None:
    grid, total = NoiseGrid.planned(1.0, 1 << 14, 1 << 12), np.zeros(200, dtype=np.int32)
    root, origins = Secrets.from_entropy(), [np.arange(3), np.arange(1, 4), np.arange(3)]
    totals = [total.copy() for _ in origins]
    out = grid.release(totals, [[part] for part in origins], [1.0] * 3, [root] * 3, 1, 200)
    assert np.array_equal(out[0], out[2])
    assert np.std(out[0] - out[1]) > 0.7 * grid.noise.sigma  # sqrt(2) expected: once in 1e30 keys


def test_what_is_released_is_a_function_of_the_noised_sum_alone() -> None:
    """The same sum of total and noise gives the same bits, however it came about: nothing was scaled before."""
    grid, node = NoiseGrid.planned(1.0, 1 << 14, 1 << 12), Secrets.seeded(5)
    noise, shift = grid.noise.draw(5000, node), 977
    out = grid.release([np.full(5000, shift)], [[]], [0.0123], [node], 1 << 20, 5000)
    moved = grid.release([noise + shift - noise[::-1]], [[]], [0.0123], [node], 1 << 20, 5000)
    sums: dict[int, np.float32] = {}
    for total, bits in zip([*(noise + shift), *(2 * noise + shift - noise[::-1])], [*out[0], *moved[0]], strict=True):
        assert sums.setdefault(int(total), bits) == bits


def test_ripples_are_charged_to_epsilon_however_large_it_is() -> None:
    """Every probability within e^+-ripple: by hand, on the two outcomes of randomised response with p = 3/4."""
    events: list[DpEvent] = [GaussianDpEvent(4.0)]
    assert epsilon_near(events, 1e-6, 0.0) == epsilon_of(events, 1e-6)
    assert epsilon_near(events, 1e-6, 1e-3) == pytest.approx(epsilon_of(events, 1e-6 * math.exp(-1e-3)) + 2e-3)
    for multiplier in (0.1, 0.01):  # epsilons of some hundred and ten thousand
        large: list[DpEvent] = [GaussianDpEvent(multiplier)]
        assert epsilon_of(large, 1e-6) <= epsilon_near(large, 1e-6, 1e-20) < math.inf
    response = RandomizedResponseDpEvent(0.5, 2)
    truth, ripple = 0.75, 0.01
    off = truth * math.exp(ripple), (1 - truth) * math.exp(-ripple)
    assert math.log(off[0] / off[1]) == pytest.approx(epsilon_near([response], 0.0, ripple))
    assert epsilon_near([GaussianDpEvent(0.0)], 1e-6, 1e-30) == math.inf
    with pytest.raises(InvalidInput, match=r"ripple=-1 must not be negative"):
        epsilon_near(events, 1e-6, -1)
