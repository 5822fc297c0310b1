"""The engine: columns without a model, ragged memory, and going on from where it was, adversaries included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.ring import Halves, blobs, play
from torch import Tensor, nn

from coterie.data.federation import VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.mingling.defence import Mingling
from coterie.errors import InvalidInput
from coterie.flow.ask import Ask
from coterie.flow.client import Answer
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, ServerGuard
from coterie.flow.protocol import Protocol, Running, Server
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots, Turn
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import as_model
from coterie.learn.params import Params, map_leaves
from coterie.learn.sgd import Local
from coterie.measure.utility import evaluate
from coterie.privacy.ledger import Spend
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.seal.mock import MockCipher
from coterie.wire.codec import decode, encode, register
from coterie.wire.messages import Contributions, Down, Kind, Published
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

ROUNDS = 4
DISTANCES = Kind("distances")
SPLIT: tuple[tuple[int, ...], ...] = ((3,), (0, 1), (2, 4, 5, 6))  # parties of one, two and four columns
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
MODEL = Dense((4, 5, 3))


def by_columns() -> VerticalFederation:
    return Vertical(columns=SPLIT).split(blobs([4, 5], features=7).examples, Rng.seeded(0))


@register
@dataclass(frozen=True)
class Distances:
    """After so many rounds: how far each record is from a point that only the parties know, each its own part."""

    round: int
    squared: Tensor  # (records,)


@dataclass(frozen=True)
class FromHiddenPoint(Protocol[Distances]):
    """Each round, every party moves its part of the point half-way to its columns' means, and tells the distances.

    Squared distances add up over columns, so the sum over parties is that of whole records. The part that a party keeps
    is as long as its columns are many.
    """

    rounds: int = ROUNDS

    def start(self, server: Server) -> Distances:
        return Distances(0, torch.zeros(int(server.clients.sizes[0]), dtype=torch.float64))

    def run(self, state: Distances, server: Server) -> Running[Distances]:
        for round in range(state.round, self.rounds):
            asked = Ask(DISTANCES, round, server.clients.present(round), Published({"pull": torch.ones(1, 1)}), state)
            sums = yield from server.collect(asked)
            state = Distances(round + 1, state.squared if sums.empty else sums.values["squared"][0])
        return state

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        rows = []
        for columns, memory in zip(cohort.columns, cohort.memory, strict=True):
            part = columns.double()
            point = (memory.get("point", torch.zeros(part.shape[1], dtype=torch.float64)) + part.mean(0)) / 2
            memory["point"] = point
            rows.append((part - point).square().sum(1))
        values = {"squared": torch.stack(rows).unsqueeze(1)}
        return Contributions(cohort.ids, values, torch.ones(len(cohort)), torch.ones(len(cohort), 1))

    def result(self, state: Distances) -> Published:
        return Published({"squared": state.squared.unsqueeze(0)})


def expected(rounds: int) -> tuple[Tensor, Tensor]:
    """The point and the distances, from whole records."""
    x = by_columns().examples.x.double()
    point = x.mean(0) * (1 - 0.5**rounds)
    return point, (x - point).square().sum(1)


class TestColumns:
    @pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
    def test_a_federation_by_columns_runs_without_a_model(self, chunk_bytes: int) -> None:
        done = play(FromHiddenPoint(), by_columns(), None, chunk_bytes=chunk_bytes)
        point, squared = expected(ROUNDS)
        torch.testing.assert_close(done.state.squared, squared)
        for party, columns in enumerate(SPLIT):
            torch.testing.assert_close(done.ring.memory[party]["point"], point[list(columns)])

    def test_a_party_is_handed_its_own_columns_alone(self) -> None:
        federation, tape = by_columns(), Tape([ThreatModel("server", server=True)])
        play(FromHiddenPoint(rounds=1), federation, None, tape=tape)
        sent = tape.view(tape.threats[0]).sent(0, DISTANCES)
        for party in range(3):
            part = federation.part(party).double()
            assert part.shape == (len(federation.examples), len(SPLIT[party]))
            torch.testing.assert_close(sent.values["squared"][party, 0], (part - part.mean(0) / 2).square().sum(1))

    def test_ragged_memory_survives_the_wire_and_resuming(self) -> None:
        whole = play(FromHiddenPoint(), by_columns(), None)
        kept = decode(encode(whole.ring.memory))
        assert [len(kept[party]["point"]) for party in range(3)] == [1, 2, 4]
        assert encode(kept) == encode(whole.ring.memory)
        for state, memory in zip(whole.states, whole.memories, strict=True):
            resumed = play(FromHiddenPoint(), by_columns(), None, state=state, memory=memory)
            assert resumed.bytes == whole.bytes
            assert encode(resumed.ring.memory) == encode(whole.ring.memory)
        forgetful = play(FromHiddenPoint(), by_columns(), None, state=whole.states[2], memory=whole.memories[0])
        assert forgetful.bytes != whole.bytes  # so it was the memory that did it

    def test_in_two_processes(self) -> None:
        """A bound at which two fit at a time, and so not all three: in two messages a round."""
        tape = Tape([ThreatModel("server", server=True)])
        alone = play(FromHiddenPoint(), by_columns(), None, chunk_bytes=1300, tape=tape)
        assert len(tape) == ROUNDS * (1 + 2)
        shared = play(FromHiddenPoint(), by_columns(), None, chunk_bytes=1300, processes=2)
        assert shared.bytes == alone.bytes
        assert encode(shared.ring.memory) == encode(alone.ring.memory)

    def test_a_party_that_drops_out_is_missing_from_the_sum(self) -> None:
        lost = play(FromHiddenPoint(rounds=1), by_columns(), None, lost=lambda asked: [1])
        x = by_columns().examples.x.double()[:, [3, 2, 4, 5, 6]]
        torch.testing.assert_close(lost.state.squared, (x - x.mean(0) / 2).square().sum(1))

    def test_what_needs_rows_or_a_model_says_so(self) -> None:
        with pytest.raises(InvalidInput, match="model=None must be given: this protocol trains one"):
            play(FedAvg(rounds=1, local=LOCAL), blobs(), None)
        with pytest.raises(InvalidInput, match="is split by columns, and Ifca trains on rows; split it by rows"):
            play(Ifca(rounds=1, local=LOCAL, clusters=2, candidates=0), by_columns(), Dense((7, 2)))
        done = play(FromHiddenPoint(), by_columns(), None)
        with pytest.raises(InvalidInput, match="clients=columns hold columns and no examples"):
            _ = done.ring.everyone(done.state).rows
        with pytest.raises(InvalidInput, match="federation=columns has no rows of its own to score"):
            evaluate(done.ring, done.state)
        with pytest.raises(InvalidInput, match="model=None: this protocol trains one"):
            _ = done.ring.everyone(done.state).trained


# -- memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drifting:
    """Sends what it did last time, and a little of what it draws: all that it does depends on what it remembers."""

    threat: ThreatModel

    def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
        before = memory.get("sent", map_leaves(torch.zeros_like, honest.values))
        noise = float(rng.numpy().normal())
        memory["sent"] = {name: 0.5 * leaf + 0.1 * noise for name, leaf in before.items()}
        memory["rounds"] = (*memory.get("rounds", ()), asked.round)
        return replace(honest, values=memory["sent"])


PAIR = Drifting(ThreatModel("clients 1 and 4", clients=frozenset({1, 4})))
ONE = Drifting(ThreatModel("client 2", clients=frozenset({2})))


@pytest.mark.parametrize(
    "protocol",
    [FedAvg(rounds=4, local=LOCAL), FedEM(rounds=4, local=LOCAL, components=2)],
    ids=["fedavg", "fedem"],
)
class TestInsiders:
    def test_resumed_to_the_same_bytes(self, protocol: Any) -> None:
        whole = play(protocol, blobs(), MODEL, adversaries=[PAIR, ONE])
        assert whole.ring.memory[-1]["rounds"] == whole.ring.memory[-2]["rounds"] == (0, 1, 2, 3)
        for state, memory in zip(whole.states, whole.memories, strict=True):
            resumed = play(protocol, blobs(), MODEL, adversaries=[PAIR, ONE], state=state, memory=memory)
            assert resumed.bytes == whole.bytes
            assert encode(resumed.ring.memory) == encode(whole.ring.memory)
        forgetful = play(protocol, blobs(), MODEL, adversaries=[PAIR, ONE], state=whole.states[2])
        assert forgetful.bytes != whole.bytes

    def test_the_same_however_clients_are_cut_into_chunks(self, protocol: Any) -> None:
        """Its own clients stay together; sums are rounded in another order, and that is all."""
        whole, cut = (play(protocol, blobs(), MODEL, adversaries=[PAIR, ONE], chunk_bytes=b) for b in (1 << 30, 1))
        for name, leaf in whole.state.published.values.items():
            torch.testing.assert_close(cut.state.published.values[name], leaf)
        for insider in (-1, -2):
            assert encode(whole.ring.memory[insider]) == encode(cut.ring.memory[insider])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


@pytest.mark.parametrize("adversaries", [(), (PAIR, ONE)], ids=["honest", "insiders"])
def test_two_processes_give_the_same_as_none(adversaries: tuple[Drifting, ...]) -> None:
    """Clients that remember (FedEM's mixtures), insiders that do, and what the ring was told on the way."""
    protocol, federation = FedEM(rounds=3, local=LOCAL, components=2), blobs([8] * 11)
    alone, shared = (
        play(
            protocol,
            federation,
            as_model(network),
            adversaries=adversaries,
            processes=processes,
            defence=Halves(Telling()),
        )
        for processes in (0, 2)
    )
    assert shared.bytes == alone.bytes
    assert sorted(shared.ring.memory) == sorted(alone.ring.memory)
    for client, kept in alone.ring.memory.items():
        assert encode(shared.ring.memory[client]) == encode(kept)
    assert shared.ring.metrics.means() == pytest.approx(alone.ring.metrics.means())
    assert sorted(shared.ring.ledger.rows, key=repr) == sorted(alone.ring.ledger.rows, key=repr)


@dataclass(frozen=True)
class Telling(ClientGuard):
    """Notes what it does in the turn's ledger and metrics."""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        cohort.turn.ledger.spend(Spend("telling", 1.0), sent.ids.tolist())
        for size in cohort.sizes.tolist():
            cohort.turn.metrics.note("examples", size)
        return sent


def test_what_guards_write_down_reaches_the_ring() -> None:
    """By hand: six clients of 12 examples but one of 30, three rounds."""
    done = play(FedAvg(rounds=3, local=LOCAL), blobs([12] * 5 + [30]), MODEL, defence=Halves(Telling()), chunk_bytes=1)
    assert done.ring.metrics.means() == {"examples": pytest.approx(15.0)}
    assert sorted(done.ring.ledger.rows) == [(client, Spend("telling", 1.0), 3) for client in range(6)]


def test_who_remembers_nothing_is_not_in_the_memory() -> None:
    assert play(FedAvg(rounds=2, local=LOCAL), blobs(), MODEL).ring.memory == {}


@dataclass(frozen=True)
class Counting(ClientGuard):
    """Keeps a count with each client that has been here: a guard may remember too."""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        for memory in cohort.memory:
            memory["times"] = memory.get("times", 0) + 1
        return sent


def test_a_guard_s_memory_is_its_client_s() -> None:
    protocol = FedEM(rounds=6, local=LOCAL, components=2, participation=0.5)
    whole = play(protocol, blobs(), MODEL, defence=Halves(Counting()))
    asked = torch.cat([ask.clients for ask in whole.asks]).bincount(minlength=6).tolist()
    assert [whole.ring.memory.get(client, {}).get("times", 0) for client in range(6)] == asked
    resumed = play(
        protocol,
        blobs(),
        MODEL,
        defence=Halves(Counting()),
        state=whole.states[3],
        memory=whole.memories[3],
    )
    assert resumed.bytes == whole.bytes
    assert encode(dict(sorted(resumed.ring.memory.items()))) == encode(dict(sorted(whole.ring.memory.items())))


# -- what the ring offers -------------------------------------------------------------------------------------------


def test_a_defence_that_does_not_fit_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidInput, match="defence Mingling does not fit this protocol: clients must choose"):
        Ring(FedAvg(rounds=1), blobs(), MODEL, Mingling(rate=0.5, cipher=MockCipher()))


