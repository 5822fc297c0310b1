"""The round loop and what hangs off it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.params import map_leaves
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Envelope
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

MODEL = Dense((4, 3))
PROTOCOL = FedAvg(rounds=3, local=Local(steps=2, batch_size=4, lr=0.1), weighting="equal")
PAIR = ThreatModel("clients 1 and 4", clients=frozenset({1, 4}))


@dataclass
class Zeros:
    """Sends zeros for its clients, and notes what it was given."""

    threat: ThreatModel = PAIR
    spoof: bool = False

    def __post_init__(self) -> None:
        self.given: list[list[int]] = []
        self.saw: list[list[int]] = []
        self.draws: list[float] = []

    def tamper(self, envelope: Envelope, so_far: View, rng: Rng) -> Envelope:
        assert isinstance(envelope.payload, Contributions)
        self.given.append(envelope.clients.tolist())
        self.saw.append(so_far.rounds())
        self.draws.append(float(rng.numpy().random()))
        zeros = map_leaves(torch.zeros_like, envelope.payload.values)
        ids = envelope.payload.ids + self.spoof
        return replace(envelope, payload=replace(envelope.payload, values=zeros, ids=ids))


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_tampering_changes_the_adversary_s_clients_alone(chunk_bytes: int) -> None:
    federation, tamperer = blobs(), Zeros()
    server = ThreatModel("server", server=True)
    tapes = [Tape([PAIR, server]), Tape([server])]
    play(PROTOCOL, federation, MODEL, tape=tapes[0], tamperers=[tamperer], chunk_bytes=chunk_bytes)
    play(PROTOCOL, federation, MODEL, tape=tapes[1])
    changed, honest = (tape.view(server).sent(0) for tape in tapes)
    assert changed.ids.tolist() == honest.ids.tolist() == list(range(6))  # in the order in which they were asked
    for name in honest.values:
        for client in range(6):
            one, other = changed.values[name][client], honest.values[name][client]
            if client in PAIR.clients:
                assert float(one.abs().sum()) == 0
                assert float(other.abs().sum()) > 0
            else:
                torch.testing.assert_close(one, other)
    if chunk_bytes > 1:
        assert tamperer.given == [[1, 4]] * 3
    else:
        assert tamperer.given == [[1], [4]] * 3


def test_the_adversary_s_view_grows_with_the_rounds() -> None:
    tamperer = Zeros()
    play(PROTOCOL, blobs(), MODEL, tape=Tape([PAIR]), tamperers=[tamperer])
    assert tamperer.saw == [[0], [0, 1], [0, 1, 2]]
    assert len(set(tamperer.draws)) == 3


def test_the_mean_feels_it() -> None:
    """By hand: with equal weights and two of six clients at zero, the mean is two thirds of the honest four's."""
    federation = blobs()
    done = play(replace(PROTOCOL, rounds=1), federation, MODEL, tape=Tape([PAIR]), tamperers=[Zeros()])
    keep = [0, 2, 3, 5]
    alone = Tape([ThreatModel("server", server=True)])
    play(replace(PROTOCOL, rounds=1), federation, MODEL, tape=alone)
    honest = alone.view(alone.threats[0]).sent(0)
    for name, leaf in done.state.published.values.items():
        torch.testing.assert_close(leaf[0], honest.values[name][keep, 0].sum(0) / 6)


def test_it_may_not_speak_for_others() -> None:
    with pytest.raises(InvalidInput, match=r"clients for which clients 1 and 4 answers=\[2, 5\] must be its own"):
        play(PROTOCOL, blobs(), MODEL, tape=Tape([PAIR]), tamperers=[Zeros(spoof=True)])


def test_tampering_needs_a_tape() -> None:
    with pytest.raises(InvalidInput, match="tamperers need a tape"):
        play(PROTOCOL, blobs(), MODEL, tamperers=[Zeros()])


def test_a_tape_changes_nothing() -> None:
    server = ThreatModel("server", server=True)
    assert play(PROTOCOL, blobs(), MODEL).bytes == play(PROTOCOL, blobs(), MODEL, tape=Tape([server])).bytes
