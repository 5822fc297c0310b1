"""The sum of clipped per-example gradients of dense layers in whole numbers, from one matrix product a layer.

A matrix product in float32 rounds each partial sum, so what one example changes in it is not bounded by the clipping
norm. Here it is: an example's gradient of a layer is an outer product delta x input, and the outer product of two
vectors of whole numbers is one too. With norms of at most ``units`` steps and n examples, every partial sum of

    sum over examples of  round(beta_i delta_i)  x  round(alpha_i input_i),      alpha_i beta_i = scale of example i,

is a whole number of at most n * units. The product is thus exact, whatever the order, the blocking, the number of
threads or fused multiply-adds: all factors are bytes, whose product takes a third of the time of the plain one
(``coterie.learn.whole_products``).
So an example that is added or removed moves the sum by its own whole-number gradient, whose norm over all layers

    sqrt(sum over layers of |round(alpha x)|^2 |round(beta d)|^2 + |round(scale d)|^2)  <=  units

is computed exactly, and enforced: no slack has to be added to the sensitivity. (Bounding the error of float sums
instead, as n gamma_n on each side with gamma_n = n u / (1 - n u), costs 3e-4 of the clipping norm for batches of 50
and 3 % for 500.) Rounding moves an example's gradient by about 8 % of its norm at units = 2^14 and widths (784, 200),
unsystematically; noise of a multiplier 1 on these 159,010 parameters is 400 times the clipping norm.

What this does not do: the inputs and deltas must each be a function of their own example. Matrix products of another
*width* are rounded differently, in every row: with ReLU, another example's gradient can then change altogether. So all
batches must be padded to one public width (at least 16), and ``stands_alone`` tries a model's pass on the machine at
hand; where its rows do not stand alone, examples are passed one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import require
from coterie.learn.kernels import round_rows, split_scales
from coterie.learn.whole import require_bound, row_squares
from coterie.learn.whole_products import BYTE, SummedOuterProducts, factor_kind

BYTE_UNITS = 1 << 14
"""The most: inputs and deltas are scaled to a norm of 127 at most each, and so are bytes."""

LEAST_UNITS = 1 << 12
"""Enough for gradients: rounding moves each example by about a tenth of the clipping norm, unsystematically, which adds
up to the clipping norm in a batch of 50. Noise on 159,010 parameters has 400 times that norm at multiplier 1."""

WITHIN_BYTES = BYTE * (BYTE + 2)
"""A row of whole numbers whose square is no larger has no entry beyond 127: that of 128 is larger by one."""

BEYOND = 1 << 15
"""A bias gradient with such an entry is longer than any number of units."""

Singles = NDArray[np.float32]


@np.errstate(all="ignore")  # what overflows or is not a number is found by its norm, and counts as zero
def exact_dense_sums(inputs: Sequence[Tensor], deltas: Sequence[Tensor], clip: float, units: int) -> DenseSums:
    """Each client's sums of weight and bias gradients, layer by layer, in steps of ``gradient_step``, (length,) int32.

    Inputs are (clients, batch, width) and deltas, the loss's derivative by the layer's output, too; padding has deltas
    of zero, and is computed like all else, for the time that it takes must not tell how much of it there is. An example
    whose squares overflow, or that has NaN, counts as zero.
    """
    require_bound(clip)
    require(1 <= units <= BYTE_UNITS, "units", units, f"must lie in 1..{BYTE_UNITS}")
    shape = tuple(inputs[0].shape[:2]) if inputs else ()
    require(len(shape) == 2 and min(shape) > 0, "clients and batch", shape, "must be at least one of each")
    sides = [_rows(part) for pair in zip(inputs, deltas, strict=True) for part in pair]
    factors, kind = _factors(sides, clip, units), _kind(sides, batch := inputs[0].shape[1])
    rounded = _Rounded(sides, factors, batch, kind)
    over = rounded.longer_than(units)
    if len(over):
        few = [rows[over] for rows in sides]
        rounded.overwrite(over, _Rounded(few, factors[:, over], len(over), kind, towards_zero=True))
        rounded.clear(rounded.longer_than(units))
    return DenseSums(rounded, units)


class DenseSums:
    """Each client's sums, one after the other. The next client's take their memory: one client's stay in the cache."""

    def __init__(self, rounded: _Rounded, units: int) -> None:
        layers = list(zip(rounded.factors[::2], rounded.factors[1::2], strict=True))
        self._products = [SummedOuterProducts(delta, given, units) for given, delta in layers]
        self._biases = [bias.sum(1, dtype=np.int32) for bias in rounded.biases]  # (clients, outputs)
        self._lengths = [delta.shape[2] * (given.shape[2] + 1) for given, delta in layers]
        self._origins = [rounded.together, *self._biases]

    def origin(self, client: int) -> list[NDArray[np.generic]]:
        """Numbers that the client's sums follow from."""
        return [part[client] for part in self._origins]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        total = np.empty(sum(self._lengths), dtype=np.int32)
        for client in range(len(self._biases[0])):
            start = 0
            for product, bias, length in zip(self._products, self._biases, self._lengths, strict=True):
                end = start + length - bias.shape[1]
                product.into(torch.from_numpy(total[start:end]), client)
                total[end : start + length] = bias[client]
                start += length
            yield total


def gradient_step(clip: float, units: int, shapes: Sequence[tuple[int, int]]) -> float:
    """What one step of ``exact_dense_sums`` is worth, for layers of these (inputs, outputs)."""
    return clip / _aim(units, shapes)


