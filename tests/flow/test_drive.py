"""The round loop and what hangs off it: who answers, who does not, and who interferes from which seat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.flow.zeros import (
    ALL_LINKS,
    MODEL,
    ONCE,
    PAIR,
    PROTOCOL,
    SERVER,
    TAPS,
    Wire,
    Zeros,
    assert_zero_for,
    honest,
    uploads,
)
from tests.ring import Halves, blobs, play

from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Turn
from coterie.learn.params import map_leaves
from coterie.protocols.sattler import Sattler
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Down, Kind, Message, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

# -- an insider -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_an_insider_answers_for_its_own_clients_alone(chunk_bytes: int) -> None:
    """It knows all that its clients do, however the others are cut into chunks."""
    insider, tape = Zeros(), Tape([PAIR, SERVER])
    play(PROTOCOL, blobs(), MODEL, tape=tape, adversaries=[insider], chunk_bytes=chunk_bytes)
    assert_zero_for(PAIR.clients, uploads(tape))
    assert insider.given == [[1, 4]] * 3


def test_an_insider_s_memory_grows_with_the_rounds() -> None:
    insider = Zeros()
    done = play(PROTOCOL, blobs(), MODEL, adversaries=[insider])
    assert insider.saw == [[0], [0, 1], [0, 1, 2]]
    assert len(set(insider.draws)) == 3
    assert done.ring.memory == {-1: {"rounds": [0, 1, 2]}}


def test_two_insiders_remember_apart() -> None:
    other = Zeros(ThreatModel("client 0", clients=frozenset({0})))
    insider, tape = Zeros(), Tape([SERVER])
    done = play(PROTOCOL, blobs(), MODEL, tape=tape, adversaries=[insider, other])
    assert_zero_for({0, 1, 4}, uploads(tape))
    assert other.given == [[0]] * 3
    assert done.ring.memory == {-1: {"rounds": [0, 1, 2]}, -2: {"rounds": [0, 1, 2]}}
    assert not set(insider.draws) & set(other.draws)


def test_the_mean_feels_it() -> None:
    """By hand: with equal weights and two of six clients at zero, the mean is two thirds of the honest four's."""
    done = play(ONCE, blobs(), MODEL, adversaries=[Zeros()])
    for name, leaf in honest().items():
        torch.testing.assert_close(done.state.published.values[name][0], leaf[[0, 2, 3, 5]].sum(0) / 6)


def test_an_insider_may_not_speak_for_others() -> None:
    with pytest.raises(InvalidInput, match=r"clients that answer=\[2, 5\] must be \[1, 4\]"):
        play(PROTOCOL, blobs(), MODEL, adversaries=[Zeros(spoof=True)])


@dataclass(frozen=True)
class Doubling(ClientGuard):
    """Opens what was published by halving it, and seals what leaves by adding one."""

    def receive(self, published: Published, turn: Turn) -> Published:
        return replace(published, values=map_leaves(lambda leaf: leaf / 2, published.values))

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        return replace(sent, values=map_leaves(lambda leaf: leaf + 1, sent.values))


def test_an_insider_stands_between_the_models_and_its_guard() -> None:
    """It is given the models as its clients open them, and what it answers is sealed like any answer."""
    insider, tape = Zeros(), Tape([SERVER])
    done = play(ONCE, blobs(), MODEL, tape=tape, adversaries=[insider], defence=Halves(Doubling()))
    for name, leaf in done.asks[0].published.values.items():
        assert torch.equal(insider.models[0].values[name], leaf / 2)
    for leaf in uploads(tape).values():
        assert torch.equal(leaf[[1, 4]], torch.ones_like(leaf[[1, 4]]))


def test_an_insider_is_given_the_slots_that_its_clients_are() -> None:
    protocol = Sattler(rounds=5, local=PROTOCOL.local, agreement=1.0, progress=0.0, wait=2, least=1, most=3)
    insider = Zeros(ThreatModel("client 1", clients=frozenset({1})))
    done = play(protocol, blobs(), MODEL, adversaries=[insider])
    assert done.asks[-1].published.slots > 1
    assert [models.slots for models in insider.models] == [1] * len(insider.models)


# -- on the wire ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_the_wire_changes_what_arrives_on_its_links(chunk_bytes: int) -> None:
    wire, tape = Wire(), Tape([TAPS, SERVER])
    done = play(ONCE, blobs(), MODEL, tape=tape, adversaries=[wire], chunk_bytes=chunk_bytes)
    assert_zero_for(TAPS.taps, uploads(tape))
    for name, leaf in honest().items():
        torch.testing.assert_close(done.state.published.values[name][0], leaf[[0, 2, 3, 5]].sum(0) / 6)


