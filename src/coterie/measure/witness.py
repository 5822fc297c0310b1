"""Who contributed to which cluster: the truth about a run, noted where no attack can reach it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from coterie.data.federation import Federation
from coterie.flow.drive import Transport
from coterie.measure.judge import YesNo
from coterie.wire.messages import Contributions, Envelope, Published


@dataclass
class Witness:
    """A ``Transport`` that passes everything on and remembers, for each round, who was in which cluster."""

    transport: Transport
    kind: str = "train"
    slots: dict[int, int] = field(default_factory=dict)  # round -> how many there were
    members: dict[int, dict[int, list[int]]] = field(default_factory=dict)  # round -> slot -> clients

    def exchange(self, ask: Envelope) -> Iterator[Envelope]:
        if ask.kind == self.kind and isinstance(ask.payload, Published):
            self.slots[ask.round] = ask.payload.slots
            self.members[ask.round] = {}
        for envelope in self.transport.exchange(ask):
            if ask.kind == self.kind and isinstance(envelope.payload, Contributions):
                self._note(ask.round, envelope.clients, envelope.payload.membership)
            yield envelope

    def _note(self, round: int, clients: Tensor, membership: Tensor) -> None:
        for position, slot in membership.nonzero().tolist():
            self.members[round].setdefault(slot, []).append(int(clients[position]))

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
