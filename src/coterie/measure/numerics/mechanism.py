"""A mechanism as the numerics audit takes it: ours, or anybody's.

An adapter is a few lines. ``source`` makes the mechanism's randomness from a whole number of ``seed_bits`` bits, in the
way in which it is made in earnest:

    torch    source=lambda seed: torch.Generator().manual_seed(seed), seed_bits=64
    numpy    source=np.random.default_rng, seed_bits=128
    Rng      source=lambda seed: Rng(seed.to_bytes(16, "little")), seed_bits=128
    a key    source=lambda seed: Stream(key=seed.to_bytes(32, "little")), seed_bits=256

``release`` takes records (n, features) and such a source, and returns what leaves; ``exact`` returns what it would be
without noise. A mechanism that draws its secrets from the operating system itself is given that as an argument first:
what cannot be replayed cannot be audited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.errors import require
from coterie.files import Array
from coterie.rng import Rng

Float = type[np.floating]
Randomness = Any
"""A generator, a stream, a key's: a mechanism's own ``source`` makes it and its own ``release`` takes it."""


@dataclass(frozen=True)
class Mechanism:
    """Noise of ``deviation`` on a sum that one record may move by at most ``sensitivity``."""

    release: Callable[[Array, Randomness], Array] = field(repr=False)
    exact: Callable[[Array], Array] = field(repr=False)
    source: Callable[[int], Randomness] = field(repr=False)
    seed_bits: int
    deviation: float
    sensitivity: float = 1.0
    most_records: int = 50_000  # that it can be tried with in reasonable time

    def __post_init__(self) -> None:
        require(self.seed_bits > 0, "seed_bits", self.seed_bits, "must be at least 1")
        require(self.deviation > 0, "deviation", self.deviation, "must be positive")
        require(self.sensitivity > 0, "sensitivity", self.sensitivity, "must be positive")

    def seeded(self, records: Array, seed: int) -> Array:
        return np.asarray(self.release(records, self.source(seed)))

    def seed(self, rng: Rng) -> int:
        """A seed as good as the mechanism takes."""
        words = b"".join(rng.child("word", word).key for word in range(-(-self.seed_bits // 128)))
        return int.from_bytes(words, "little") % (1 << self.seed_bits)