def test_the_wire_acts_after_the_guard() -> None:
    tape = Tape([TAPS, SERVER])
    play(ONCE, blobs(), MODEL, tape=tape, adversaries=[Wire()], defence=Halves(Doubling()))
    for leaf in uploads(tape).values():
        assert float(leaf[[1, 4]].abs().sum()) == 0


def test_the_wire_changes_what_clients_are_given() -> None:
    """Every client trains from zeros, and what it sends is what the server takes."""
    tape = Tape([ALL_LINKS, SERVER])
    done = play(ONCE, blobs(), MODEL, tape=tape, adversaries=[Wire(ALL_LINKS, Down)])
    given = tape.view(ALL_LINKS).received(0)
    assert all(float(leaf.abs().sum()) == 0 for leaf in given.values.values())
    assert any(float(leaf.abs().sum()) > 0 for leaf in done.asks[0].published.values.values())
    state = replace(done.asks[0].state, published=given.published)
    zeros = play(ONCE, blobs(), MODEL, state=encode(state))
    assert zeros.bytes == done.bytes


@dataclass
class Holding(Wire):
    """Notes whose messages it was handed."""

    held: list[list[int]] = field(default_factory=list)

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        self.held.append(message.clients.tolist())
        return super().intercept(message, so_far, rng)


def test_the_wire_is_handed_what_passes_on_its_own_links_alone() -> None:
    wire = Holding()
    play(ONCE, blobs(), MODEL, tape=Tape([TAPS]), adversaries=[wire])
    assert wire.held == [[1, 4], [1, 4]]


def test_the_wire_changes_what_is_sent_down_its_own_links_alone() -> None:
    tape = Tape([TAPS, SERVER])
    play(ONCE, blobs(), MODEL, tape=tape, adversaries=[Wire(TAPS, Down)])
    sent, before = uploads(tape), honest()
    for name, leaf in before.items():
        assert torch.equal(sent[name][[0, 2, 3, 5]], leaf[[0, 2, 3, 5]])
        assert not torch.equal(sent[name][[1, 4]], leaf[[1, 4]])


def test_the_wire_sees_more_with_the_rounds() -> None:
    wire = Wire()
    play(replace(PROTOCOL, rounds=2), blobs(), MODEL, tape=Tape([TAPS]), adversaries=[wire])
    assert wire.saw == [("Down", []), ("Up", [0]), ("Down", [0]), ("Up", [0, 1])]


def test_the_wire_passes_on_what_it_took() -> None:
    @dataclass
    class Mixing(Wire):
        how: Callable[[Message], Message] = lambda message: message

        def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
            return self.how(message)

    def to_another(message: Message) -> Message:
        return replace(message, clients=message.clients + 1) if isinstance(message, Down) else message

    def the_other_way(message: Message) -> Message:
        ids = message.clients
        return Up(message.kind, message.round, Contributions(ids, {}, torch.ones(len(ids)), torch.ones(len(ids), 1)))

    for how in (to_another, the_other_way):
        with pytest.raises(InvalidInput, match=r"message that links of 1 and 4 passes on=.* must be of the same kind"):
            play(ONCE, blobs(), MODEL, tape=Tape([TAPS]), adversaries=[Mixing(how=how)])


@pytest.mark.parametrize("how", [{"round": 0}, {"kind": Kind("place")}])
def test_the_wire_cannot_give_a_request_another_number(how: dict[str, Any]) -> None:
    """Noise goes by round and kind: the same number twice would be the same noise twice."""

    @dataclass
    class Renumbering(Wire):
        def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
            return replace(message, **how) if message.round == 1 else message

    with pytest.raises(InvalidInput, match="must be of the same kind, round and clients"):
        play(replace(PROTOCOL, rounds=2), blobs(), MODEL, tape=Tape([TAPS]), adversaries=[Renumbering()])


def test_what_the_wire_does_in_place_reaches_its_own_links_alone() -> None:
    @dataclass
    class Scribbling(Wire):
        def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
            leaves = message.published.values if isinstance(message, Down) else message.sent.values
            for leaf in leaves.values():
                leaf.add_(1000)
            return message

    tape = Tape([TAPS, SERVER])
    done = play(ONCE, blobs(), MODEL, tape=tape, adversaries=[Scribbling()])
    sent, before = uploads(tape), honest()
    for name, leaf in before.items():
        assert torch.equal(sent[name][[0, 2, 3, 5]], leaf[[0, 2, 3, 5]])
    assert all(float(leaf.abs().max()) < 100 for leaf in done.asks[0].published.values.values())


def test_an_idle_tap_changes_nothing_under_secure_sums() -> None:
    @dataclass
    class Idle(Wire):
        def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
            return message

    tapped = play(ONCE, blobs(), MODEL, defence=SecureSums(), tape=Tape([TAPS]), adversaries=[Idle()])
    assert tapped.bytes == play(ONCE, blobs(), MODEL, defence=SecureSums()).bytes
