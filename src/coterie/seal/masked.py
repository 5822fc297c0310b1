"""Secure sums behind the interface of ciphers: one masked vector a client and cluster.

Masks differ from cluster to cluster, so every client sends as many vectors as its identity set is large, at 8 bytes a
value. Exact mingling therefore costs nothing more here than mingling.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal.cipher import Cipher, DamagedCiphertexts, Grid, as_cells, binary
from coterie.seal.pairwise import Party, Roster, Words, unmask
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum


@dataclass(frozen=True)
class SecureSum(Cipher):
    """The cipher of one round, for the clusters that its clients have announced."""

    roster: Roster
    grid: Grid = field(default_factory=Grid)

    @property
    def largest(self) -> float:
        """Sums stay below 2^63 steps of the grid."""
        return float(2.0 ** (62 - self.grid.bits) / max(len(self.roster.ids), 1))

    def keygen(self) -> Session:
        return Session(self)

    def seal(self, values: Tensor, key: Session, ids: Sequence[int], membership: Tensor | None = None) -> MaskedBatch:
        """Values (clients, slots, length) with a membership, or (clients, length) to go to all their clusters."""
        if key.cipher != self:
            raise NotPermitted("key was made for another round; call keygen on this cipher")
        if membership is None:
            flags = self._announced(ids)
            values = values.unsqueeze(1).expand(-1, len(self.roster.members), -1)
        else:
            flags = membership
        cells, sealed = as_cells(values, ids, flags)
        require(
            torch.equal(sealed, self._announced(ids)),
            "membership of clients",
            list(ids),
            "must be what they announced for this round; make a roster of it first",
        )
        steps = self.grid.round(cells, self.largest).astype(np.int64).view(np.uint64)
        rows = tuple(
            tuple(key._mask(client, steps[i, s], s) if sealed[i, s] else None for s in range(sealed.shape[1]))
            for i, client in enumerate(ids)
        )
        return MaskedBatch(key.name, tuple(ids), rows, cells.shape[-1], self.grid)

    def _announced(self, ids: Sequence[int]) -> Tensor:
        unknown = set(ids) - set(self.roster.ids)
        require(not unknown, "clients", sorted(unknown), "are not on the roster of this round")
        return torch.tensor([[client in members for members in self.roster.members] for client in ids])


class Session:
    """All parties of one round in one process: what a simulation holds in place of many machines.

    Deployed, each client holds its own ``Party``, and adverts, boxes and answers travel through the server.
    """

    def __init__(self, cipher: SecureSum) -> None:
        self.cipher, self.name = cipher, secrets.token_bytes(16)
        self._parties = {client: Party(client, cipher.roster) for client in cipher.roster.ids}
        self.adverts = {client: party.advert for client, party in self._parties.items()}
        self.setup_bytes = 64 * len(self.adverts)
        for sender, party in self._parties.items():
            for holder, box in party.share(self.adverts).items():
                self._parties[holder].receive(sender, box, self.adverts)
                self.setup_bytes += len(box)

    def _mask(self, client: int, words: Words, slot: int) -> Words:
        return self._parties[client].mask(words, slot, self.adverts)

    def _unmask(self, total: MaskedSum) -> dict[int, Words]:
        answers = [self._parties[client].answer(total.ids) for client in sorted(total.ids)]
        sums = {slot: words for slot, words in enumerate(total.words) if words is not None}
        return unmask(sums, self.cipher.roster, self.adverts, answers, total.ids)


@register
@dataclass(frozen=True)
class MaskedBatch(SealedBatch):
    """Masked vectors. One alone opens for nobody; the sum over a whole cluster does."""

    round_name: bytes
    ids: tuple[int, ...]
    words: tuple[tuple[Words | None, ...], ...] = field(repr=False)  # (clients, slots)
    length: int
    grid: Grid

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return sum(words.nbytes for row in self.words for words in row if words is not None)

    def pick(self, positions: Sequence[int]) -> MaskedBatch:
        ids, rows = tuple(self.ids[i] for i in positions), tuple(self.words[i] for i in positions)
        return MaskedBatch(self.round_name, ids, rows, self.length, self.grid)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> MaskedBatch:
        batches = [part for part in parts if isinstance(part, MaskedBatch)]
        first = batches[0]
        kind = (first.round_name, first.length)
        require(
            len(batches) == len(parts) and all((b.round_name, b.length) == kind for b in batches),
            "batches",
            len(parts),
            "must all be masked in the same round and of the same length to be joined",
        )
        ids = tuple(client for batch in batches for client in batch.ids)
        rows = tuple(row for batch in batches for row in batch.words)
        return cls(first.round_name, ids, rows, first.length, first.grid)

    def add(self, membership: Tensor) -> MaskedSum:
        flags = binary(membership, self.ids)
        damaged = {}
        for i, row in enumerate(self.words):
            held = [words is not None for words in row]
            if flags[i].tolist() != held:
                damaged[i] = f"membership must be what it masked for, {[int(h) for h in held]}, or masks do not cancel"
            elif any(words is not None and words.shape != (self.length,) for words in row):
                damaged[i] = f"masked vectors must have the round's length {self.length}"
        if damaged:
            raise DamagedCiphertexts(damaged, self.ids)
        totals: list[Words | None] = [None] * flags.shape[1]
        for row in self.words:
            for slot, words in enumerate(row):
                if words is not None:
                    before = totals[slot]
                    totals[slot] = words.copy() if before is None else np.add(before, words, out=before)
        return MaskedSum(self.round_name, frozenset(self.ids), tuple(totals), self.length, self.grid)

    def open(self, key: Any) -> Tensor:
        raise NotPermitted(f"key={type(key).__name__} cannot open single clients: only sums over a cluster open")


@dataclass(frozen=True)
class MaskedSum(SealedSum):
    """Sums that are still masked by the seeds of those in them, and by partners that dropped out."""

    round_name: bytes
    ids: frozenset[int]
    words: tuple[Words | None, ...] = field(repr=False)
    length: int
    grid: Grid

    @property
    def slots(self) -> int:
        return len(self.words)

    @property
    def nbytes(self) -> int:
        return sum(words.nbytes for words in self.words if words is not None)

    def __add__(self, other: SealedSum) -> MaskedSum:
        if not isinstance(other, MaskedSum) or self._kind != other._kind or self.ids & other.ids:
            raise InvalidInput(f"sum={other!r} must be of the same round and of other clients to be added")
        words = tuple(
            right if left is None else left if right is None else left + right
            for left, right in zip(self.words, other.words)
        )
        return MaskedSum(self.round_name, self.ids | other.ids, words, self.length, self.grid)

    def open(self, key: Any) -> Tensor:
        """The plain sums over all clients that are in; the others on the roster count as dropped out."""
        if not isinstance(key, Session) or key.name != self.round_name:
            raise NotPermitted(f"key={type(key).__name__} cannot open the sums; the round's survivors do together")
        plain = key._unmask(self)
        steps = np.zeros((self.slots, self.length))
        for slot, words in plain.items():
            steps[slot] = words.view(np.int64)
        return self.grid.values(steps)

    @property
    def _kind(self) -> tuple[bytes, int, int]:
        return self.round_name, self.length, self.slots
