"""The count of bytes: what each client's messages are long, encoded one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.ring import blobs, play
from tests.wire.test_messages import Boxes

from coterie.data.federation import Federation
from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.sattler import Sattler
from coterie.rng import Rng
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher
from coterie.wire.codec import encode
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Message, Published, Up
from coterie.wire.sealed import SealedBatch
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic, down_lengths, message_length, up_lengths
from coterie.wire.view import ThreatModel, View

MODEL = Dense((4, 3))
LOCAL = Local(steps=2, batch_size=6, lr=0.3)
SPLITTING = Sattler(rounds=6, local=LOCAL, agreement=1.0, progress=0.0, wait=2, least=1, most=3)


@dataclass
class Listener:
    """On everybody's link; it notes what passes and changes nothing."""

    threat: ThreatModel
    heard: list[Message] = field(default_factory=list)

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        self.heard.append(message)
        return message


def counted(
    protocol: Any, federation: Federation, defence: Defence | None = None, **settings: Any
) -> tuple[Traffic, list[Message]]:
    """The ring's own count of a run, and every message that passed."""
    listener = Listener(ThreatModel("listener", taps=frozenset(range(federation.clients))))
    tape = Tape([listener.threat])
    done = play(protocol, federation, MODEL, defence=defence, tape=tape, adversaries=[listener], **settings)
    return done.ring.traffic, listener.heard


def one_by_one(message: Message) -> list[Message]:
    """What travels on each client's own link."""
    positions = range(len(message.clients))
    if isinstance(message, Down):
        return [message.to_one(position) for position in positions]
    return [message.pick(torch.tensor([position])) for position in positions]


def encoded(messages: list[Message], way: type[Down] | type[Up]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for message in messages:
        if isinstance(message, way):
            length = sum(len(encode(one)) for one in one_by_one(message))
            lengths[str(message.kind)] = lengths.get(str(message.kind), 0) + length
    return lengths


def assert_counted(traffic: Traffic, messages: list[Message]) -> None:
    assert traffic.up == encoded(messages, Up)
    assert traffic.down == encoded(messages, Down)
    assert traffic.up_bytes == sum(traffic.up.values()) > 0
    assert traffic.down_bytes == sum(traffic.down.values()) > 0


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
@pytest.mark.parametrize(
    "protocol",
    [
        FedAvg(rounds=2, local=LOCAL),
        FedAvg(rounds=3, local=LOCAL, participation=0.5),
        FedEM(rounds=2, local=LOCAL, components=2),
        Ifca(rounds=2, local=LOCAL, clusters=2, candidates=4),
    ],
    ids=["fedavg", "half of the clients", "fedem", "ifca"],
)
def test_the_count_is_the_length_of_every_client_s_messages(protocol: Any, chunk_bytes: int) -> None:
    traffic, messages = counted(protocol, blobs(), chunk_bytes=chunk_bytes)
    assert_counted(traffic, messages)
    answers = sum(len(message.clients) for message in messages if isinstance(message, Up))
    assert traffic.answers == answers
    assert traffic.up_a_client == traffic.up_bytes / answers


def test_clients_that_are_given_different_slots() -> None:
    """After its splits Sattler publishes several models, of which a client is sent one."""
    traffic, messages = counted(SPLITTING, blobs([12] * 8))
    assert_counted(traffic, messages)
    last = [message for message in messages if isinstance(message, Down)][-1]
    assert last.published.slots == 3
    assert last.sees is not None
    assert len({tuple(row) for row in last.sees.tolist()}) == 3
    alone = message_length(last.to_one(0))
    assert alone < message_length(replace(last, sees=None).to_one(0))  # all three models are longer


def test_clients_that_are_given_more_or_fewer_slots() -> None:
    models = Published({"w": torch.rand(3, 50)}, torch.tensor([1, 2, 3]))
    sees = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]]).bool()
    message = Down(TRAIN, 0, torch.arange(5), models, sees)
    lengths = down_lengths(message)
    assert lengths == [len(encode(one)) for one in one_by_one(message)]
    assert lengths[0] == lengths[3]
    assert lengths[4] < lengths[0] < lengths[2] < lengths[1]


