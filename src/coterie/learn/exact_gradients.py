"""The sum of clipped per-example gradients of dense layers in whole numbers, from one matrix product a layer.

A matrix product in float32 rounds each partial sum, so what one example changes in it is not bounded by the clipping
norm. Here it is: an example's gradient of a layer is an outer product delta x input, and the outer product of two
vectors of whole numbers is one too. With norms of at most ``units`` steps and n examples, every partial sum of

    sum over examples of  round(beta_i delta_i)  x  round(alpha_i input_i),      alpha_i beta_i = scale of example i,

is a whole number of at most n * units. The product is thus exact, whatever the order, the blocking, the number of
threads or fused multiply-adds: with up to 2^14 units all factors are bytes, and their product takes a third of the
time of the plain one (``coterie.learn.whole_products``); below 2^24, float32 holds the sums.
So an example that is added or removed moves the sum by its own whole-number gradient, whose norm over all layers

    sqrt(sum over layers of |round(alpha x)|^2 |round(beta d)|^2 + |round(scale d)|^2)  <=  units

is computed, rounded up, and enforced: no slack has to be added to the sensitivity. (Bounding the error of float sums
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
from coterie.learn.whole import exact_squares, require_bound, row_squares, square_bounds
from coterie.learn.whole_products import BYTE, EXACT, SummedOuterProducts

BYTE_UNITS = 1 << 14
"""Up to here, inputs and deltas are scaled to a norm of 127 at most each, and so are bytes."""

LEAST_UNITS = 1 << 12
"""Enough for gradients: rounding moves each example by about a tenth of the clipping norm, unsystematically, which adds
up to the clipping norm in a batch of 50. Noise on 159,010 parameters has 400 times that norm at multiplier 1."""

WITHIN_BYTES = BYTE * (BYTE + 2)
"""A row of whole numbers whose square is no larger has no entry beyond 127: that of 128 is larger by one."""

FINEST = 1 << 20
"""More units than that are never needed, and leave no room to split them unevenly."""

Doubles = NDArray[np.float64]


@np.errstate(all="ignore")  # what overflows or is not a number is found by its norm, and counts as zero
def exact_dense_sums(inputs: Sequence[Tensor], deltas: Sequence[Tensor], clip: float, units: int) -> DenseSums:
    """Each client's sums of weight and bias gradients, layer by layer, in steps of ``gradient_step``, (length,) int32.

    Inputs are (clients, batch, width) and deltas, the loss's derivative by the layer's output, too; padding has deltas
    of zero, and is computed like all else, for the time that it takes must not tell how much of it there is. An example
    whose squares overflow, or that has NaN, counts as zero.
    """
    require_bound(clip)
    require(1 <= units <= FINEST, "units", units, f"must lie in 1..{FINEST}")
    pairs = list(zip(inputs, deltas, strict=True))
    lengths = [(_squares(given), _squares(delta)) for given, delta in pairs]
    scales = _scales(lengths, clip, _aim(units, [(given.shape[2], delta.shape[2]) for given, delta in pairs]))
    factors = [_split(*pair, *squares, scales, units) for pair, squares in zip(pairs, lengths, strict=True)]
    bytes_only = units <= BYTE_UNITS
    rounded = [
        _Rounded.of(*pair, scales, *each, torch.round_, bytes_only) for pair, each in zip(pairs, factors, strict=True)
    ]
    over = _squared(rounded, bytes_only) > float(units) ** 2
    if over.any():
        places = torch.from_numpy(over).view(inputs[0].shape[:2])
        for layer, (given, delta), (alpha, beta) in zip(rounded, pairs, factors, strict=True):
            few = scales[over], alpha[over], beta[over]
            layer.overwrite(
                places, _Rounded.of(given[places][None], delta[places][None], *few, torch.trunc_, bytes_only)
            )
        gone = torch.from_numpy(_squared(rounded, bytes_only) > float(units) ** 2).view(places.shape)
        for layer in rounded:
            layer.clear(gone)
    return DenseSums(rounded, units)


class DenseSums:
    """Each client's sums, one after the other. The next client's take their memory: one client's stay in the cache."""

    def __init__(self, layers: Sequence[_Rounded], units: int) -> None:
        self._products = [SummedOuterProducts(layer.delta, layer.given, units, units <= BYTE_UNITS) for layer in layers]
        self._biases = [layer.bias.sum(1, dtype=torch.float64).int().numpy() for layer in layers]  # (clients, outputs)
        self._lengths = [layer.delta.shape[2] * (layer.given.shape[2] + 1) for layer in layers]
        self._origins = [*(factor for product in self._products for factor in product.factors), *self._biases]

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
    return min(aim * units, BYTE**2) if units <= BYTE_UNITS else aim * units


