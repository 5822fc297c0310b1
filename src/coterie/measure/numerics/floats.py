"""What the low bits of floats tell (Mironov 2012).

Noise of floats is not a real number: sigma * z takes some floats and skips others, and what is added to it shifts the
ones that can be reached. So a coordinate that no float z explains under one data set rules that data set out. The tests
here know both exact sums and the deviation, as the adversary of the definition does. Whatever they look at, they are
functions of the release, so a mechanism that keeps its claim passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coterie.errors import require
from coterie.files import Array
from coterie.measure.epsilon import EpsilonBound, Scores, epsilon_lower_bound, largest_of, shared
from coterie.measure.intervals import Floats
from coterie.measure.numerics.mechanism import Float, Mechanism
from coterie.rng import Rng

NEIGHBOURS = 2
"""Floats on either side of the quotient that are tried; its own rounding is off by one."""


@dataclass(frozen=True)
class Worlds:
    """The two exact sums, (coordinates,), and the noise's deviation: all that the adversary knows."""

    inside: Floats = field(repr=False)
    outside: Floats = field(repr=False)
    deviation: float


Distinguisher = Callable[[Array, Worlds], Floats]
"""From releases (trials, coordinates) to scores (trials,): the higher, the rather inside."""


def reachable(released: Array, exact: Array, deviation: float, dtype: Float) -> NDArray[np.bool_]:
    """Whether some float z gives exactly this by exact + deviation * z, computed in ``dtype``."""
    seen, about = released.astype(dtype), exact.astype(dtype)
    scale = dtype(deviation)
    found: NDArray[np.bool_] = seen != released  # no float of this type: computed otherwise, and rules nothing out
    z = ((seen.astype(np.float64) - about.astype(np.float64)) / float(scale)).astype(dtype)
    down = z
    for _ in range(NEIGHBOURS + 1):
        found = found | (about + scale * z == seen) | (about + scale * down == seen)
        z, down = np.nextafter(z, dtype(np.inf)), np.nextafter(down, dtype(-np.inf))
    return found


def reached_in(dtype: Float) -> Distinguisher:
    """How many coordinates are explained by the sum with the record, less those by the one without it."""

    def score(released: Array, worlds: Worlds) -> Floats:
        inside = reachable(released, worlds.inside, worlds.deviation, dtype).sum(1)
        return np.asarray(inside - reachable(released, worlds.outside, worlds.deviation, dtype).sum(1), np.float64)

    return score


def finest_bits(released: Array, worlds: Worlds) -> Floats:
    """The mean place of the lowest bit that is set: adding something to noise cuts off what lies below its own."""
    mantissa, exponent = np.frexp(released.astype(np.float64))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = np.where(whole == 0, 1, whole & -whole)
    places: Floats = (np.log2(lowest) + exponent).mean(1)
    return places


def coarsest_bits(released: Array, worlds: Worlds) -> Floats:
    return -finest_bits(released, worlds)


DISTINGUISHERS: dict[str, Distinguisher] = {
    "reachable float32": reached_in(np.float32),
    "reachable float64": reached_in(np.float64),
    "lowest bits": finest_bits,
    "lowest bits, reversed": coarsest_bits,
}


@dataclass(frozen=True)
class FloatFinding:
    """The bound of the best test of bits, at the confidence of all of them together."""

    bound: EpsilonBound
    test: str
    claimed: float

    @property
    def broken(self) -> bool:
        return self.bound.epsilon > self.claimed

    @property
    def sentence(self) -> str:
        if self.broken:
            return f"The bits of the released numbers tell what the noise should hide ({self.test}): {self.bound}."
        return f"The bits of the released numbers show no more than is claimed: {self.bound}."


def audit_floats(
    mechanism: Mechanism,
    inside: Array,
    outside: Array,
    claimed: tuple[float, float],
    rng: Rng,
    trials: int = 2000,
    confidence: float = 0.95,
    tests: dict[str, Distinguisher] | None = None,
) -> FloatFinding:
    """Neighbouring data sets, and the (epsilon, delta) claimed. Best where one record stands in rows that are empty."""
    used = DISTINGUISHERS if tests is None else tests
    require(len(used) > 0, "tests", used, "must be at least one")
    exact = [np.ravel(np.asarray(mechanism.exact(records), dtype=np.float64)) for records in (inside, outside)]
    worlds = Worlds(exact[0], exact[1], mechanism.deviation)
    released = [
        np.stack([mechanism.seeded(records, mechanism.seed(rng.child(side, trial))).ravel() for trial in range(trials)])
        for side, records in (("inside", inside), ("outside", outside))
    ]
    bounds = {}
    for name, test in used.items():
        scores = Scores(test(released[0], worlds), test(released[1], worlds))
        each = shared(confidence, len(used))
        bounds[name] = epsilon_lower_bound(scores, claimed[1], rng.child("split", name), each)
    best = max(bounds, key=lambda name: bounds[name].epsilon)
    return FloatFinding(largest_of(list(bounds.values())), best, claimed[0])
