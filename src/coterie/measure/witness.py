"""Who contributed to which cluster: the truth about a run, noted before any guard and where no attack can reach it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from coterie.data.federation import Federation
from coterie.flow.client import Answer
from coterie.measure.judge import YesNo
from coterie.wire.codec import register
from coterie.wire.messages import TRAIN, Down, Kind


@register
@dataclass
class Witness:
    """Shown each answer as it was before the clients' guard: ``Ring(witness=...)``. It remembers who was where."""

    kind: Kind = TRAIN
    slots: dict[int, int] = field(default_factory=dict)  # round -> how many there were
    members: dict[int, dict[int, list[int]]] = field(default_factory=dict)  # round -> slot -> clients

    def __call__(self, asked: Down, answer: Answer) -> None:
        if asked.kind != self.kind or answer.chosen is None:
            return
        self.slots[asked.round] = answer.chosen.shape[1]
        members = self.members.setdefault(asked.round, {})
        for position, slot in answer.chosen.nonzero().tolist():
            members.setdefault(slot, []).append(int(answer.up.clients[position]))

    def sizes(self) -> dict[tuple[int, int], int]:
        """How many clients stood behind each (round, cluster)."""
        return {
            (round, slot): len(clients) for round, by_slot in self.members.items() for slot, clients in by_slot.items()
        }

    def property_truth(self, federation: Federation) -> YesNo:
        """For each (round, cluster) with members: whether a client in it used a property batch (paper 000)."""
        answers: dict[Hashable, bool] = {}
        strata: dict[Hashable, Hashable] = {}
        for round, by_slot in self.members.items():
            for slot, clients in by_slot.items():
                used = (
                    client in federation.schedules and federation.schedules[client].is_marked(round)
                    for client in clients
                )
                answers[round, slot] = any(used)
                strata[round, slot] = slot
        return YesNo(answers, strata)
