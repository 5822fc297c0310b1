"""The round loop and what hangs off it: who answers, who does not, and who interferes from which seat."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.ring import Halves, Play, blobs, play
from torch import Tensor

from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Turn
from coterie.learn.models.dense import Dense
from coterie.learn.params import map_leaves
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.sattler import Sattler
from coterie.rng import Rng
from coterie.wire.codec import encode
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


# -- an insider -----------------------------------------------------------------------------------------------------


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
