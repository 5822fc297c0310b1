"""A cipher for speed in simulations: plain values behind the same door, and the bytes the real one would send.

It protects nothing on its own: whoever can read the process's memory reads the values. What it does keep is the
interface: it refuses to open without the key, and it opens to the same bits as CKKS.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal.cipher import Cipher, Floats, as_cells, binary
from coterie.seal.ckks import Ckks
from coterie.seal.ckks_wire import message_bytes
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum, SecretKey


@dataclass(frozen=True)
class MockKey(SecretKey):
    """Opens what was sealed with it, and nothing else."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)

    def to_bytes(self) -> bytes:
        return self.secret

    @property
    def context(self) -> bytes:
        """What the server may hold: enough to know the key again, not to be it."""
        return hashlib.blake2b(self.secret, digest_size=16, person=b"coterie mock id").digest()


@dataclass(frozen=True)
class MockCipher(Cipher):
    """Stands in for these CKKS settings, with the same limits."""

    like: Ckks = field(default_factory=Ckks)

    @property
    def largest(self) -> float:
        return self.like.largest

    def keygen(self) -> MockKey:
        return MockKey()

    def seal(self, values: Tensor, key: MockKey, ids: Sequence[int], membership: Tensor | None = None) -> MockBatch:
        cells, sealed = as_cells(values, ids, membership)
        steps = self.like.grid.round(cells, self.like.largest)
        filled = sealed.numpy() & steps.any(-1)
        places = np.where(filled, np.cumsum(filled).reshape(filled.shape) - 1, -1)
        return MockBatch(self.like, key.context, tuple(ids), sealed.numpy(), places, _rows(steps, filled))

    def seal_for_one(
        self, values: Tensor, one_hot: Tensor, key: MockKey, ids: Sequence[int], membership: Tensor
    ) -> MockBatch:
        """Zeros are not kept: only their bytes count."""
        cells, _ = as_cells(values, ids, None)
        sealed = binary(membership, ids).numpy()
        require(not bool((one_hot.numpy() & ~sealed).any()), "membership", "a client", "must hold its own slot")
        steps = self.like.grid.round(cells, self.like.largest)[:, 0]
        places = np.where(one_hot.numpy(), np.arange(len(steps))[:, None], -1)
        return MockBatch(self.like, key.context, tuple(ids), sealed, places, steps)


@register
@dataclass(frozen=True)
class MockBatch(SealedBatch):
    stands_in: ClassVar[bool] = True

    settings: Ckks
    context: bytes
    ids: tuple[int, ...]
    sealed: NDArray[np.bool_]  # (clients, 1 | slots): which ciphertexts there would be
    _places: NDArray[np.int64] = field(repr=False)  # (clients, 1 | slots): the row of each; -1: zeros
    _steps: Floats = field(repr=False)  # (rows, length)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return int(self.sealed.sum()) * message_bytes(self._steps.shape[-1], fresh=True)

    def pick(self, positions: Sequence[int]) -> MockBatch:
        rows = list(positions)
        ids = tuple(self.ids[i] for i in rows)
        places = self._places[rows]
        kept = np.unique(places[places >= 0])
        moved = np.where(places >= 0, np.searchsorted(kept, places), -1)
        return MockBatch(self.settings, self.context, ids, self.sealed[rows], moved, self._steps[kept])

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> MockBatch:
        batches = [part for part in parts if isinstance(part, MockBatch)]
        first = batches[0]
        require(
            len(batches) == len(parts) and all(b._kind == first._kind for b in batches),
            "batches",
            len(parts),
            "must all be mocks of the same key and length to be joined",
        )
        starts = np.cumsum([0] + [len(batch._steps) for batch in batches])
        return cls(
            first.settings,
            first.context,
            tuple(client for batch in batches for client in batch.ids),
            np.concatenate([batch.sealed for batch in batches]),
            np.concatenate(
                [np.where(b._places >= 0, b._places + at, -1) for b, at in zip(batches, starts[:-1], strict=True)]
            ),
            np.concatenate([batch._steps for batch in batches]),
        )

    def add(self, membership: Tensor) -> MockSum:
        flags = binary(membership, self.ids).numpy()
        targets = self.sealed.shape[1]
        require(targets in (1, flags.shape[1]), "slots", flags.shape[1], f"must be the {targets} that were sealed")
        members = flags.sum(0)
        require(
            members.max(initial=0) <= self.settings.members,
            "clients in one sum",
            int(members.max(initial=0)),
            f"must be at most {self.settings.members}; raise Ckks(members=...)",
        )
        missing = flags & ~self.sealed
        require(not missing.any(), "ciphertext for (client, slot)", np.argwhere(missing)[:1].tolist(), "is missing")
        places = np.broadcast_to(self._places, flags.shape)
        shares = np.zeros((flags.shape[1], len(self._steps)))
        clients, slots = np.nonzero(flags & (places >= 0))
        shares[slots, places[clients, slots]] = 1
        # Whole numbers below 2^53 in float64: the product is exact in any order.
        return MockSum(self.settings, self.context, tuple(members.tolist()), shares @ self._steps)

    def open(self, key: object) -> Tensor:
        _check(key, self.context, "these values")
        steps = np.zeros((*self._places.shape, self._steps.shape[1]))
        steps[self._places >= 0] = self._steps[self._places[self._places >= 0]]
        return self.settings.grid.values(steps[:, 0] if self.sealed.shape[1] == 1 else steps)

    @property
    def _kind(self) -> tuple[Ckks, bytes, tuple[int, ...]]:
        return self.settings, self.context, (self.sealed.shape[1], self._steps.shape[1])


@register
@dataclass(frozen=True)
class MockSum(SealedSum):
    stands_in: ClassVar[bool] = True

    settings: Ckks
    context: bytes
    members: tuple[int, ...]
    _steps: Floats = field(repr=False)  # (slots, length)

    @property
    def slots(self) -> int:
        return len(self.members)

    @property
    def nbytes(self) -> int:
        return sum(count > 0 for count in self.members) * message_bytes(self._steps.shape[-1], fresh=False)

    def __add__(self, other: SealedSum) -> MockSum:
        if not isinstance(other, MockSum) or self._kind != other._kind:
            raise InvalidInput(f"sum={other!r} must be a mock of the same key, length and slots to be added")
        members = tuple(a + b for a, b in zip(self.members, other.members, strict=True))
        return MockSum(self.settings, self.context, members, self._steps + other._steps)

    def open(self, key: object) -> Tensor:
        _check(key, self.context, "the sums")
        return self.settings.grid.values(self._steps)

    @property
    def _kind(self) -> tuple[Ckks, bytes, tuple[int, ...]]:
        return self.settings, self.context, self._steps.shape


def _check(key: object, name: bytes, what: str) -> None:
    if not isinstance(key, MockKey) or key.context != name:
        raise NotPermitted(f"key={type(key).__name__} cannot open {what}; only the key they were sealed with does")


def _rows(steps: Floats, filled: NDArray[np.bool_]) -> Floats:
    """The filled cells (rows, length) of (clients, 1 | slots, length); without a copy where that is all of them."""
    return steps.reshape(-1, steps.shape[-1]) if filled.all() else steps[filled]
