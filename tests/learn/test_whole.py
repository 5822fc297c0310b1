"""Rows on the grid: never longer than promised, whatever floats they hold, and each a function of itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from tests.references.squares import squared_norms
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.whole import (
    SINGLE_UNITS,
    exact_squares,
    radius,
    row_factors,
    step_of,
    tight_rows,
    whole_rows,
)
from coterie.rng import Rng


def as_ints(steps: Tensor) -> NDArray[np.int64]:
    assert bool((steps == steps.round()).all())
    return steps.numpy().astype(np.int64)


def longest(steps: Tensor) -> int:
    return max(squared_norms(as_ints(steps)), default=0)


finite = st.floats(-(2.0**126), 2.0**126, width=32)
rows_of = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(lambda s: arrays(np.float32, s, elements=finite))


@settings(max_examples=200, deadline=None)
@given(rows_of, st.sampled_from([2.0**-50, 1e-3, 1.0, 3.7, 2.0**50]), st.sampled_from([8, 100, 65_536, 2**22, 2**30]))
def test_no_row_is_longer_than_its_units(rows: NDArray[np.float32], bound: float, units: int) -> None:
    for dtype in (torch.float32, torch.float64):
        values = torch.from_numpy(rows).to(dtype)
        steps = whole_rows(values, bound, units)
        assert longest(steps) <= units**2
        alone = torch.cat([whole_rows(row[None].clone(), bound, units) for row in values])
        assert torch.equal(steps, alone)
    tight, _ = tight_rows(torch.from_numpy(rows), bound, 64)
    assert longest(tight) <= 64**2


@pytest.mark.parametrize("length", [1, 2, 3, 17, 100, 5_000])
@pytest.mark.parametrize("units", [256, 65_536])
def test_rows_that_all_round_up(length: int, units: int) -> None:
    """Rows on the bound whose every entry lies just above a half: rounding adds all it can."""
    inner = radius(units, length, torch.float32)
    whole = math.floor(inner / math.sqrt(length)) + 0.5 + 2.0**-10
    rows = torch.full((3, length), whole / inner, dtype=torch.float64).float() * torch.tensor([[1.0], [1.0001], [50.0]])
    assert longest(whole_rows(rows, 1.0, units)) <= units**2
    if units == 256 and length <= 100:
        assert longest(tight_rows(rows, 1.0, units)[0]) <= units**2


def test_values_come_back_within_half_a_step() -> None:
    rows = torch.randn(50, 30, generator=Rng.seeded(0).torch())
    bound = 2 * float(rows.norm(dim=1).max())
    for dtype in (torch.float32, torch.float64):
        step = step_of(bound, 65_536, 30, dtype)
        assert step == pytest.approx(bound / 65_536, rel=2e-4)
        back = whole_rows(rows.to(dtype), bound, 65_536).double() * step
        assert float((back - rows).abs().max()) <= 0.5001 * step + 1e-6 * bound / 100
    steps, step = tight_rows(rows, bound, 1024)
    assert float((steps * step - rows).abs().max()) <= 0.501 * step


def test_a_record_of_1e16_or_3e38_is_clipped_like_others() -> None:
    for size in (1e16, 1e30, 3e38):
        steps = whole_rows(torch.tensor([[size, 0.0, -size]]), 1.0, 1000)
        expected = 1000 / math.sqrt(2)
        assert as_ints(steps)[0].tolist() == pytest.approx([expected, 0, -expected], abs=2)


def test_a_row_s_place_and_neighbours_do_not_matter() -> None:
    """Bits of the factors, for all small lengths: vector instructions must not see where a row begins."""
    draws = Rng.seeded(1).torch()
    for length in [*range(1, 40), 100, 129, 8193, 20_000]:
        rows = torch.randn(57, length, generator=draws) * 3
        whole = row_factors(rows, 1.0, 1000.0)
        for start in (1, 2, 3, 8, 31):
            assert torch.equal(row_factors(rows[start:], 1.0, 1000.0), whole[start:])
            assert torch.equal(row_factors(rows[start : start + 1].clone(), 1.0, 1000.0), whole[start : start + 1])


@pytest.mark.parametrize("units", [1000, 1 << 20, 1 << 40])
def test_sums_of_rows_are_the_same_in_any_order(units: int) -> None:
    rows = torch.randn(300, 20, generator=Rng.seeded(2).torch())
    expected = as_ints(whole_rows(rows, 2.0, units)).sum(0)
    parts = [whole_rows(part, 2.0, units).sum(0, dtype=torch.float64) for part in (rows.flip(0), rows[:7], rows[7:])]
    assert parts[0].tolist() == (parts[1] + parts[2]).tolist() == expected.tolist()


def test_squares_prove_themselves_or_are_infinite() -> None:
    below, above = torch.full((1, 16), 1023.0), torch.full((1, 17), 1024.0)
    assert exact_squares(below).tolist() == [16 * 1023**2]
    assert exact_squares(above).tolist() == [math.inf]
    assert exact_squares(above.double()).tolist() == [17 * 1024**2]
    assert exact_squares(torch.tensor([[math.nan]])).tolist() == [math.inf]


def test_what_has_no_grid_is_named() -> None:
    rows = torch.ones(2, 100)
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        whole_rows(torch.tensor([[1.0, math.nan]]), 1.0, 100)
    with pytest.raises(InvalidInput, match=r"clipping bound=0.0"):
        whole_rows(rows, 0.0, 100)
    with pytest.raises(InvalidInput, match="units=4 must be at least 6 for rows of 100 entries"):
        whole_rows(rows, 1.0, 4)
    with pytest.raises(InvalidInput, match="double precision"):
        radius(1 << 20, 1 << 22, torch.float32)
    with pytest.raises(InvalidInput, match="too few"):
        tight_rows(torch.ones(1, 4000), 1.0, 8)
    with pytest.raises(InvalidInput, match=r"must be torch.float32"):
        tight_rows(rows.double(), 1.0, 64)


@pytest.mark.parametrize("units", [1000, SINGLE_UNITS + 1])
def test_rows_that_are_not_finite_are_cleared_and_long_ones_are_not(units: int) -> None:
    """Squares of 3e38 overflow as those of infinity do, but their row is finite, and is clipped like any other."""
    rows = torch.tensor([[3e38, -3e38], [math.inf, 1.0], [-math.inf, math.inf], [1.0, math.nan], [3.0, 4.0], [0, 0]])
    expected = whole_rows(torch.tensor([[3e38, -3e38], [0, 0], [0, 0], [0, 0], [3.0, 4.0], [0, 0]]), 1.0, units)
    assert torch.equal(whole_rows(rows, 1.0, units, cleared=True), expected)
    assert bool(expected[0].abs().min() > 0.7 * (units - 2))