def test_what_is_told_to_each_counts_for_each() -> None:
    each = (b"", b"a few bytes", b"many bytes" * 100)
    down = Down(Kind("train", part="masked"), 0, torch.arange(3), Published({}), None, b"to all", each)
    assert down_lengths(down) == [len(encode(one)) for one in one_by_one(down)]
    sent = Contributions(torch.arange(3), {}, torch.ones(3), torch.ones(3, 1), notes=each)
    up = Up(down.kind, 0, sent)
    assert up_lengths(up) == [len(encode(one)) for one in one_by_one(up)]
    assert len(set(up_lengths(up))) == 3
    assert up_lengths(Up(TRAIN, 0, sent.pick(torch.tensor([], dtype=torch.int64)))) == []


@pytest.mark.parametrize("neighbours", [None, 2])
def test_secure_sums_are_four_requests_on_the_tape_and_in_the_count(neighbours: int | None) -> None:
    rounds, federation = 2, blobs()
    protocol = FedAvg(rounds=rounds, local=LOCAL)
    traffic, messages = counted(protocol, federation, SecureSums(PairwiseMasks(neighbours)))
    assert_counted(traffic, messages)
    kinds = ["train", "train/shares", "train/masked", "train/open"]
    assert list(traffic.down) == list(traffic.up) == kinds
    downs = [(message.round, str(message.kind)) for message in messages if isinstance(message, Down)]
    assert downs == [(round, kind) for round in range(rounds) for kind in kinds]
    assert traffic.answers == rounds * federation.clients  # a request is answered once, whatever it takes
    plain, _ = counted(protocol, federation)
    assert plain.down["train"] == traffic.down["train"]  # what is published is not hidden
    assert traffic.up_bytes > plain.up_bytes


def test_drop_outs_are_not_counted_as_answers() -> None:
    traffic, messages = counted(
        FedAvg(rounds=2, local=LOCAL), blobs(), lost=lambda asked: [4] if asked.round == 1 else []
    )
    assert_counted(traffic, messages)
    assert traffic.answers == 11
    assert traffic.down_bytes == sum(sum(down_lengths(down)) for down in messages if isinstance(down, Down))


class StandIns(Boxes):
    """Numbers that stand for a thousand bytes a client."""

    stands_in = True

    @property
    def nbytes(self) -> int:
        return 1000 * len(self)

    def pick(self, positions: Any) -> StandIns:
        return StandIns(self.numbers[list(positions)])


def test_a_stand_in_counts_as_what_it_stands_for() -> None:
    ids = torch.arange(2)
    sealed: dict[str, SealedBatch] = {"s": StandIns(torch.zeros(2, 1))}
    plain = Contributions(ids, {"w": torch.zeros(2, 1, 3)}, torch.ones(2), torch.ones(2, 1))
    without = len(encode(Up(TRAIN, 0, plain.pick(torch.tensor([0])))))
    assert up_lengths(Up(TRAIN, 0, replace(plain, sealed=sealed))) == [without + 1000] * 2


@pytest.mark.parametrize("exact", [False, True])
def test_a_mock_counts_as_the_ciphertexts_for_which_it_stands(exact: bool) -> None:
    """Up and down, and what goes along from the round before. The real run encodes some names besides."""
    protocol, federation = Ifca(rounds=3, local=LOCAL, clusters=3, candidates=0), blobs([12] * 12)
    mock, real = (
        counted(protocol, federation, Mingling(rate=0.5, threshold=1, exact=exact, cipher=cipher))
        for cipher in (MockCipher(), Ckks())
    )
    assert_counted(*real)
    stood_for = 0
    for message in mock[1]:
        if isinstance(message, Up):
            bare = replace(message, sent=replace(message.sent, sealed={}))
            stood_for += sum(len(encode(one)) for one in one_by_one(bare))
            stood_for += sum(batch.nbytes for batch in message.sent.sealed.values())
    assert mock[0].up_bytes == stood_for
    assert mock[0].up_bytes == pytest.approx(real[0].up_bytes, rel=0.01)
    assert mock[0].down_bytes == pytest.approx(real[0].down_bytes, rel=0.01)
    assert mock[0].answers == real[0].answers == 36
