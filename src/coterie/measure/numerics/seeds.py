"""How many bits the noise hangs on. Whoever can try them all subtracts the noise.

Two tests. *Dead bits*: a bit of the seed whose flip never changes a release is not used; torch's CPU generator takes a
64-bit seed and uses 32. *Birthdays*: a good seed that is squeezed through a small one on the way (hashed, then cut to
32 bits) has no dead bits, but releases under different seeds coincide: n of them from a space of N are expected to
hold n^2 / 2N pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from coterie.errors import require
from coterie.files import Array
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.numerics.mechanism import Mechanism
from coterie.rng import Rng

ENOUGH_BITS = 112
"""The least strength that NIST SP 800-57 admits."""

BASES = 8  # seeds at which every bit is flipped
PILOT = 256  # releases from which the chance of a coincidence is taken
AGAIN = 8  # releases from one source that must all be equal for two seeds to be called one
DRAWS = 1 << 18
"""Enough to see a space of 32 bits with probability 0.9997."""


@dataclass(frozen=True)
class SeedFinding:
    """What is known of the seed; ``bits`` are what it has at most, and fewer than ``sees`` would have been noticed."""

    given: int
    live: int
    draws: int
    coincidences: int
    release_bits: float  # in one release: where they are few, releases are equal by chance
    delta: float
    confidence: float

    @property
    def tells(self) -> bool:
        return self.release_bits > 2 * math.log2(self.draws) + 10

    @property
    def bits(self) -> float:
        if not self.tells:
            return float(self.given)
        if self.coincidences == 0:
            return float(self.live)
        fewest = float(chi2.ppf(1 - self.confidence, 2 * self.coincidences)) / 2  # that are expected
        return min(self.live, math.log2(self.draws**2 / 2 / fewest))

    @property
    def sees(self) -> float:
        return math.log2(self.draws**2 / 2 / -math.log(1 - self.confidence))

    @property
    def broken(self) -> bool:
        return self.bits < ENOUGH_BITS

    @property
    def bound(self) -> EpsilonBound | None:
        """With the noise subtracted, two neighbours are told apart always."""
        if not self.broken:
            return None
        method = f"all {self.bits:.3g} bits of the seed tried"
        return EpsilonBound(math.inf, self.delta, self.confidence, method, 0.0, 1.0, self.draws)

    @property
    def sentence(self) -> str:
        risk = ", and whoever tries them all subtracts it" if self.broken else ""
        if not self.tells:
            few = f"one release holds about {self.release_bits:.0f} bits of noise, too few to tell seeds apart"
            return f"Nothing is known of the seed beyond its {self.given} bits{risk}: {few}; release more coordinates."
        if self.live < self.given:
            return (
                f"Of {self.given} bits of the seed {self.given - self.live} change nothing: "
                f"the noise hangs on {self.live} bits{risk}."
            )
        if self.coincidences:
            return (
                f"{self.draws} different seeds gave {self.coincidences} equal releases: "
                f"the noise hangs on at most {self.bits:.1f} bits{risk}."
            )
        if self.broken:
            return f"The noise hangs on a seed of {self.given} bits where {ENOUGH_BITS} are needed{risk}."
        return (
            f"All {self.given} bits of the seed change the noise, and {self.draws} different seeds gave different "
            f"releases: a bottleneck of up to {self.sees:.0f} bits would have shown."
        )


def audit_seed(
    mechanism: Mechanism, records: Array, delta: float, rng: Rng, draws: int = DRAWS, confidence: float = 0.95
) -> SeedFinding:
    """``records`` may be few; the release must have enough coordinates for equal ones to mean equal noise."""
    require(draws >= PILOT, "draws", draws, f"must be at least {PILOT}")
    pilot = [mechanism.seeded(records, mechanism.seed(rng.child("pilot", draw))).ravel() for draw in range(PILOT)]
    bits, given = _chance_bits(np.stack(pilot)), mechanism.seed_bits
    nothing = SeedFinding(given, given, draws, 0, bits, delta, confidence)
    if not nothing.tells:
        return nothing
    live = live_bits(mechanism, records, rng.child("bits"))
    if live < given:  # what is already known needs no birthdays
        return replace(nothing, live=live)
    return replace(nothing, coincidences=_coincidences(mechanism, records, draws, rng))


def _coincidences(mechanism: Mechanism, records: Array, draws: int, rng: Rng) -> int:
    """How many of so many seeds release what an earlier one did, and go on to do so."""
    seeds: dict[bytes, int] = {}
    found = 0
    for draw in range(draws):
        seed = mechanism.seed(rng.child("birthday", draw))
        first = seeds.setdefault(mechanism.seeded(records, seed).tobytes(), seed)
        if first != seed:
            found += _goes_on_like(_stream(mechanism, records, first), mechanism, records, seed)
    return found


def _stream(mechanism: Mechanism, records: Array, seed: int) -> tuple[bytes, ...]:
    """Several releases from one source: equal by chance in the first, two different seeds part in the next."""
    source = mechanism.source(seed)
    return tuple(np.asarray(mechanism.release(records, source)).tobytes() for _ in range(AGAIN))


def _goes_on_like(stream: tuple[bytes, ...], mechanism: Mechanism, records: Array, seed: int) -> bool:
    """Whether a seed gives this stream; most part in the first release, and the rest is not made."""
    source = mechanism.source(seed)
    return all(np.asarray(mechanism.release(records, source)).tobytes() == earlier for earlier in stream)


def live_bits(mechanism: Mechanism, records: Array, rng: Rng) -> int:
    """How many bits of the seed change a release. Those that seem not to are also flipped together, at random."""
    dead = set(range(mechanism.seed_bits))
    for base in range(BASES):
        seed = mechanism.seed(rng.child("base", base))
        still = _stream(mechanism, records, seed)
        dead = {bit for bit in dead if _goes_on_like(still, mechanism, records, seed ^ 1 << bit)}
        flips = sum(1 << bit for bit in dead) & mechanism.seed(rng.child("flips", base))
        if not _goes_on_like(still, mechanism, records, seed ^ flips):
            return mechanism.seed_bits  # each alone changes nothing, but together they do
    return mechanism.seed_bits - len(dead)


def find_seed(
    mechanism: Mechanism, worlds: Sequence[Array], released: Array, seeds: Iterable[int]
) -> tuple[int, int] | None:
    """(seed, world) of the first seed under which one of these data sets gives exactly this release; None if none.

    What an adversary does who knows all data sets that are possible. Others look only at coordinates that nobody's
    records touch, which are noise and nothing else.
    """
    wanted = np.asarray(released).tobytes()
    for seed in seeds:
        for number, records in enumerate(worlds):
            if mechanism.seeded(records, seed).tobytes() == wanted:
                return seed, number
    return None


def _chance_bits(releases: Array) -> float:
    """At least so many bits of coincidence has a release, its coordinates (releases, coordinates) being independent."""
    pairs = len(releases) * (len(releases) - 1)
    bits = 0.0
    for column in releases.T:
        _, counts = np.unique(column, return_counts=True)
        equal = int((counts * (counts - 1)).sum())
        bits -= math.log2(max(equal, len(releases)) / pairs)
    return bits
