"""What the tests beside this share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.seal.cipher import Grid
from coterie.seal.masked import MaskedBatch, Opening, largest_value
from coterie.seal.pairwise import Advert, Party
from coterie.seal.roster import Roster
from coterie.seal.streams import Packed, Words, pack

IDS = [3, 5, 8, 9, 12, 20, 21]
MEMBERSHIP = torch.tensor([[1, 0], [1, 1], [1, 1], [0, 1], [1, 1], [0, 1], [1, 0]])
GRID = Grid()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def on_grid(values: Tensor) -> Tensor:
    return torch.round(values * 2**24) / 2**24


@dataclass
class Round:
    """The four exchanges as plainly as they can be written; whoever is not in a list does not answer any more."""

    roster: Roster
    parties: dict[int, Party]
    adverts: dict[int, Advert]

    @staticmethod
    def of(ids: Sequence[int], membership: Tensor, neighbours: int | None = None) -> Round:
        """After the first exchange: everybody in it has announced itself."""
        parties = {client: Party(client) for client in ids}
        adverts = {client: Advert.from_bytes(party.advert.to_bytes()) for client, party in parties.items()}
        return Round(Roster.of(ids, membership, neighbours), parties, adverts)

    def share(self, sharing: Collection[int] | None = None) -> Round:
        """The second exchange, and its boxes delivered; only those who shared can mask."""
        here = sorted(self.parties if sharing is None else sharing)
        boxes = {client: self.parties[client].share(self.roster, self.adverts) for client in here}
        for sender, sent in boxes.items():
            for holder in here:
                if holder in sent:
                    self.parties[holder].receive(sender, sent[holder], self.adverts, self.roster)
        return replace(self, roster=self.roster.masked_by(here))

    def mask(self, values: Tensor, ids: Sequence[int]) -> MaskedBatch:
        """The third exchange: of clients with values (clients, length), or (clients, slots, length) slot by slot."""
        slots = range(len(self.roster.members))
        steps = GRID.round(values, largest_value(GRID, len(self.roster.ids))).astype(np.int64).view(np.uint64)
        cells = np.broadcast_to(steps[:, None] if steps.ndim == 2 else steps, (len(ids), len(slots), steps.shape[-1]))
        rows = tuple(
            tuple(self._masked(client, slot, cells[at, slot]) for slot in slots) for at, client in enumerate(ids)
        )
        return MaskedBatch(tuple(ids), rows, {"w": (values.shape[-1],)}, GRID)

    def _masked(self, client: int, slot: int, words: Words) -> Packed | None:
        if slot not in self.roster.slots_of(client):
            return None
        return pack(self.parties[client].mask(words, slot, self.roster, self.adverts), 8)

    def opening(self, survivors: Collection[int], helping: Collection[int] | None = None) -> Opening:
        """The fourth exchange."""
        asked = survivors if helping is None else helping
        answers = {client: self.parties[client].answer(survivors, self.roster) for client in asked}
        return Opening(self.roster, self.adverts, answers)


def members(roster: Roster, ids: Sequence[int]) -> Tensor:
    return torch.tensor([[client in slot for slot in roster.members] for client in ids])


def ready(neighbours: int | None = None) -> Round:
    return Round.of(IDS, MEMBERSHIP, neighbours).share()
