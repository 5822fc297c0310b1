"""One release of a sum with noise, in whole numbers: how fine the contributions are, and how much noise that is.

    released = (multiple * sum of contributions + discrete Gaussian) * step / multiple

Contributions are rows of whole numbers with an L2 norm of at most ``units`` (``coterie.learn.whole``), so one unit
moves what is noised by at most ``units * multiple``, exactly, in any order and chunking of the sum. All of it follows
from what is public: the noise multiplier that the plan asks for, the length of a row, the number of clients that add
noise.

**What it costs.** Let D_s be the discrete Gaussian and q a vector of whole numbers. Draw y from the real Gaussian N(q,
a^2 I) and round each entry at random, to the discrete Gaussian on the whole numbers with *centre* y and sigma r. By
the argument in ``coterie.privacy.noise`` (the product of the two densities is one density of sigma sqrt(a^2 + r^2)
times a sum over a lattice that is even up to e(r)), the result is distributed as q + D_s with s^2 = a^2 + r^2, up to a
factor (1 + e) / (1 - e) in every probability, an entry. So q + D_s is, up to that, a function of what the real Gaussian
mechanism with deviation sqrt(s^2 - r^2) releases, and costs no more: in any dimension, under any composition, after
Poisson sampling, for every accountant. With r = 2 the factor is 1 + 2.1e-34, and of s = 16,384 steps the accountant is
told 16,384 - 1.2e-4.

That is tighter than pricing by concentrated DP (Canonne, Kamath and Steinke 2020: rho = 1 / 2z^2, for vectors too), and
unlike a privacy loss distribution of the one-dimensional mechanism it is proven for vectors.

Noise in shares: the sum of n draws of sigma s is the discrete Gaussian of sigma s sqrt(n) up to the ``sum_ripple``
(as Kairouz, Liu and Steinke 2021 have it, with the same exponents).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import InvalidInput, require
from coterie.privacy.noise import LEVELS, DiscreteGaussian, sum_ripple, unevenness
from coterie.rng import Secrets

ROUNDING = 2
"""r above, in steps of the noise."""

LEAST_UNITS = 1 << 15
"""Below it, rounding millions of records would be felt beside the noise."""

LEAST_MULTIPLE = 1 << 8
"""Where the contributions' grid is given, the noise's is so much finer: its deviation can be chosen as exactly."""

Whole = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float64] | NDArray[np.float32]


def least_units(length: int) -> int:
    """So fine that rounding a row of this length takes at most a 128th off its clipping bound."""
    return max(LEAST_UNITS, math.ceil(64 * math.sqrt(length)))


ENTRIES = 1 << 32
"""More numbers than one release can hold: how far every draw is from what it is priced as, is charged so often."""

LEAST_MULTIPLIER = 1e-8  # which hides nothing; far below it numbers run out of places
MULTIPLIERS = f"must be at least {LEAST_MULTIPLIER:g} and finite; for no noise pass 0"


@dataclass(frozen=True)
class NoiseGrid:
    units: int  # the largest norm of what one unit contributes, in steps
    multiple: int  # steps of the noise in a step of the contributions
    noise: DiscreteGaussian
    shares: int = 1  # how many independent draws are in the sum for certain

    def __post_init__(self) -> None:
        for name, value in (("units", self.units), ("multiple", self.multiple), ("shares", self.shares)):
            require(value >= 1, name, value, "must be a whole number of at least 1")
        require(
            self.capacity >= 1, "units * multiple", self.sensitivity, "leave no room in 64 bits; take less of either"
        )

    @staticmethod
    def planned(multiplier: float, most: int, least: int = LEAST_UNITS, shares: int = 1) -> NoiseGrid:
        """The cheapest noise whose ``multiplier`` is at least this one, and larger by a part of 2 / ``least`` at most.

        ``most`` is how many units the kernel that adds up can take; ``shares`` how many draws the sum holds for certain
        (those of colluders do not count).
        """
        require(LEAST_MULTIPLIER <= multiplier < math.inf, "multiplier", multiplier, MULTIPLIERS)
        require(1 <= least <= most, "least", least, f"must lie in 1..{most}, the most that can be added up")
        for levels in range(1, LEVELS + 1):
            noise = DiscreteGaussian(levels)
            room = math.sqrt(shares * noise.variance - ROUNDING**2) / multiplier * (1 - 1e-12)
            if room >= least:
                multiple = math.ceil(room / most)
                return NoiseGrid(int(room / multiple), multiple, noise, shares)
        largest = room * multiplier / least
        raise InvalidInput(
            f"multiplier={multiplier} must be at most {largest:.3g}, or contributions vanish on any grid"
        )

    @staticmethod
    def over(units: int, multiplier: float, shares: int = 1) -> NoiseGrid:
        """For contributions whose grid is given: the cheapest noise that is too large by a part of 1 / 256 at most.

        What is added up then does not depend on the noise, and so is the same wherever the noise is added.
        """
        require(LEAST_MULTIPLIER <= multiplier < math.inf, "multiplier", multiplier, MULTIPLIERS)
        for levels in range(1, LEVELS + 1):
            noise = DiscreteGaussian(levels)
            room = math.sqrt(shares * noise.variance - ROUNDING**2) / multiplier * (1 - 1e-12)
            if room >= LEAST_MULTIPLE * units:
                break
        if room < units:
            largest = room * multiplier / units
            raise InvalidInput(f"multiplier={multiplier} must be at most {largest:.3g} on a grid of {units} units")
        return NoiseGrid(units, int(room / units), noise, shares)

    @property
    def sensitivity(self) -> int:
        """What one unit can change, in steps of the noise."""
        return self.units * self.multiple

    @property
    def multiplier(self) -> float:
        """What the accountant is told: that of the real Gaussian mechanism than which this one costs no more."""
        return math.sqrt(self.shares * self.noise.variance - ROUNDING**2) / self.sensitivity

    @property
    def deviation(self) -> float:
        """That of the noise of all shares, over the units."""
        return math.sqrt(self.shares) * self.noise.sigma / self.sensitivity

    @property
    def ripple(self) -> float:
        """How far, in the logarithm, an entry's probabilities are from those that ``multiplier`` prices, at most.

        Of a run, it adds up over all entries of all releases; ``epsilon_near`` charges the sum.
        """
        each = self.shares * self.noise.ripple
        return each + sum_ripple(self.noise.sigma, self.shares) + unevenness(ROUNDING)

    @staticmethod
    def largest_ripple(releases: int) -> float:
        """Of so many releases with ``ENTRIES`` entries each, on whatever grid."""
        return ENTRIES * releases * NoiseGrid(1, 1, DiscreteGaussian(LEVELS)).ripple

    @property
    def capacity(self) -> int:
        """So many units add up, with their noise on top, without leaving 63 bits: each may bring noise of its own."""
        return (2**63 - 1) // (self.sensitivity + self.noise.largest)

    def noised(self, total: Whole, secrets: Secrets) -> NDArray[np.int64]:
        """multiple * total + noise, in steps of the noise. Shares add up as these do, modulo 2^64 too.

        An error does not say how large the sum is: it has no noise yet.
        """
        largest = max(abs(int(total.max(initial=0))), abs(int(total.min(initial=0))))
        most = (2**63 - 1 - self.noise.largest) // self.multiple
        require(largest <= most, "largest sum", "beyond 64 bits", f"must be at most {most} steps; add up fewer units")
        flat = (total.astype(np.int64) * self.multiple).reshape(-1)
        self.noise.add_to(flat, self._node(secrets, flat))
        return flat.reshape(total.shape)

    def _node(self, secrets: Secrets, *numbers: NDArray[np.generic]) -> Secrets:
        """For noise on these numbers on this grid: one noise for two grids would be two equations for one sum."""
        return secrets.upon(np.array([self.units, self.multiple, self.noise.levels]), *numbers)

    def values(self, noised: NDArray[np.int64], step: float) -> NDArray[np.float64]:
        """What was released in the data's measure, where ``step`` is what one step of the contributions is worth."""
        return np.multiply(noised, step / self.multiple, dtype=np.float64)

    def release(
        self,
        totals: Iterable[Whole],
        origins: Sequence[Sequence[NDArray[np.generic]]],
        steps: Sequence[float],
        secrets: Sequence[Secrets],
        largest: int,
        length: int,
    ) -> NDArray[np.float32]:
        """``values(noised(total))`` of several vectors, in single precision, (vectors, length).

        Totals are used up; ``origins`` are numbers that they follow from, and are told apart by: fewer than the totals,
        maybe. No entry is larger than ``largest``, which is public. What is scaled is the sum of total and noise, a
        whole number: scaled one by one, both would leave their traces in the last bits.
        """
        most = largest * self.multiple + self.noise.largest
        require(most < 2**63, "largest sum, in steps", largest, "leaves no room for noise in 64 bits")
        kind = np.int32 if self.noise.levels == 1 and most < 2**31 else np.int64
        nodes = [self._node(node, *origin) for node, origin in zip(secrets, origins, strict=True)]
        out, several = np.empty((len(nodes), length), dtype=np.float32), self.noise.draws(length, nodes)
        for total, row, step, draws in zip(totals, out, steps, several, strict=True):
            require(len(total) == length, "length of a total", len(total), f"must be the parameters', {length}")
            noised: NDArray[Any] = total.astype(kind, copy=False)
            self.noise.add_scaled(noised, self.multiple, np.float32(step / self.multiple), row, draws)
        return out
