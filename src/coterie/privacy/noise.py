"""The discrete Gaussian on the whole numbers (Canonne, Kamath and Steinke 2020), drawn exactly from secret streams.

    P(x) = exp(-x^2 / 2 sigma^2) / sum over all y of exp(-y^2 / 2 sigma^2)

Noise on whole numbers has no bits below the last one, through which floats leak what they were added to (Mironov 2012).
The deviation is one of a few public constants. Whoever needs another ratio of noise to contribution chooses the width
of the grid (``coterie.privacy.grid``), never the deviation: one small table then serves all, and its error is computed
once.

The table holds the distribution function of sigma = 128 to 2^-128. A draw takes 16 bits, which settle 98.6 % of cases
by one look-up; the others take 64 bits more and, once in 2^52, 64 bits more again. What 128 bits leave open, and what
lies beyond the table (together once in 2^115), is worked out from as many bits as it takes (``settled_exactly``). So a
draw is distributed as the table's Gaussian is, without an error that would have to be charged. Larger deviations are
sums

    X_1 = x_1,   X_(l+1) = x_(l+1) + 64 X_l   with independent x of sigma 128,

of variance 128^2 (1 + 64^2 + 64^4 + ...). Why these are discrete Gaussians: with s^2 = v^2 + k^2 w^2 and t = v w / s,
completing the square gives, for x of sigma v and y of sigma w,

    P(x + k y = n)  ~  exp(-n^2 / 2 s^2)  sum over y of exp(-(y - c_n)^2 / 2 t^2),

and by Poisson's summation the last sum lies within a factor 1 +- e(t) of t sqrt(2 pi) wherever its centre c_n is, where
e(t) = 2 sum over m >= 1 of exp(-2 pi^2 t^2 m^2). So every probability lies within a factor (1 + e) / (1 - e) of that of
the discrete Gaussian of sigma s. Here t^2 >= 128^2 / (1 + 64^2), and e(t) < 1.1e-34.

The logarithms of these factors add up over entries and releases, and are charged to epsilon
(``coterie.privacy.accounting.epsilon_near``): a distance in total variation would have to be charged to delta, times
e^epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    def ripple(self) -> float:
        """How far, in the logarithm, any probability of a draw is from that of the discrete Gaussian, at most."""
        narrowest = SIGMA / math.sqrt(1 + RADIX**2)  # t between the first two levels; above it is larger
        return (self.levels - 1) * unevenness(narrowest)

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
        sampler = self.sampler(secrets, count)
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            yield slice(start, start + size), sampler.next(size)

    def sampler(self, secrets: Secrets, most: int = BLOCK) -> Sampler:
        """Draws one after the other, ``most`` or ``BLOCK`` at a time. The node must serve for nothing else."""
        width = np.int32 if self.largest < 2**31 else np.int64  # numpy is twice as fast on the narrower
        return Sampler(table(SIGMA), secrets, self.levels, np.empty(min(BLOCK, most), dtype=width))


def unevenness(t: float) -> float:
    """log((1 + e) / (1 - e)), at most: how far the sum over a unit lattice under a Gaussian of deviation t can matter.

    For t >= 1 the terms with m >= 2 are below 1e-25 of the first.
    """
    require(t >= 1, "t", t, "must be at least 1, or the lattice shows through")
    e = 2 * (1 + 1e-9) * max(math.exp(-2 * (math.pi * t) ** 2), 1e-300)
    return 2 * e / (1 - e)


def sum_ripple(sigma: float, count: int) -> float:
    """That of a sum of so many independent discrete Gaussians, beside the one of sigma sqrt(count), at most.

    The k-th that is added to k - 1 others has t^2 = sigma^2 (k - 1) / k >= sigma^2 / 2.
    """
    return (count - 1) * unevenness(sigma / math.sqrt(2)) if count > 1 else 0.0


def discrete_laplace(count: int, scale: float, secrets: Secrets) -> NDArray[np.int64]:
    """So many draws with P(x) ~ exp(-|x| / scale), as the difference of two geometric ones.

    The binary digits of a geometric draw are independent, and digit j is 1 with probability 1 / (1 + exp(2^j / scale)).
    Chances are right to 2^-128, and digits that show less often than that are left out: in all, 2^32 draws are off by
    less than 1e-27 in total variation, which no float that holds a delta would notice. Slow, for hundreds of numbers.
    """
    require(scale > 0, "scale", scale, "must be positive")
    total = np.zeros(count, dtype=np.int64)
    for digit, chance in enumerate(_digit_chances(scale)):
        for sign, name in ((1, "up"), (-1, "down")):
            total += sign * (secrets.child(name, digit).fine_coins(chance, count).astype(np.int64) << digit)
    return total


@lru_cache(maxsize=64)
def _digit_chances(scale: float) -> tuple[int, ...]:
    """In units of 2^-128, until there is none left."""
    found: list[int] = []
    with localcontext() as context:
        context.prec = 60
        while chance := int(2**128 / (1 + (Decimal(2 ** len(found)) / Decimal(scale)).exp())):
            found.append(chance)
    return tuple(found)


# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """The distribution function at -reach .. reach - 1 in units of 2^-128, and what each cell of 2^-16 settles."""

    reach: int
    high: NDArray[np.uint64]  # the upper and lower words of the distribution function
    low: NDArray[np.uint64]
    cells: NDArray[np.int16]
    firsts: NDArray[np.int32]  # how many bounds lie below each cell
    crowded: NDArray[np.bool_]  # where more than one lies in it

    def singles(self, power: int) -> NDArray[np.float32]:
        """``cells`` times RADIX^power in single precision; not a number where they do not settle the draw."""
        return _singles(self, power)

    def settle(self, cells: NDArray[np.uint16], rest: Keystream) -> NDArray[np.int16]:
        """Draws whose first 16 bits are these, from further bits."""
        drawn = cells.astype(np.uint64) << np.uint64(64 - CELL_BITS)
        drawn |= rest.words(len(cells)) >> np.uint64(CELL_BITS)
        below = self.firsts.take(cells)
        below += drawn >= self.high.take(below)  # all that is left to ask where a cell has one bound in it
        many = np.flatnonzero(self.crowded.take(cells))
        below[many] = np.searchsorted(self.high, drawn[many], side="right")
        for place in np.flatnonzero(self._open(drawn, below)):
            below[place] = self.reach + self._settled(int(drawn[place]), rest)
        return (below - self.reach).astype(np.int16)

    def _open(self, drawn: NDArray[np.uint64], below: NDArray[np.signedinteger]) -> NDArray[np.bool_]:
        """Whether 64 bits leave it open: next to a bound, or where the table ends."""
        last = len(self.high) - 1
        near = drawn - self.high.take(np.maximum(below - 1, 0)) <= 1
        near |= self.high.take(np.minimum(below, last)) - drawn <= 1
        found: NDArray[np.bool_] = near | (below == 0) | (below > last)
        return found

    def _settled(self, high: int, rest: Keystream) -> int:
        """By 64 bits more, or if they do not settle it either, by as many as it takes."""
        drawn = (high << 64) | int(rest.words(1)[0])
        first = int(np.searchsorted(self.high, np.uint64(max(0, high - 1)), side="left"))
        until = int(np.searchsorted(self.high, np.uint64(min(high + 1, 2**64 - 1)), side="right"))
        near = [(int(self.high[at]) << 64) | int(self.low[at]) for at in range(first, until)]
        value = first + sum(bound <= drawn for bound in near) - self.reach
        if abs(value) == self.reach or any(abs(bound - drawn) <= 1 for bound in near):
            return settled_exactly(self.reach // REACH, drawn, TABLE_BITS, lambda: int(rest.words(1)[0]))
        return value


@lru_cache(maxsize=16)
def _singles(table: Table, power: int) -> NDArray[np.float32]:
    return np.where(table.cells == _HARD, np.nan, table.cells * float(RADIX**power)).astype(np.float32)


def settled_exactly(sigma: int, drawn: int, bits: int, more: Callable[[], int]) -> int:
    """The draw that belongs to a uniform number of which the first ``bits`` bits are these, and ``more`` the next 64.

    Weights are right to far less than the slack that is left on each side; what falls into it is asked further bits.
    """
    while True:
        bits, drawn = bits + 64, drawn << 64 | more()
        fixed = bits + 128
        reach = math.ceil(sigma * math.sqrt(2 * math.log(2) * fixed)) + 1  # what lies beyond weighs less than 2^-fixed
        one_side = _weights(sigma, reach, fixed)
        slack, passed = 1 << (fixed - bits - 32), 0
        weights = one_side[:0:-1] + one_side
        whole = sum(weights)
        for value, weight in enumerate(weights, -reach):
            start, passed = passed, passed + weight
            if (drawn + 1) * whole <= (passed - slack) << bits:
                if (start + slack) << bits <= drawn * whole:
                    return value
                break


@lru_cache(maxsize=8)
def table(sigma: int) -> Table:
    """Whole numbers throughout: 384 bits are kept, so that bounds are right to 2^-128, without the tails too."""
    require(1 <= sigma <= 1024, "sigma", sigma, "must lie in 1..1024 for a table of 16-bit values")
    reach = REACH * sigma
    one_side = _weights(sigma, reach, _FIXED)
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


def _weights(sigma: int, reach: int, fixed: int) -> list[int]:
    """exp(-x^2 / 2 sigma^2) for x = 0 .. reach, in units of 2^-fixed: each from the last by one power of one number."""
    with localcontext() as context:
        context.prec = fixed // 3 + 32
        base = int((Decimal(-1) / Decimal(2 * sigma**2)).exp() * 2**fixed)
    square, factor, weights = base * base >> fixed, base, [1 << fixed]
    for _ in range(reach):
        weights.append(weights[-1] * factor >> fixed)
        factor = factor * square >> fixed
    return weights


SINGLE = 1 << 23
"""Whole numbers below it stay exact in single precision with a draw of up to ``SINGLE_LEVELS`` added."""

SINGLE_LEVELS = 3


class Sampler:
    """Buffers and streams of one vector of noise."""

    def __init__(self, table: Table, secrets: Secrets, levels: int, buffer: NDArray[np.signedinteger]) -> None:
        self._table, self._levels, self._total = table, levels, buffer
        self._cells, self._rest = secrets.child("cells").stream(), secrets.child("rest").stream()
        self._raw = np.empty(2 * levels * len(buffer) + Keystream.SPARE + 1, dtype=np.uint8)
        self._drawn = np.empty(levels * len(buffer), dtype=np.int16)
        self._floats: NDArray[np.float32] | None = None

    def next(self, count: int) -> NDArray[np.signedinteger]:
        """The next so many draws, in a buffer that the call after this one overwrites."""
        return self._joined(self._settled(self._next_cells(count), self._drawn), self._total[:count])

    def add_to(self, total: NDArray[np.float32]) -> None:
        """The next draws on whole numbers (length,) in single precision, in place: below 2^24 these add exactly."""
        require(self._levels <= SINGLE_LEVELS, "levels", self._levels, f"must be at most {SINGLE_LEVELS}")
        if self._floats is None:
            self._floats = np.empty((2, len(self._total)), dtype=np.float32)
        for start in range(0, len(total), len(self._total)):
            part = total[start : start + len(self._total)]
            cells, (noise, level) = self._next_cells(len(part)), self._floats[:, : len(part)]
            self._table.singles(0).take(cells[-1], out=noise, mode="wrap")
            for power in range(1, self._levels):
                noise += self._table.singles(power).take(cells[-1 - power], out=level, mode="wrap")
            hard = np.flatnonzero(np.isnan(noise))
            noise[hard] = self._joined(self._settled(cells[:, hard]), np.empty(len(hard), dtype=np.int32))
            part += noise

    def _next_cells(self, count: int) -> NDArray[np.uint16]:
        """The next 16 bits of each draw and level, (levels, count)."""
        size = 2 * self._levels * count
        self._cells.fill(self._raw, size)
        found: NDArray[np.uint16] = self._raw[:size].view("<u2").reshape(self._levels, count)
        return found

    def _settled(self, cells: NDArray[np.uint16], out: NDArray[np.int16] | None = None) -> NDArray[np.int16]:
        """The digits, (levels, count), the coarsest first."""
        flat = cells.reshape(-1)
        drawn = np.empty(len(flat), dtype=np.int16) if out is None else out[: len(flat)]
        self._table.cells.take(flat, out=drawn, mode="wrap")
        hard = np.flatnonzero(drawn == _HARD)
        drawn[hard] = self._table.settle(flat[hard], self._rest)
        return drawn.reshape(cells.shape)

    @staticmethod
    def _joined(digits: NDArray[np.int16], out: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
        out[:] = digits[0]
        for level in digits[1:]:
            out *= RADIX
            out += level
        return out
