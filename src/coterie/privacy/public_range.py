"""A public range of values as whole steps that doubles hold exactly.

A step is a power of two, and the middle of the range a whole number of steps. So a value on the grid, its distance from
the middle and a sum of such distances are all exact, and a record moves a sum by what it is priced at, however far from
0 its range lies. With the middle of the bounds and an even part of their distance in floats, a column between 10^15 and
10^15 + 0.375 moved a sum by 1.27 times what its noise was made for, and one near 10^12 by 1.03 times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from coterie.errors import require

HALF = 1 << 11  # steps from the middle of a range to its ends, at most; at least half as many
EXACT = 1 << 52  # below it doubles hold whole numbers, and differences of two of them
EXPONENTS = (-1000, 960)  # of a step: above the smallest float, and sums below the largest


@dataclass(frozen=True)
class PublicRange:
    step: float  # a power of two
    least: int  # all in steps
    middle_steps: int
    most: int

    @staticmethod
    @lru_cache(maxsize=256)
    def of(low: float, high: float) -> PublicRange:
        require(low < high, "low", low, f"must be less than high={high}")
        for name, bound in (("low", low), ("high", high)):
            require(math.isfinite(bound), name, bound, "must be finite, for noise is made for the range")
        bottom, top = Fraction(low), Fraction(high)
        exponent = _least_power((top - bottom) / (2 * HALF))
        fewest, largest = EXPONENTS
        require(fewest <= exponent <= largest, "high - low", high - low, "is no range of data; rescale the columns")
        step = Fraction(2) ** exponent
        least, most = math.ceil(bottom / step), math.floor(top / step)
        remedy = "subtract a public number from the columns and from both bounds"
        told_apart = max(abs(least), abs(most)) < EXACT
        require(
            told_apart, "low", low, f"is so far from 0 that floats cannot tell values apart up to high={high}; {remedy}"
        )
        return PublicRange(float(step), least, round((bottom + top) / 2 / step), most)

    @property
    def middle(self) -> float:
        return self.middle_steps * self.step

    @property
    def half(self) -> int:
        """The farthest from the middle that a value is, in steps."""
        return max(self.most - self.middle_steps, self.middle_steps - self.least)

    def on_grid(self, values: Tensor) -> Tensor:
        """The nearest whole numbers of steps within the range, in doubles."""
        return (values.double() / self.step).round_().clamp_(self.least, self.most).mul_(self.step)

    def steps(self, sums: Tensor) -> Tensor:
        """Sums of distances from the middle of what is on the grid, in steps."""
        return (sums / self.step).round().to(torch.int64)


def _least_power(value: Fraction) -> int:
    """The least power of two that is no less than a positive value."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - 1
    while Fraction(2) ** exponent < value:
        exponent += 1
    return exponent
