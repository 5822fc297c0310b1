"""What the tests beside this share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tests.ring import blobs, play
from torch import Tensor

from coterie.learn.models.dense import Dense
from coterie.learn.params import map_leaves
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Down, Message, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

MODEL = Dense((4, 3))
PROTOCOL = FedAvg(rounds=3, local=Local(steps=2, batch_size=4, lr=0.1), weighting="equal")
ONCE = replace(PROTOCOL, rounds=1)
SERVER = ThreatModel("server", server=True)
PAIR = ThreatModel("clients 1 and 4", clients=frozenset({1, 4}))
TAPS = ThreatModel("links of 1 and 4", taps=frozenset({1, 4}))
ALL_LINKS = ThreatModel("all links", taps=frozenset(range(6)))


def uploads(tape: Tape, round: int = 0) -> dict[str, Tensor]:
    """What the server was sent, client by client."""
    sent = tape.view(SERVER).sent(round)
    assert sorted(sent.ids.tolist()) == list(range(6))
    order = sent.ids.argsort()
    return {name: leaf[order, 0] for name, leaf in sent.values.items()}


def honest() -> dict[str, Tensor]:
    tape = Tape([SERVER])
    play(ONCE, blobs(), MODEL, tape=tape)
    return uploads(tape)


def assert_zero_for(clients: Collection[int], sent: dict[str, Tensor]) -> None:
    """Zeros of these clients, and of the others what they would have sent anyway."""
    for name, leaf in honest().items():
        for client in range(6):
            if client in clients:
                assert float(sent[name][client].abs().sum()) == 0
                assert float(leaf[client].abs().sum()) > 0
            else:
                torch.testing.assert_close(sent[name][client], leaf[client])


@dataclass
class Zeros:
    """Sends zeros for its clients, and notes what it was given."""

    threat: ThreatModel = PAIR
    spoof: bool = False

    def __post_init__(self) -> None:
        self.given: list[list[int]] = []
        self.saw: list[list[int]] = []
        self.models: list[Published] = []
        self.draws: list[float] = []

    def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
        assert asked.clients.tolist() == honest.ids.tolist()
        self.given.append(honest.ids.tolist())
        memory["rounds"] = [*memory.get("rounds", []), asked.round]
        self.saw.append(memory["rounds"])
        self.models.append(asked.published)
        self.draws.append(float(rng.numpy().random()))
        return replace(honest, values=map_leaves(torch.zeros_like, honest.values), ids=honest.ids + self.spoof)


@dataclass
class Wire:
    """Sets to zero what passes one way on the links that it taps, and notes what it had seen before."""

    threat: ThreatModel = TAPS
    way: type[Down] | type[Up] = Up
    saw: list[tuple[str, list[int]]] = field(default_factory=list)

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        self.saw.append((type(message).__name__, so_far.rounds()))
        if not isinstance(message, self.way):
            return message
        if isinstance(message, Down):
            published = replace(message.published, values=map_leaves(torch.zeros_like, message.published.values))
            return replace(message, published=published)
        mine = self.threat.positions(message)
        theirs = message.sent.pick(mine)
        zeros = replace(theirs, values=map_leaves(torch.zeros_like, theirs.values))
        return replace(message, sent=message.sent.put(mine, zeros))
