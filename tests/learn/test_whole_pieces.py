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
