"""Examples' gradients in whole numbers, added up without being written out.

An example's gradient of a dense layer is an outer product, thousands of times as large as its factors. So each of its
entries is made, scaled, rounded and added where the sum lies, and never stored. All that is in double precision, in
which the product of two float32 is exact: rows are as ``coterie.learn.whole`` has them, and so is what bounds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.learn.kernels import add_whole_outer, squares_in_double
from coterie.learn.whole import require_bound

Doubles = NDArray[np.float64]

MOST = 2.0**500
"""Of a factor: times any single it is finite, so that a gradient of zero does not become NaN and stay in a total."""


class Piece(ABC):
    """The gradients of several examples by one leaf."""

    @abstractmethod
    def numbers(self) -> Tensor:
        """(examples, ...): those that follow from them."""

    @abstractmethod
    def squared(self) -> Doubles:
        """(examples,) squared norms; of each from its own numbers, in an order that their count alone decides."""

    @abstractmethod
    def without(self, examples: NDArray[np.intp]) -> Piece:
        """With zeros for these."""

    @abstractmethod
    def add(self, factors: Doubles, total: Doubles) -> None:
        """Add rint(factor * gradient) of each example to the leaf's total, (numbers,)."""


@dataclass
class OuterProducts(Piece):
    left: Tensor  # (examples, p)
    right: Tensor  # (examples, q)

    @staticmethod
    def rows(built: Tensor) -> OuterProducts:
        """Gradients (examples, ...) that are there in full."""
        return OuterProducts(built.new_ones(len(built), 1), built.reshape(len(built), -1))

    def numbers(self) -> Tensor:
        return torch.cat([self.left, self.right], 1)

    def squared(self) -> Doubles:
        return _squares(self.left) * _squares(self.right)

    def without(self, examples: NDArray[np.intp]) -> Piece:
        return OuterProducts(_cleared(self.left, examples), _cleared(self.right, examples))

    def add(self, factors: Doubles, total: Doubles) -> None:
        add_whole_outer(_array(self.left), _array(self.right), factors, total.reshape(self.left.shape[1], -1))


@dataclass
class ScatteredRows(Piece):
    """Of a table of which an example moves few rows. No two of its rows but such of zeros have the same place."""

    places: Tensor  # (examples, positions)
    rows: Tensor  # (examples, positions, width)

    def numbers(self) -> Tensor:
        return self.rows.flatten(1)

    def squared(self) -> Doubles:
        return _squares(self.rows.flatten(1))

    def without(self, examples: NDArray[np.intp]) -> Piece:
        return ScatteredRows(self.places, _cleared(self.rows, examples))

    def add(self, factors: Doubles, total: Doubles) -> None:
        scaled = torch.from_numpy(factors).view(-1, 1, 1) * self.rows.float().double()
        table = torch.from_numpy(total).view(-1, self.rows.shape[2])
        table.index_add_(0, self.places.flatten(), scaled.round_().flatten(0, 1))


def add_up(
    pieces: Mapping[str, Piece], weights: Doubles, clip: float, inner: float, totals: Mapping[str, Doubles]
) -> None:
    """Add each example's weighted gradient, clipped and in steps of clip / inner; of one that is not finite, nothing.

    ``inner`` is what ``radius`` gives for double precision.
    """
    require_bound(clip)
    with np.errstate(all="ignore"):
        norms = np.sqrt(sum(piece.squared() for piece in pieces.values())) * np.abs(weights)
        factors = weights * (inner / np.maximum(norms, clip))
    kept = np.isfinite(norms) & (np.abs(factors) < MOST)
    factors, lost = np.where(kept, factors, 0.0), np.flatnonzero(~kept)
    for name, piece in pieces.items():
        finite = piece.without(lost) if len(lost) else piece
        finite.add(factors, totals[name])


def _squares(rows: Tensor) -> Doubles:
    found = np.empty(len(rows))
    squares_in_double(_array(rows), found)
    return found


def _array(rows: Tensor) -> NDArray[np.floating]:
    """In single precision, whatever it was: no square of these is lost below the smallest double, nor two's product."""
    found: NDArray[np.floating] = rows.float().contiguous().numpy()
    return found


def _cleared(rows: Tensor, examples: NDArray[np.intp]) -> Tensor:
    return rows.index_fill(0, torch.from_numpy(examples), 0)
