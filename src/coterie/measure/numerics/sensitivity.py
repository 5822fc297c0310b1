"""How far one record can move a sum, as the machine adds it up.

Floats round every addition. Ones up to 2^k, one more or not, and then many records just under half of the last place
above 2^k, subtracted: above 2^k each of them is rounded away, at 2^k and below none is, for there the places are half
as wide. So the one record decides whether all that follow count. All norms are at most 1, and the sum moves by
1 + tail * 2^(k - p) where p is the number of bits of the mantissa: it grows with the square of the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import dp_accounting
import numpy as np
from scipy.stats import norm

from coterie.errors import require
from coterie.files import Array
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.numerics.mechanism import Float, Mechanism

STRIDES = (1, 4, 8, 16, 32)
"""Vectorised sums have several accumulators; records so far apart meet in one of them, and zeros go to the others."""

TOLERANCE = 1e-6
"""Sums that differ from the claim by so little are called right; epsilon moves by as little."""


@dataclass(frozen=True)
class Cascade:
    """``head`` records of 1, the one that matters, and a tail of records just under half of the last place."""

    head: int
    tail: int
    mantissa: int
    stride: int = 1
    backwards: bool = False

    def records(self, features: int, dtype: Float) -> tuple[Array, Array]:
        """With the one record and without it, (n, features)."""
        small = -self.head * 2.0**-self.mantissa * (1 - 2.0**-8)
        column = np.concatenate([np.ones(self.head + 1), np.full(self.tail, small)])
        spread = np.zeros((len(column) * self.stride, features), dtype)
        spread[:: self.stride, 0] = column
        without = np.delete(spread, self.head * self.stride, axis=0)
        return (spread[::-1].copy(), without[::-1].copy()) if self.backwards else (spread, without)

    def __str__(self) -> str:
        order = ", last first" if self.backwards else ""
        apart = f", every {self.stride}th" if self.stride > 1 else ""
        return f"{self.head} records of 1, one more, and {self.tail} of -{self.head} * 2^-{self.mantissa}{apart}{order}"


@dataclass(frozen=True)
class Giant:
    """A single record far beyond the bound, for what clips its records itself."""

    length: float

    def records(self, features: int, dtype: Float) -> tuple[Array, Array]:
        few = np.zeros((4, features), dtype)
        few[:, 0] = (0.5, -0.25, 0.125, 0.5)
        few[-1, :] = dtype(self.length)
        return few, few[:-1].copy()

    def __str__(self) -> str:
        return f"one record of {self.length:g} in every coordinate"


Arrangement = Cascade | Giant


@dataclass(frozen=True)
class SensitivityFinding:
    """The worst arrangement that was found, how far it moves the sum, and what that costs under the noise there is."""

    worst: float
    claimed: float
    arrangement: Arrangement | None
    records: int
    deviation: float
    delta: float

    @property
    def broken(self) -> bool:
        return not self.worst <= self.claimed * (1 + TOLERANCE)

    @property
    def bound(self) -> EpsilonBound | None:
        """Exact, for Gaussian noise of the deviation that is claimed; the rates are those of the optimal test."""
        if not self.broken:
            return None
        mu = self.worst / self.deviation
        finite = math.isfinite(mu)
        epsilon = float(dp_accounting.get_epsilon_gaussian(1 / mu, self.delta)) if finite else math.inf
        method = f"one record of {self.records} moves the sum by {self.worst:.4g}, claimed {self.claimed:.4g}"
        rates = (float(norm.cdf(-mu / 2)), float(norm.cdf(mu / 2))) if finite else (0.0, 1.0)
        return EpsilonBound(epsilon, self.delta, 1.0, method, *rates, trials=2)

    @property
    def sentence(self) -> str:
        if self.bound is None:
            return f"No arrangement tried moves the sum by more than {self.worst:.6g}; {self.claimed:.4g} is claimed."
        return (
            f"One record moves the sum by {self.worst:.4g} where {self.claimed:.4g} is claimed, so that epsilon is "
            f"{self.bound.epsilon:.3g} at delta={self.delta:.0e}: {self.arrangement}."
        )


def audit_sensitivity(
    mechanism: Mechanism,
    features: int,
    delta: float,
    most_records: int = 50_000,
    dtype: Float = np.float32,
    clips: bool = False,
) -> SensitivityFinding:
    """Search over records of norm at most 1; with ``clips`` also over records that the mechanism must clip itself."""
    require(most_records >= 8, "most_records", most_records, "must be at least 8")
    require(issubclass(dtype, np.floating), "dtype", dtype, "must be a type of floats, in which records are given")
    require(delta > 0, "delta", delta, "must be positive: Gaussian noise has no finite epsilon at delta=0")
    worst, found, count = 0.0, None, 0
    for arrangement in arrangements(most_records, clips):
        inside, outside = arrangement.records(features, dtype)
        moved = change(mechanism.exact, inside, outside)
        if not moved <= worst:  # NaN is the worst of all
            worst, found, count = moved, arrangement, len(inside)
    return SensitivityFinding(worst, mechanism.sensitivity, found, count, mechanism.deviation, delta)


def change(exact: Callable[[Array], Array], inside: Array, outside: Array) -> float:
    """The distance of the two sums; infinite if one of them is no number."""
    moved = np.asarray(exact(inside), dtype=np.float64) - np.asarray(exact(outside), dtype=np.float64)
    length = float(np.linalg.norm(moved.ravel()))
    return length if math.isfinite(length) else math.inf


def arrangements(most_records: int, clips: bool) -> Iterator[Arrangement]:
    for mantissa in (8, 11, 24, 53):  # bfloat16, half, single, double: whatever it is that it adds up in
        for stride in STRIDES:
            room = most_records // stride
            for backwards in (False, True):
                for power in range(2, room.bit_length()):
                    head = 1 << power
                    if head + 1 < room and power < mantissa and 8 * head >= min(room, 1 << mantissa):
                        yield Cascade(head, room - head - 1, mantissa, stride, backwards)
    if clips:
        yield from map(Giant, (1e3, 1e16, 1e19, 1e30, 3e38))
