"""Gradients that are added up without being written out: whole, never longer than promised, each example's its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.references.squares import squared_norms
from torch import Tensor

from coterie.learn.whole import radius
from coterie.learn.whole_pieces import OuterProducts, Piece, ScatteredRows, add_up

WORDS, WIDTH = 5, 3


def drawn(draws: torch.Generator, *shape: int) -> Tensor:
    """Of very different sizes, some zero, some as large as floats are."""
    plain = torch.randn(shape, generator=draws) * 10.0 ** torch.randint(-8, 8, shape, generator=draws)
    kind = torch.randint(12, shape, generator=draws)
    return plain.masked_fill(kind == 0, 0).masked_fill(kind == 1, 1e-44).masked_fill(kind == 2, 3e38)


def pieces_of(draws: torch.Generator, examples: int, p: int, q: int) -> dict[str, Piece]:
    tokens = torch.stack([torch.randperm(WORDS, generator=draws)[:4] for _ in range(examples)])
    return {
        "weight": OuterProducts(drawn(draws, examples, p), drawn(draws, examples, q)),
        "bias": OuterProducts.rows(drawn(draws, examples, p)),
        "words": ScatteredRows(tokens, drawn(draws, examples, 4, WIDTH)),
    }


def summed(pieces: dict[str, Piece], weights: NDArray[np.float64], clip: float, units: int, p: int, q: int) -> Tensor:
    sizes = {"weight": p * q, "bias": p, "words": WORDS * WIDTH}
    totals = {name: np.zeros(size) for name, size in sizes.items()}
    add_up(pieces, weights, clip, radius(units, sum(sizes.values()), torch.float64), totals)
    return torch.from_numpy(np.concatenate(list(totals.values())))


def some(pieces: dict[str, Piece], rows: Tensor) -> dict[str, Piece]:
    chosen: dict[str, Piece] = {}
    for name, piece in pieces.items():
        match piece:
            case OuterProducts(left, right):
                chosen[name] = OuterProducts(left[rows], right[rows])
            case ScatteredRows(places, own):
                chosen[name] = ScatteredRows(places[rows], own[rows])
    return chosen


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.integers(1, 40),
    st.sampled_from([2.0**-50, 1e-3, 1.0, 2.0**50]),
    st.sampled_from([64, 1000, 1 << 20, 1 << 40]),
)
def test_no_example_is_longer_than_its_units_and_all_add_up(seed: int, p: int, q: int, clip: float, units: int) -> None:
    draws, examples = torch.Generator().manual_seed(seed), 5
    pieces = pieces_of(draws, examples, p, q)
    weights = np.array([1.0, 0.0, 1e-3, 7.0, 1e30])
    alone = [
        summed(some(pieces, torch.tensor([row])), weights[[row]], clip, units, p, q).numpy() for row in range(examples)
    ]
    assert all(np.array_equal(one, np.rint(one)) for one in alone)
    assert max(squared_norms(np.array(alone).astype(np.int64))) <= units**2
    assert not alone[1].any()
    for order in (torch.arange(5), torch.tensor([4, 2, 0, 3, 1])):
        found = summed(some(pieces, order), weights[order.numpy()], clip, units, p, q)
        assert found.tolist() == sum(alone).tolist()  # type: ignore[union-attr]


def test_entries_that_all_round_up() -> None:
    """Just above a half, on the bound: rounding adds all it can."""
    length, units = 32 * 32, 256
    inner = radius(units, length, torch.float64)
    entry = (math.floor(inner / 32) + 0.5 + 2.0**-10) / inner
    total = np.zeros(length)
    factor = torch.full((1, 32), math.sqrt(entry))
    add_up({"weight": OuterProducts(factor, factor)}, np.ones(1), 1.0, inner, {"weight": total})
    assert squared_norms(total.astype(np.int64)[None])[0] <= units**2
    assert total[0] == math.ceil(entry * inner) or total[0] == math.floor(entry * inner)


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weight", "bias", "words", "of its loss"])
def test_what_is_not_finite_counts_as_zero(lost: float, where: str) -> None:
    draws = torch.Generator().manual_seed(0)
    pieces, weights = pieces_of(draws, 4, 3, 7), np.ones(4)
    others = summed(some(pieces, torch.tensor([0, 1, 3])), weights[:3], 1.0, 1000, 3, 7)
    match pieces.get(where):
        case OuterProducts(_, right):
            right[2, 0] = lost
        case ScatteredRows(_, rows):
            rows[2, 0, 0] = lost
        case _:
            weights[2] = lost
    assert torch.equal(summed(pieces, weights, 1.0, 1000, 3, 7), others)


@pytest.mark.parametrize("entries", [(1e-163, 3e153), (1e-170, 1.0), (1e-90, 1e-90), (1e160, 1e-160), (1e-45, 3e38)])
@pytest.mark.parametrize("weight", [1.0, 1e170, 1e300])
@pytest.mark.parametrize("clip", [2.0**-50, 1.0])
def test_no_square_is_lost_where_leaves_are_in_double_precision(
    entries: tuple[float, float], weight: float, clip: float
) -> None:
    """Of doubles, squares and products of squares may be zero where the gradient is longer than the bound."""
    left, right = (torch.full((1, 4), entry, dtype=torch.float64) for entry in entries)
    rows = ScatteredRows(torch.tensor([[1, 0]]), right.view(1, 2, 2))
    totals = {"weight": np.zeros(16), "words": np.zeros(4)}
    pieces: dict[str, Piece] = {"weight": OuterProducts(left, right), "words": rows}
    add_up(pieces, np.array([weight]), clip, radius(1 << 20, 20, torch.float64), totals)
    assert sum(int(entry) ** 2 for total in totals.values() for entry in total) <= 1 << 40


@pytest.mark.parametrize("weight", [1e60, 1e280, 1e300, -1e307])
def test_a_gradient_of_zero_under_a_huge_weight_is_zero(weight: float) -> None:
    """An infinite factor, or one that becomes so on the way, times zero would be NaN: in the total, for everybody."""
    total = np.zeros(8)
    pieces = {"weight": OuterProducts(torch.full((2, 2), 3e38), torch.zeros(2, 4))}
    pieces["weight"].right[1] = 1e-3
    add_up(pieces, np.array([weight, 1e-30]), 2.0**-50, radius(1 << 20, 8, torch.float64), {"weight": total})
    assert np.isfinite(total).all()
    assert total.all()