@dataclass(frozen=True)
class Tripling(ServerGuard):
    def publish(self, published: Published, turn: Turn) -> Published:
        return replace(published, values=map_leaves(lambda leaf: 3 * leaf, published.values))


@dataclass(frozen=True)
class MinusOne(ClientGuard):
    def receive(self, published: Published, turn: Turn) -> Published:
        return replace(published, values=map_leaves(lambda leaf: leaf - 1, published.values))


def test_models_pass_both_guards_as_in_a_round() -> None:
    done = play(FedAvg(rounds=1, local=LOCAL), blobs(), MODEL, defence=Halves(MinusOne(), Tripling()))
    for name, leaf in done.ring.models(done.state).items():
        torch.testing.assert_close(leaf, 3 * done.state.published.values[name] - 1)


def test_a_view_needs_a_tape_and_opens_as_its_clients_do() -> None:
    insider, server = ThreatModel("client 0", clients=frozenset({0})), ThreatModel("server", server=True)
    ring = Ring(FedAvg(rounds=1, local=LOCAL), blobs(), MODEL, Halves(MinusOne()), Roots.seeded(0))
    with pytest.raises(InvalidInput, match="tape=None: nothing was recorded"):
        ring.view(insider)
    done = play(ring.protocol, blobs(), MODEL, tape=Tape([insider, server]))
    assert encode(done.ring.view(insider).received(0).published) == encode(done.asks[0].published)
    assert encode(done.ring.view(server).received(0).published) == encode(done.asks[0].published)


@dataclass(frozen=True)
class Blurring(ClientGuard):
    """Hides who chose what."""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        return replace(sent, membership=torch.full_like(sent.membership, 0.5))


def test_the_witness_stands_before_the_guard() -> None:
    seen: list[tuple[int, list[int], Tensor]] = []

    def witness(asked: Down, answer: Answer) -> None:
        assert answer.chosen is not None
        seen.append((asked.round, answer.up.clients.tolist(), answer.chosen))
        assert bool((answer.up.sent.membership == 0.5).all())

    protocol = Ifca(rounds=2, local=LOCAL, clusters=2, candidates=0)
    play(protocol, blobs(), MODEL, witness=witness, defence=Halves(Blurring()))
    assert [(round, clients) for round, clients, _ in seen] == [(0, list(range(6))), (1, list(range(6)))]
    assert all(chosen.sum(1).tolist() == [1.0] * 6 and chosen.max() == 1 for _, _, chosen in seen)
