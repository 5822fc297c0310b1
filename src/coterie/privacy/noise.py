"""The discrete Gaussian on the whole numbers (Canonne, Kamath and Steinke 2020), drawn exactly from secret streams.

    P(x) = exp(-x^2 / 2 sigma^2) / sum over all y of exp(-y^2 / 2 sigma^2)

Noise on whole numbers has no bits below the last one, through which floats leak what they were added to (Mironov 2012).
The deviation is one of a few public constants. Whoever needs another ratio of noise to contribution chooses the width
of the grid (``coterie.privacy.grid``), never the deviation: one small table then serves all, and its error is computed
once.

The table holds the distribution function of sigma = 128 to 2^-128. A draw takes 16 bits, which settle 98.6 % of cases
by one look-up; the others take 64 bits more and, once in 2^64, 64 bits more again. Larger deviations are sums

    X_1 = x_1,   X_(l+1) = x_(l+1) + 64 X_l   with independent x of sigma 128,

of variance 128^2 (1 + 64^2 + 64^4 + ...). Why these are discrete Gaussians: with s^2 = v^2 + k^2 w^2 and t = v w / s,
completing the square gives, for x of sigma v and y of sigma w,

    P(x + k y = n)  ~  exp(-n^2 / 2 s^2)  sum over y of exp(-(y - c_n)^2 / 2 t^2),

and by Poisson's summation the last sum lies within a factor 1 +- e(t) of t sqrt(2 pi) wherever its centre c_n is, where
e(t) = 2 sum over m >= 1 of exp(-2 pi^2 t^2 m^2). So the total variation from the discrete Gaussian of sigma s is at
most e / (1 - e). Here t^2 >= 128^2 / (1 + 64^2), and e(t) < 1.1e-34.

All distances are charged to delta (``coterie.privacy.accounting.epsilon_at_distance``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coterie.errors import require
from coterie.rng import Keystream, Secrets

SIGMA = 128
RADIX = 64
REACH = 14  # the table ends after so many deviations
LEVELS = 6
BLOCK = 1 << 16  # draws at a time: their buffers stay in the cache

CELL_BITS = 16
TABLE_BITS = 128
_HARD = np.int16(-(1 << 15))  # stands in the table where 16 bits do not settle the draw
_FIXED = 384  # bits behind the point while the table is made


@dataclass(frozen=True)
class DiscreteGaussian:
    """``levels`` says which of the deviations: about 128, 8.2e3, 5.2e5, 3.4e7, 2.1e9, 1.4e11."""

    levels: int

    def __post_init__(self) -> None:
        require(1 <= self.levels <= LEVELS, "levels", self.levels, f"must lie in 1..{LEVELS}")

    @property
    def variance(self) -> int:
        """sigma^2, exactly. The variance of the discrete Gaussian is the same to all digits that a float has."""
        return SIGMA * SIGMA * (int((RADIX * RADIX) ** self.levels) - 1) // (RADIX * RADIX - 1)

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)

    @property
    def largest(self) -> int:
        """No draw is larger."""
        return REACH * SIGMA * (int(RADIX**self.levels) - 1) // (RADIX - 1)

    @property
    def distance(self) -> float:
        """Total variation between a draw and the discrete Gaussian, at most."""
        narrowest = SIGMA / math.sqrt(1 + RADIX**2)  # t between the first two levels; above it is larger
        return self.levels * table_distance(SIGMA) + (self.levels - 1) * unevenness(narrowest)

    def draw(self, count: int, secrets: Secrets) -> NDArray[np.int64]:
        """So many independent draws. The node must serve for nothing else."""
        total = np.zeros(count, dtype=np.int64)
        self.add_to(total, secrets)
        return total

    def add_to(self, total: NDArray[np.int64], secrets: Secrets) -> None:
        """One independent draw on every entry of (length,), in place."""
        require(total.ndim == 1 and total.dtype == np.int64, "total", (total.dtype, total.shape), "must be flat int64")
        for block, drawn in self.blocks(len(total), secrets):
            total[block] += drawn

    def blocks(self, count: int, secrets: Secrets) -> Iterator[tuple[slice, NDArray[np.signedinteger]]]:
        """So many draws, block by block, in one buffer: use one up before the next."""
        width = np.int32 if self.largest < 2**31 else np.int64  # numpy is twice as fast on the narrower
        sampler = _Sampler(table(SIGMA), secrets, self.levels, np.empty(min(BLOCK, count), dtype=width))
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            yield slice(start, start + size), sampler.next(size)


def unevenness(t: float) -> float:
    """e / (1 - e): how far, in total variation, the sum over a unit lattice under a Gaussian of deviation t can matter.

    For t >= 1 the terms with m >= 2 are below 1e-25 of the first.
    """
    require(t >= 1, "t", t, "must be at least 1, or the lattice shows through")
    e = 2 * (1 + 1e-9) * max(math.exp(-2 * (math.pi * t) ** 2), 1e-300)
    return e / (1 - e)


def sum_distance(sigma: float, count: int) -> float:
    """Total variation of a sum of so many independent discrete Gaussians from that of sigma sqrt(count), at most.

    The k-th that is added to k - 1 others has t^2 = sigma^2 (k - 1) / k >= sigma^2 / 2.
    """
    return (count - 1) * unevenness(sigma / math.sqrt(2)) if count > 1 else 0.0


def table_distance(sigma: int) -> float:
    """Total variation of a table's draw from the discrete Gaussian: the tails that it cuts off, and its rounding.

    The tails beyond T hold at most what those of the real Gaussian do (its density falls, and by Poisson's summation
    the sum of weights is at least sigma sqrt(2 pi)), so exp(-T^2 / 2 sigma^2). Each probability inside is right to
    2^-127.
    """
    reach = REACH * sigma
    return math.exp(-(REACH**2) / 2) + (2 * reach + 1) * 2.0 ** (1 - TABLE_BITS)


# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The distribution function at -reach .. reach - 1 in units of 2^-128, and what each cell of 2^-16 settles."""

    reach: int
    high: NDArray[np.uint64]  # the upper and lower words of the distribution function
    low: NDArray[np.uint64]
    cells: NDArray[np.int16]
    firsts: NDArray[np.int32]  # how many bounds lie below each cell
    crowded: NDArray[np.bool_]  # where more than one lies in it

    def settle(self, cells: NDArray[np.uint16], rest: Keystream) -> NDArray[np.int16]:
        """Draws whose first 16 bits are these, from further bits."""
        drawn = cells.astype(np.uint64) << np.uint64(64 - CELL_BITS)
        drawn |= rest.words(len(cells)) >> np.uint64(CELL_BITS)
        below = self.firsts.take(cells)
        below += drawn >= self.high.take(below)  # all that is left to ask where a cell has one bound in it
        many = np.flatnonzero(self.crowded.take(cells))
        below[many] = np.searchsorted(self.high, drawn[many], side="right")
        for tie in np.flatnonzero(self.high.take(below - 1) == drawn):  # once in 2^64: not settled yet
            first = int(np.searchsorted(self.high, drawn[tie], side="left"))
            among = self.low[first : below[tie]]
            below[tie] = first + np.searchsorted(among, rest.words(1)[0], side="right")
        return (below - self.reach).astype(np.int16)


