"""Masked vectors behind the interface of sealed values: one a client and cluster, at 5 to 8 bytes a value.

Masks differ from cluster to cluster, so every client sends as many vectors as its identity set is large. Exact
mingling therefore costs nothing more here than mingling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal.cipher import DamagedCiphertexts, Grid, binary
from coterie.seal.pairwise import Adverts, Answers, unmask
from coterie.seal.roster import Roster
from coterie.seal.streams import WORD, Packed, Words, add_packed, signed, unpack
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum


def largest_value(grid: Grid, clients: int, width: int = WORD) -> float:
    """The largest a client may send, so that sums stay well within words of so many bytes."""
    return float(2.0 ** (8 * width - 2 - grid.bits) / max(clients, 1))


@register
@dataclass(frozen=True)
class MaskedBatch(SealedBatch):
    """Masked vectors. One alone opens for nobody; the sum over a whole cluster does."""

    ids: tuple[int, ...]
    words: tuple[tuple[Packed | None, ...], ...] = field(repr=False)  # (clients, slots)
    shapes: Mapping[str, tuple[int, ...]]  # what a vector is made of, leaf by leaf
    grid: Grid
    width: int = WORD  # bytes of a word

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @property
    def nbytes(self) -> int:
        return sum(words.nbytes for row in self.words for words in row if words is not None)

    def pick(self, positions: Sequence[int]) -> MaskedBatch:
        ids, rows = tuple(self.ids[i] for i in positions), tuple(self.words[i] for i in positions)
        return MaskedBatch(ids, rows, self.shapes, self.grid, self.width)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> MaskedBatch:
        batches = [part for part in parts if isinstance(part, MaskedBatch)]
        first = batches[0]
        require(
            len(batches) == len(parts)
            and all((batch.shapes, batch.width) == (first.shapes, first.width) for batch in batches),
            "batches",
            len(parts),
            "must all be masked vectors of the same leaves and words to be joined",
        )
        ids = tuple(client for batch in batches for client in batch.ids)
        return cls(ids, tuple(row for batch in batches for row in batch.words), first.shapes, first.grid, first.width)

    def add(self, membership: Tensor) -> MaskedSum:
        flags = binary(membership, self.ids)
        damaged = {}
        for i, row in enumerate(self.words):
            held = [words is not None for words in row]
            if flags[i].tolist() != held:
                damaged[i] = f"membership must be what it masked for, {[int(h) for h in held]}, or masks do not cancel"
            elif any(words is not None and not self._fits(words) for words in row):
                damaged[i] = f"masked vectors must be {self.length} words, as the leaves say"
        if damaged:
            raise DamagedCiphertexts(damaged, self.ids)
        totals: list[Words | None] = [None] * flags.shape[1]
        for row in self.words:
            for slot, words in enumerate(row):
                if words is None:
                    continue
                before = totals[slot]
                if before is None:
                    totals[slot] = unpack(words, self.width)
                else:
                    add_packed(before, words, self.width)
        return MaskedSum(frozenset(self.ids), tuple(totals), self.shapes, self.grid, self.width)

    def _fits(self, words: Packed) -> bool:
        return words.shape == (self.length * self.width,) and words.dtype == np.uint8

    def open(self, key: object) -> NoReturn:
        raise NotPermitted(f"key={type(key).__name__} cannot open single clients: only sums over a cluster open")


@dataclass(frozen=True)
class Opening:
    """What the survivors of a round give together: with it, and only with it, the masked sums open."""

    roster: Roster
    adverts: Adverts
    answers: Answers = field(repr=False)


@dataclass(frozen=True)
class MaskedSum(SealedSum):
    """Sums that are still masked by the seeds of those in them, and by partners that dropped out."""

    ids: frozenset[int]
    words: tuple[Words | None, ...] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]]
    grid: Grid
    width: int = WORD

    @property
    def slots(self) -> int:
        return len(self.words)

    @property
    def length(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @property
    def nbytes(self) -> int:
        return sum(words.nbytes for words in self.words if words is not None)

    def __add__(self, other: SealedSum) -> MaskedSum:
        if (
            not isinstance(other, MaskedSum)
            or (self.shapes, self.slots, self.width) != (other.shapes, other.slots, other.width)
            or self.ids & other.ids
        ):
            raise InvalidInput(
                f"sum={type(other).__name__} must be of the same leaves and of other clients to be added"
            )
        words = tuple(
            right if left is None else left if right is None else left + right
            for left, right in zip(self.words, other.words, strict=True)
        )
        return MaskedSum(self.ids | other.ids, words, self.shapes, self.grid, self.width)

    def unmasked(self, key: object) -> dict[int, Words]:
        """The sums over the clients that are in; others that masked count as dropped out. A veil stays on."""
        if not isinstance(key, Opening):
            raise NotPermitted(f"key={type(key).__name__} cannot open the sums; the round's survivors do together")
        words = {slot: words for slot, words in enumerate(self.words) if words is not None}
        return unmask(words, key.roster, key.adverts, key.answers, self.ids)

    def plain(self, unmasked: Mapping[int, Words]) -> Tensor:
        """These sums as values (slots, length), where no veil is on them; zeros for a cluster without."""
        steps = np.zeros((self.slots, self.length))
        for slot, words in unmasked.items():
            np.multiply(signed(words, self.width), 2.0**-self.grid.bits, out=steps[slot])
        return torch.from_numpy(steps)

    def open(self, key: object) -> Tensor:
        return self.plain(self.unmasked(key))