def _aim(units: int, shapes: Sequence[tuple[int, int]]) -> float:
    """The norm that clipped gradients are scaled to: ``units`` less what rounding adds on average and 3 deviations.

    Rounding adds a twelfth to each squared entry on average, and 0.29 times the norm at random. Those that are longer
    still are rounded towards zero, which takes more off them.
    """
    aim = 1.0
    for inputs, outputs in shapes:
        ratio = _ratio(inputs, outputs, units)
        added = inputs / (24 * units * ratio) + outputs * ratio / (24 * units)
        aim = min(aim, 1 - added - 3 * math.sqrt((ratio + 1 / ratio) / (12 * units)))
    require(aim > 0.5, "units", units, f"are too few for layers of {list(shapes)}; take more")
    return min(aim * units, BYTE**2)


def _ratio(inputs: int, outputs: int, units: int) -> float:
    """Of the norms of input and delta: that of their widths' roots, while both are bytes."""
    most = max(1.0, BYTE**2 / units)
    return min(max(math.sqrt(inputs / outputs), 1 / most), most)


def _rows(stack: Tensor) -> Singles:
    """(clients * batch, width)"""
    return stack.flatten(0, 1).contiguous().numpy()


def _kind(sides: Sequence[Singles], batch: int) -> type[np.generic]:
    """Of the factors: bytes, if products of all of these are exact in bytes."""
    kinds = {
        factor_kind(batch, delta.shape[1], given.shape[1]) for given, delta in zip(sides[::2], sides[1::2], strict=True)
    }
    return kinds.pop() if len(kinds) == 1 else np.float32


def _factors(sides: Sequence[Singles], clip: float, units: int) -> Singles:
    """Steps for a unit of each example's gradient, and what of it each layer's input and delta take: both lose the
    same part by rounding. (1 + 2 layers, clients * batch); zero where a gradient is not finite."""
    widths, squares = [rows.shape[1] for rows in sides], np.stack([row_squares(rows) for rows in sides])
    shapes = list(zip(widths[::2], widths[1::2], strict=True))
    factors = np.empty((1 + len(sides), squares.shape[1]), dtype=np.float32)
    ratios = np.array([_ratio(*shape, units) for shape in shapes])
    split_scales(squares, ratios, clip, _aim(units, shapes), factors)
    return factors


class _Rounded:
    """All layers' inputs, deltas and bias gradients in whole numbers, (clients, batch, ...), and their squares."""

    def __init__(
        self, sides: Sequence[Singles], factors: Singles, batch: int, kind: type[np.generic], towards_zero: bool = False
    ) -> None:
        """Sides are (clients * batch, width): inputs and deltas in turn."""
        clients, self._batch = len(sides[0]) // batch, batch
        widths = [rows.shape[1] for rows in sides]
        starts = [batch * sum(widths[:place]) for place in range(len(widths))]
        self.together = np.empty((clients, batch * sum(widths)), dtype=kind)  # a client's stand side by side
        biases = [np.empty((clients, batch * width), dtype=np.int32) for width in widths[1::2]]
        self._squares = np.empty((len(sides) + len(biases), clients * batch), dtype=np.int64)
        for place, (rows, start) in enumerate(zip(sides, starts, strict=True)):
            scales, squares = factors[1 + place], self._squares[place]
            round_rows(rows, scales, BYTE + 1, towards_zero, self.together, start, squares)
        for rows, bias, squares in zip(sides[1::2], biases, self._squares[len(sides) :], strict=True):
            round_rows(rows, factors[0], BEYOND, towards_zero, bias, 0, squares)
        self.biases = [bias.reshape(clients, batch, -1) for bias in biases]
        self.factors = [
            self.together[:, start : start + batch * width].reshape(clients, batch, width)
            for start, width in zip(starts, widths, strict=True)
        ]

    def longer_than(self, units: int) -> NDArray[np.intp]:
        """The examples that are, or of which an entry of a factor is no byte."""
        factors, biases = np.split(self._squares, [len(self.factors)])
        squared = (factors[::2] * factors[1::2] + biases).sum(0)
        return np.flatnonzero((squared > units**2) | (factors > WITHIN_BYTES).any(0))

    def overwrite(self, places: NDArray[np.intp], other: _Rounded) -> None:
        for mine, theirs in zip(self.factors + self.biases, other.factors + other.biases, strict=True):
            mine[np.divmod(places, self._batch)] = theirs[0]
        self._squares[:, places] = other._squares

    def clear(self, places: NDArray[np.intp]) -> None:
        for part in self.factors + self.biases:
            part[np.divmod(places, self._batch)] = 0


TRIALS = 32
"""Of a product with few columns, a row in another place may differ once in sixty times: one trial overlooks that."""


def stands_alone(
    kernel: Callable[[Tensor], Tensor], drawn: Callable[[torch.Generator], Tensor], trials: int = TRIALS
) -> bool:
    """Whether each row of the kernel's result has the same bits wherever the row stands and whatever the others hold.

    ``drawn`` gives rows (clients, batch, ...) at random, with the public width that is used. The order of operations in
    a matrix product of a given shape does not depend on the values; that it does not depend on the row's place either
    is tried here, on many rows: where it does, most rows come out the same all the same.
    """
    draws = torch.Generator().manual_seed(0)
    return all(_stand_alone(kernel, drawn(draws)) for _ in range(trials))


def _stand_alone(kernel: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    expected = kernel(rows)
    width = rows.shape[1]
    for shift in {1, width // 2, width - 1}:
        if not torch.equal(kernel(rows.roll(shift, 1)).roll(-shift, 1), expected):
            return False
    alone = torch.zeros_like(rows)
    alone[:, : width // 2] = rows[:, : width // 2]
    return bool(torch.equal(kernel(alone)[:, : width // 2], expected[:, : width // 2]))