@lru_cache(maxsize=8)
def table(sigma: int) -> Table:
    """Whole numbers throughout: 384 bits are kept, so that thousands of roundings stay far below 2^-128."""
    require(1 <= sigma <= 1024, "sigma", sigma, "must lie in 1..1024 for a table of 16-bit values")
    reach = REACH * sigma
    one_side = _weights(sigma, reach)
    weights = one_side[:0:-1] + one_side
    whole, passed, bounds = sum(weights), 0, []
    for weight in weights[:-1]:
        passed += weight
        bounds.append((passed << TABLE_BITS) // whole)
    high = np.array([bound >> 64 for bound in bounds], dtype=np.uint64)
    low = np.array([bound & (2**64 - 1) for bound in bounds], dtype=np.uint64)
    starts = np.arange(1 << CELL_BITS, dtype=np.uint64) << np.uint64(64 - CELL_BITS)
    before = np.searchsorted(high, starts, side="left")
    until = np.searchsorted(high, starts | np.uint64((1 << (64 - CELL_BITS)) - 1), side="right")
    cells = np.where(before == until, before - reach, _HARD).astype(np.int16)
    firsts = np.minimum(before, len(high) - 1).astype(np.int32)
    return Table(reach, high, low, cells, firsts, until - before != 1)


def _weights(sigma: int, reach: int) -> list[int]:
    """exp(-x^2 / 2 sigma^2) for x = 0 .. reach, in units of 2^-384: each from the last by one power of one number."""
    with localcontext() as context:
        context.prec = 150
        base = int((Decimal(-1) / Decimal(2 * sigma**2)).exp() * 2**_FIXED)
    square, factor, weights = base * base >> _FIXED, base, [1 << _FIXED]
    for _ in range(reach):
        weights.append(weights[-1] * factor >> _FIXED)
        factor = factor * square >> _FIXED
    return weights


class _Sampler:
    """Buffers and streams of one vector of noise."""

    def __init__(self, table: Table, secrets: Secrets, levels: int, buffer: NDArray[np.signedinteger]) -> None:
        self._table, self._levels, self._total = table, levels, buffer
        self._cells, self._rest = secrets.child("cells").stream(), secrets.child("rest").stream()
        self._raw = np.empty(2 * levels * len(buffer) + Keystream.SPARE + 1, dtype=np.uint8)
        self._drawn = np.empty(levels * len(buffer), dtype=np.int16)

    def next(self, count: int) -> NDArray[np.signedinteger]:
        """The next so many draws, in a buffer that the call after this one overwrites."""
        size = self._levels * count
        drawn, cells = self._drawn[:size], self._raw[: 2 * size].view("<u2")
        self._cells.fill(self._raw, 2 * size)
        self._table.cells.take(cells, out=drawn, mode="wrap")
        hard = np.flatnonzero(drawn == _HARD)
        drawn[hard] = self._table.settle(cells[hard], self._rest)
        total, (coarsest, *finer) = self._total[:count], drawn.reshape(self._levels, count)
        total[:] = coarsest
        for level in finer:
            total *= RADIX
            total += level
        return total