def _ratio(inputs: int, outputs: int, units: int) -> float:
    """Of the norms of input and delta: that of their widths' roots, while both are bytes, or squares add up exactly."""
    most = max(1.0, BYTE**2 / units) if units <= BYTE_UNITS else EXACT / (2 * units)
    return min(max(math.sqrt(inputs / outputs), 1 / most), most)


def _scales(lengths: Sequence[tuple[Doubles, Doubles]], clip: float, aim: float) -> Doubles:
    """Steps for a unit of each example's gradient, (clients * batch,); zero where it is not finite."""
    squared = np.sum([(given + 1) * delta for given, delta in lengths], axis=0)
    return np.where(np.isfinite(squared), aim / np.maximum(np.sqrt(squared), clip), 0.0)


def _split(
    given: Tensor, delta: Tensor, long: Doubles, short: Doubles, scales: Doubles, units: int
) -> tuple[Doubles, Doubles]:
    """The scale split between input and delta, whose squared lengths these are, so that both lose the same part."""
    alpha = np.sqrt(scales * _ratio(given.shape[2], delta.shape[2], units) * np.sqrt(short / long))
    beta = scales / alpha
    usable = np.isfinite(alpha) & np.isfinite(beta) & (alpha > 0)
    return np.where(usable, alpha, 0.0), np.where(usable, beta, 0.0)


def _squares(rows: Tensor) -> Doubles:
    """(clients * batch,), from a kernel that sees one row at a time."""
    return row_squares(rows.flatten(0, 1).numpy()).astype(np.float64)


class _Rounded:
    """One layer's inputs and deltas in whole numbers, (clients, batch, ...)."""

    def __init__(self, given: Tensor, delta: Tensor, bias: Tensor) -> None:
        self.given, self.delta, self.bias = given, delta, bias

    @staticmethod
    def of(
        given: Tensor,
        delta: Tensor,
        scales: Doubles,
        alpha: Doubles,
        beta: Doubles,
        rounding: Callable[[Tensor], Tensor],
        bytes_only: bool,
    ) -> _Rounded:
        def whole(rows: Tensor, factors: Doubles) -> Tensor:
            each = torch.from_numpy(factors).to(rows.dtype).view(*rows.shape[:2], 1)
            return rounding(rows * each)

        return _Rounded(whole(given, alpha), whole(delta, beta), whole(delta if bytes_only else delta.double(), scales))

    def squared(self, bytes_only: bool) -> Doubles:
        """Each example's squared norm, or somewhat more; infinity where it cannot be had, or entries are no bytes."""
        given, delta = (exact_squares(part.flatten(0, 1)) for part in (self.given, self.delta))
        if bytes_only:
            given[(given > WITHIN_BYTES) | (delta > WITHIN_BYTES)] = np.inf
        return given * delta + square_bounds(self.bias.flatten(0, 1))

    def overwrite(self, places: Tensor, other: _Rounded) -> None:
        self.given[places], self.delta[places], self.bias[places] = other.given[0], other.delta[0], other.bias[0]

    def clear(self, places: Tensor) -> None:
        for part in (self.given, self.delta, self.bias):
            part[places] = 0.0


def _squared(layers: Sequence[_Rounded], bytes_only: bool) -> Doubles:
    """Of each example over all layers, at least; infinity where it cannot be had."""
    total = np.sum([layer.squared(bytes_only) for layer in layers], axis=0)
    return np.where(total < 2.0**53, total, np.inf)


def stands_alone(kernel: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Whether each row of the kernel's result has the same bits wherever the row stands and whatever the others hold.

    ``rows`` (clients, batch, ...) has the public width that is used. The order of operations in a matrix product of a
    given shape does not depend on the values; that it does not depend on the row's place either is tried here.
    """
    expected = kernel(rows)
    width = rows.shape[1]
    for shift in {1, width // 2, width - 1}:
        if not torch.equal(kernel(rows.roll(shift, 1)).roll(-shift, 1), expected):
            return False
    alone = torch.zeros_like(rows)
    alone[:, : width // 2] = rows[:, : width // 2]
    return bool(torch.equal(kernel(alone)[:, : width // 2], expected[:, : width // 2]))
