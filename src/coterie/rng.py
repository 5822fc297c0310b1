"""Randomness as streams by name, not by turn.

``rng.child("client", 7, "round", 3, "noise")`` is the same stream whatever was drawn before it, so results do
not depend on the order, the chunk size or the engine. The name states the draw's lifetime: what contains no
round is drawn once for all rounds.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
import torch

from coterie.errors import require


@dataclass(frozen=True)
class Rng:
    """A node in the tree of streams."""

    key: bytes

    @staticmethod
    def seeded(seed: int) -> Rng:
        require(seed >= 0, "seed", seed, "must be a whole number of at least 0")
        return Rng(hashlib.blake2b(f"coterie/{seed}".encode(), digest_size=16).digest())

    @staticmethod
    def from_entropy() -> Rng:
        """A root that nobody can know: what a deployed client takes its privacy noise from."""
        return Rng(secrets.token_bytes(16))

    def child(self, *names: str | int) -> Rng:
        path = "/".join(map(str, names))
        return Rng(hashlib.blake2b(path.encode(), key=self.key, digest_size=16).digest())

    def seed(self) -> int:
        """A 63-bit number, for libraries that want one."""
        return int.from_bytes(self.key[:8], "little") >> 1

    def torch(self) -> torch.Generator:
        generator = torch.Generator()
        generator.manual_seed(self.seed())
        return generator

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.key, "little")))
