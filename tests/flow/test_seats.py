"""Adversaries at the server, who has which seat, drop-outs, and the loop itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.flow.zeros import MODEL, ONCE, PAIR, PROTOCOL, SERVER, TAPS, Wire, Zeros, assert_zero_for, honest, uploads
from tests.ring import Play, blobs, play

from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.learn.params import map_leaves
from coterie.learn.sgd import Local
from coterie.protocols.fedem import FedEM
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Down, Message, Published
from coterie.wire.tape import Tape
from coterie.wire.view import OVERHEARD, Entries, ThreatModel, View

# -- at the server --------------------------------------------------------------------------------------------------


@dataclass
class Liar:
    """Publishes zeros in place of the models, and notes what it had seen before."""

    threat: ThreatModel = SERVER
    kinds: list[list[str]] = field(default_factory=list)
    saw: list[list[int]] = field(default_factory=list)

    def publish(self, published: Published, so_far: View, rng: Rng) -> Published:
        self.saw.append(so_far.rounds())
        self.kinds.append([str(kind) for kind in so_far.kinds()])
        return replace(published, values=map_leaves(torch.zeros_like, published.values))


def test_the_server_s_adversary_publishes_something_else() -> None:
    liar, tape = Liar(), Tape([SERVER, PAIR])
    done = play(PROTOCOL, blobs(), MODEL, tape=tape, adversaries=[liar])
    assert liar.saw == [[], [0], [0, 1]]
    for round in range(3):
        given = tape.view(PAIR).received(round).values  # a client was given zeros
        assert all(float(leaf.abs().sum()) == 0 for leaf in given.values())
    last = uploads(tape, round=2)
    for name, leaf in done.state.published.values.items():  # and the mean is of what was trained from them
        torch.testing.assert_close(leaf[0], last[name].mean(0))


def test_it_has_no_say_in_a_guard_s_own_exchanges() -> None:
    liar = Liar()
    play(replace(PROTOCOL, rounds=2), blobs(), MODEL, tape=Tape([SERVER]), adversaries=[liar], defence=SecureSums())
    assert len(liar.saw) == 2  # once a request, though each takes four exchanges
    assert liar.kinds[1] == ["train", "train/masked", "train/open", "train/shares"]


# -- seats ----------------------------------------------------------------------------------------------------------


@dataclass
class Looking:
    threat: ThreatModel = SERVER


@pytest.mark.parametrize("adversary", [Wire(), Liar()], ids=["wire", "server"])
def test_whoever_decides_by_what_it_saw_needs_a_tape(adversary: Any) -> None:
    with pytest.raises(InvalidInput, match="decide by what they have seen; pass a tape"):
        play(PROTOCOL, blobs(), MODEL, adversaries=[adversary])
    with pytest.raises(InvalidInput, match=rf"threat='{adversary.threat.name}' was not declared when the tape was"):
        play(PROTOCOL, blobs(), MODEL, adversaries=[adversary], tape=Tape([PAIR]))


@pytest.mark.parametrize(
    "adversary",
    [
        Zeros(TAPS),  # it could answer, but is nobody
        Zeros(SERVER),
        Wire(PAIR),  # it could intercept, but taps nothing
        Liar(TAPS),  # it could publish, but is not the server
        Zeros(ThreatModel("a passer-by")),
        Looking(),  # it is the server, but does nothing: its view is all that it needs
    ],
    ids=lambda adversary: f"{type(adversary).__name__} as {adversary.threat.name}",
)
def test_an_adversary_without_a_seat_is_refused(adversary: Any) -> None:
    with pytest.raises(InvalidInput, match=f"adversary '{adversary.threat.name}' has no seat from which to act"):
        play(PROTOCOL, blobs(), MODEL, adversaries=[adversary], tape=Tape([adversary.threat, SERVER]))


def test_one_adversary_in_two_seats() -> None:
    threat = ThreatModel("client 0 on the link of 5", clients=frozenset({0}), taps=frozenset({5}))

    @dataclass
    class InTwoSeats:
        threat: ThreatModel

        def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
            return replace(honest, values=map_leaves(torch.zeros_like, honest.values))

        def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
            return Wire(replace(threat, clients=frozenset())).intercept(message, so_far, rng)

    tape = Tape([threat, SERVER])
    play(ONCE, blobs(), MODEL, tape=tape, adversaries=[InTwoSeats(threat)])
    assert_zero_for({0, 5}, uploads(tape))


# -- an insider that taps --------------------------------------------------------------------------------------------


@dataclass
class Listening:
    """Notes what it had overheard when it was asked."""

    threat: ThreatModel
    heard: list[Any] = field(default_factory=list)

    def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
        self.heard.append(memory.get(OVERHEARD))
        memory["asked"] = asked.round
        return honest


def listening(share: float = 1.0, entries: Entries = Entries.RANDOM) -> Listening:
    return Listening(
        ThreatModel("0 that taps 3", clients=frozenset({0}), taps=frozenset({3}), share=share, entries=entries)
    )


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_an_insider_that_taps_remembers_the_last_upload(chunk_bytes: int) -> None:
    tape, insider = Tape([SERVER]), listening()
    done = play(PROTOCOL, blobs(), MODEL, tape=tape, adversaries=[insider], chunk_bytes=chunk_bytes)
    assert insider.heard[0] is None  # when it is asked first, nothing has passed
    for round, heard in enumerate([*insider.heard[1:], done.ring.memory[-1][OVERHEARD]]):
        assert list(heard) == [3]
        sent = heard[3].sent
        assert (heard[3].round, sent.ids.tolist()) == (round, [3])
        for name, leaf in uploads(tape, round).items():
            assert torch.equal(sent.values[name][0, 0], leaf[3])


def test_it_overhears_the_share_that_it_reads_and_nothing_else() -> None:
    insider = listening(0.5)
    play(PROTOCOL, blobs(), MODEL, adversaries=[insider])
    sent = insider.heard[-1][3].sent
    read = insider.threat.reads({name: leaf[0] for name, leaf in sent.values.items()})
    for name, leaf in sent.values.items():
        assert torch.equal(~leaf[0].isnan(), read[name])
    assert bool(sent.weights.isnan().all())
    assert bool(sent.membership.isnan().all())


def test_under_seals_it_overhears_no_values() -> None:
    insider = listening()
    play(PROTOCOL, blobs(), MODEL, adversaries=[insider], defence=SecureSums())
    assert all(not heard[3].sent.values for heard in insider.heard if heard)


def test_what_it_overheard_is_resumed_and_the_same_in_two_processes() -> None:
    whole = play(PROTOCOL, blobs(), MODEL, adversaries=[listening()])
    state, memory = whole.states[-2], whole.memories[-2]
    resumed = play(PROTOCOL, blobs(), MODEL, adversaries=[listening()], state=state, memory=memory)
    elsewhere = play(PROTOCOL, blobs(), MODEL, adversaries=[listening()], chunk_bytes=1, processes=2)
    assert encode(resumed.ring.memory) == encode(whole.ring.memory)
    heard, same = (done.ring.memory[-1][OVERHEARD][3].sent.values for done in (whole, elsewhere))
    for name, leaf in heard.items():
        torch.testing.assert_close(leaf, same[name])


# -- drop-outs ------------------------------------------------------------------------------------------------------


def without(clients: Collection[int], round: int) -> Callable[[Down], Collection[int]]:
    return lambda asked: clients if asked.round == round else ()


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_a_lost_answer_is_missing_and_nothing_else_happens(chunk_bytes: int) -> None:
    done = play(ONCE, blobs(), MODEL, lost=without([1, 4], 0), chunk_bytes=chunk_bytes)
    for name, leaf in honest().items():
        torch.testing.assert_close(done.state.published.values[name][0], leaf[[0, 2, 3, 5]].mean(0))
    assert done.state.published.sizes.tolist() == [4]


def test_a_round_in_which_nobody_answers_changes_nothing() -> None:
    done = play(PROTOCOL, blobs(), MODEL, lost=without(range(6), 1))
    assert len(done.asks) == 3
    before, after = (_models(done, round) for round in (1, 2))
    for name, leaf in before.items():
        assert torch.equal(leaf, after[name])
        assert not torch.equal(leaf, done.state.published.values[name])


def _models(done: Play, round: int) -> Any:
    return done.asks[round].published.values


def test_the_tape_and_the_count_hold_what_arrived() -> None:
    tape = Tape([SERVER])
    done = play(PROTOCOL, blobs(), MODEL, tape=tape, lost=without([2], 1))
    assert tape.view(SERVER).sent(1).ids.tolist() == [0, 1, 3, 4, 5]
    assert done.ring.traffic.answers == 17


def test_a_client_whose_answer_was_lost_remembers_that_it_answered() -> None:
    """It cannot know that its message never arrived."""
    protocol = FedEM(rounds=2, local=Local(steps=2, batch_size=4, lr=0.1), components=2)
    done = play(protocol, blobs(), MODEL, lost=without([3], 0))
    reached = play(protocol, blobs(), MODEL)
    assert sorted(done.ring.memory) == sorted(reached.ring.memory) == list(range(6))
    assert done.asks[1].published.sizes is not None
    assert done.asks[1].published.sizes.tolist() == [5, 5]


# -- the loop itself ------------------------------------------------------------------------------------------------


def test_a_tape_changes_nothing() -> None:
    assert play(PROTOCOL, blobs(), MODEL).bytes == play(PROTOCOL, blobs(), MODEL, tape=Tape([SERVER])).bytes


def test_a_guard_s_own_exchanges_are_not_saved_before() -> None:
    """A killed run goes on from the protocol's requests; what a guard asks besides starts over with them."""
    done = play(PROTOCOL, blobs(), MODEL, defence=SecureSums())
    assert [(ask.round, str(ask.kind)) for ask in done.asks] == [(0, "train"), (1, "train"), (2, "train")]
