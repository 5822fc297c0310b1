"""The discrete Gaussian on the whole numbers (Canonne, Kamath and Steinke 2020), drawn exactly from secret streams.

    P(x) = exp(-x^2 / 2 sigma^2) / sum over all y of exp(-y^2 / 2 sigma^2)

Noise on whole numbers has no bits below the last one, through which floats leak what they were added to (Mironov 2012).
The deviation is one of a few public constants. Whoever needs another ratio of noise to contribution chooses the width
of the grid (``coterie.privacy.grid``), never the deviation: one small table then serves all
(``coterie.privacy.lookup``), without an error that would have to be charged. Larger deviations than its 2^14 are sums

    X_1 = x_1,   X_(l+1) = x_(l+1) + 64 X_l   with independent x of sigma 2^14,

of variance 2^28 (1 + 64^2 + 64^4 + ...). Why these are discrete Gaussians: with s^2 = v^2 + k^2 w^2 and t = v w / s,
completing the square gives, for x of sigma v and y of sigma w,

    P(x + k y = n)  ~  exp(-n^2 / 2 s^2)  sum over y of exp(-(y - c_n)^2 / 2 t^2),

and by Poisson's summation the last sum lies within a factor 1 +- e(t) of t sqrt(2 pi) wherever its centre c_n is, where
e(t) = 2 sum over m >= 1 of exp(-2 pi^2 t^2 m^2). So every probability lies within a factor (1 + e) / (1 - e) of that of
the discrete Gaussian of sigma s. Here t > 255, and e(t) has half a million zeros.

The logarithms of such factors add up over entries and releases, and are charged to epsilon
(``coterie.privacy.accounting.epsilon_near``): a distance in total variation would have to be charged to delta, times
e^epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import require
from coterie.privacy.lookup import BLOCK, REACH, SIGMA, Draws
from coterie.rng import Secrets

Drawn = NDArray[np.int32] | NDArray[np.int64]

RADIX = 64
LEVELS = 5


@dataclass(frozen=True)
class DiscreteGaussian:
    """``levels`` says which of the deviations: about 1.6e4, 1.0e6, 6.7e7, 4.3e9, 2.7e11."""

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

    def add_to(self, total: Drawn, secrets: Secrets) -> None:
        """One independent draw on every entry of (length,), in place."""
        self.add_scaled(total, 1, total.dtype.type(1), total, *self.draws(len(total), [secrets]))

    def draws(self, count: int, nodes: Sequence[Secrets]) -> list[Draws]:
        """What ``add_scaled`` takes for so many entries, from each of the nodes: for several together in less time."""
        return Draws.of(nodes, count * self.levels)

    def add_scaled(self, total: Drawn, factor: int, scale: np.number, out: NDArray[Any], draws: Draws) -> None:
        """out = scale * (factor * total + a draw), (length,), rounded to the type of out first; the total is used up.

        32 bits hold the narrowest alone.
        """
        require(
            total.ndim == 1 and (total.dtype == np.int64 or (total.dtype == np.int32 and self.levels == 1)),
            "total",
            (total.dtype, total.shape),
            f"must be flat int64, or int32 where levels={self.levels} is 1",
        )
        for start in range(0, len(total), BLOCK):
            part = total[start : start + BLOCK]
            if self.levels > 1:
                part *= factor
                part += self._coarse(len(part), draws)
            draws.scaled(part, factor if self.levels == 1 else 1, scale, out[start : start + BLOCK])

    def _coarse(self, count: int, draws: Draws) -> NDArray[np.int64]:
        """All but x_l of the sum above."""
        coarse = np.zeros(count, dtype=np.int64)
        for _ in range(1, self.levels):
            draws.add_to(coarse, RADIX)
        coarse *= RADIX
        return coarse


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
