"""Active attacks on vertical k-means: values in a party's name that put chosen records into a chosen cluster (003).

Of paper 003's Table 2, which names attacks on networks and not what they do here: *modification in transit* and
*impersonation* sit on a party's link, *colluding parties* are insiders who push the same records together. The two
others, profiling and reading a link, change nothing (``distance_geometry``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from coterie.errors import require
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import Contributions, Down, Message, Up
from coterie.wire.view import ThreatModel, View

DISTANCES = "distances"


class Way(Enum):
    MODIFY = "modification"  # distances of the chosen records from the target are made smaller
    IMPERSONATE = "impersonation"  # rows of the message are another table's: the party's own, in another order


def on_the_link(party: int) -> ThreatModel:
    return ThreatModel(f"on the link of party {party}", taps=frozenset({party}))


def colluding(parties: frozenset[int]) -> ThreatModel:
    return ThreatModel("colluding parties", clients=parties)


@dataclass(frozen=True)
class Steering:
    """From step ``begins`` on. ``strength``: the part of a record's range of distances that is taken off, or for
    impersonation the part of all rows that is another's. ``share`` of the records are chosen."""

    threat: ThreatModel
    way: Way
    strength: float
    begins: int
    target: int = 0
    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, "strength", self.strength, "must lie in [0, 1]")
        require(0 < self.share <= 1, "share", self.share, "must lie in (0, 1]")

    def chosen(self, records: int) -> Tensor:
        """Which records are to end in the target: the same in every step, and for all who collude."""
        draws = torch.Generator().manual_seed(2025)
        return torch.randperm(records, generator=draws)[: max(1, round(self.share * records))]

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        return self._changed(honest) if str(asked.kind) == DISTANCES and asked.round >= self.begins else honest

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if not isinstance(message, Up) or str(message.kind) != DISTANCES or message.round < self.begins:
            return message
        return replace(message, sent=self._changed(message.sent))

    def _changed(self, sent: Contributions) -> Contributions:
        if DISTANCES not in sent.values:
            return sent
        mine = torch.tensor([client in self.threat.parties for client in sent.ids.tolist()])
        leaf = sent.values[DISTANCES].clone()
        for position in mine.nonzero().flatten().tolist():
            leaf[position, 0] = self._rows(leaf[position, 0])
        return replace(sent, values={**sent.values, DISTANCES: leaf})

    def _rows(self, rows: Tensor) -> Tensor:
        """(records, clusters) as they are sent on."""
        found = rows.clone()
        if self.way is Way.IMPERSONATE:
            taken = torch.randperm(len(rows), generator=torch.Generator().manual_seed(7))
            taken = taken[: round(self.strength * len(rows))]
            found[taken] = rows[taken.roll(1)]
            return found
        chosen = self.chosen(len(rows))
        wide = rows[chosen].amax(1) - rows[chosen].amin(1)
        found[chosen, self.target] -= self.strength * wide
        return found
