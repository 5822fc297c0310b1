"""Secure sums as four requests: what each client refuses, and what the round does without those who are gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.ring import blobs, play

from coterie.defences.secure_sums import (
    LAST,
    MASKED,
    OPEN,
    SHARES,
    WAITING,
    ClientsDropped,
    PairwiseMasks,
    RoundLeftOut,
    SecureSums,
)
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.client import ClientSide
from coterie.flow.drive import message_of
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.seal.pairwise import Advert, salt_of
from coterie.seal.roster import Roster
from coterie.wire.codec import encode
from coterie.wire.messages import Down, Kind, Message, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

STEPS = Local(steps=2, batch_size=4, lr=0.3)
ONCE = FedAvg(rounds=1, local=STEPS)
MODEL = Dense((4, 6, 3))
SERVER = ThreatModel("server", server=True)


@pytest.mark.parametrize(
    "protocol",
    [
        FedAvg(rounds=2, local=STEPS),
        FedEM(rounds=2, local=STEPS, components=2),
        Ifca(rounds=2, local=STEPS, clusters=2, candidates=4),
    ],
)
def test_the_sums_are_those_in_the_clear_to_the_grid(protocol: FedAvg | FedEM | Ifca) -> None:
    plain, masked = (play(protocol, blobs(), MODEL, defence=defence) for defence in (None, SecureSums()))
    one, other = (flatten(done.ring.models(done.state)) for done in (plain, masked))
    torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def test_a_round_is_four_requests_and_none_says_anything_of_a_client() -> None:
    tape = Tape([SERVER])
    done = play(Ifca(rounds=1, local=STEPS, clusters=2, candidates=0), blobs(), MODEL, defence=SecureSums(), tape=tape)
    view = done.ring.view(SERVER)
    kinds = ["train", f"train/{MASKED}", f"train/{OPEN}", f"train/{SHARES}"]
    assert [str(kind) for kind in view.kinds()] == kinds
    for kind in kinds:
        sent = view.sent(0, kind)
        assert not sent.values
        assert bool((sent.membership == 1).all())  # which cluster a client chose is not told either


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({SHARES: range(3)}, "3 of 6 shared their secrets"),
        ({MASKED: range(3)}, "too few masked answers"),
        ({OPEN: range(3)}, "3 of 6 helped to open"),
        ({"": range(6)}, "nobody announced itself"),
    ],
)
def test_a_round_with_too_few_left_is_left_out(lost: dict[str, Collection[int]], words: str) -> None:
    with pytest.warns(RoundLeftOut, match=words):
        done = play(ONCE, blobs(), MODEL, defence=SecureSums(), lost=lambda asked: lost.get(asked.kind.part, ()))
    assert torch.equal(flatten(done.state.published.values), flatten(done.asks[0].published.values))


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        (PairwiseMasks(), "a server that follows the protocol with 333 of the 500 clients of a round"),
        (PairwiseMasks(20), "with 0 of the 500"),  # a third may drop out, which cuts rings of so few
        (PairwiseMasks(signed=True), "whatever it says, once clients know each other, with 1 of the 3 clients"),
        (PairwiseMasks(signed=True, least=100), "with 33 of the 100 clients"),
    ],
)
def test_what_it_claims(masks: PairwiseMasks, words: str) -> None:
    """A server that does not follow the protocol asks as few as clients allow."""
    facts = replace(ONCE, participation=0.5).facts(blobs([2] * 1000))
    said = SecureSums(masks).guarantee(facts).why_not
    assert words in said
    assert "a sum to which one client alone adds is its answer" in said
    assert "of two sums alike of which one lacks a client, because it dropped out, the difference is" in said


def test_who_drops_out_of_sums_that_do_not_change_is_read() -> None:
    """Lloyd's second step finds the same clusters as the first: whoever is missing there is all that changes."""
    federation = blobs(groups=1)
    x, y = federation.examples.x, federation.examples.y
    protocol = FederatedLloyd(3, centres=torch.stack([x[y == kind].mean(0) for kind in range(3)]), steps=2)
    done = play(
        *(protocol, federation, None),
        defence=SecureSums(),
        lost=lambda asked: [2] if asked.kind == Kind("lloyd", 2) else [],
    )
    first, second = (done.state.released[f"lloyd {step}/counts"] for step in (1, 2))
    held = y[federation.train[2]].bincount(minlength=3)
    assert (first - second).flatten().tolist() == held.tolist()


def test_what_a_drop_out_kept_for_the_round_is_gone_with_it() -> None:
    done = play(ONCE, blobs(), MODEL, defence=SecureSums(), lost=lambda asked: [0] if asked.kind.part == MASKED else [])
    assert all(set(memory) == {LAST} for memory in done.ring.memory.values())


def test_a_client_answers_each_request_once_and_in_order() -> None:
    ring = Ring(ONCE, blobs(), MODEL, SecureSums(), Roots.seeded(0))
    state = ONCE.start(ring.server)
    asked = message_of(next(ONCE.run(state, ring.server)), ring.server)
    list(ring.clients.exchange(asked))
    cohort = ring.clients.cohort(torch.tensor([0]), ring.server.turn(0, asked.kind))
    assert WAITING in cohort.memory[0]
    side = ClientSide(ONCE, SecureSums().client)
    to_one = Down(
        replace(asked.kind, part=MASKED), 0, cohort.ids, Published({}), None, encode((0, 1, 2)), (encode({}),)
    )
    with pytest.warns(ClientsDropped, match="was not told who takes part; the requests come in order"):
        assert len(side.answer(to_one, cohort).up.clients) == 0
    waiting = cohort.memory[0][WAITING]
    waiting.masked = True
    with pytest.warns(ClientsDropped, match="has sent its masked answer already"):
        side.answer(to_one, cohort)
    with pytest.raises(NotPermitted, match=r"client 0 was asked '0 train' before, .* it answers once"):
        side.answer(asked.pick(torch.tensor([0])), cohort)
    del cohort.memory[0][WAITING]
    with pytest.raises(InvalidInput, match="before the request"):
        side.answer(to_one, cohort)
    with pytest.raises(InvalidInput, match="is none of secure sums"):
        side.answer(replace(to_one, kind=replace(asked.kind, part="odd")), cohort)


def test_a_client_does_not_go_back_to_a_round_that_is_over() -> None:
    """Asked again after the next round, it would train the same and be the difference of two sums."""
    ring = Ring(ONCE, blobs(), MODEL, SecureSums(), Roots.seeded(0))
    asked = message_of(next(ONCE.run(ONCE.start(ring.server), ring.server)), ring.server)
    assert len(list(ring.clients.exchange(asked))) > 0
    assert len(list(ring.clients.exchange(replace(asked, round=1)))) > 0
    assert len(list(ring.clients.exchange(replace(asked, round=1, kind=Kind("judge"))))) > 0  # another request of it
    for again in (asked, replace(asked, round=1)):
        with pytest.raises(NotPermitted, match=f"was asked '{again.round} train' before, or is past it in round 1"):
            list(ring.clients.exchange(again))


# -- a server that does not keep to the rules -------------------------------------------------------------------------

IDS = tuple(range(10))


@pytest.fixture
def ring() -> Ring[Any]:
    """Ten clients that have answered the request itself, and wait."""
    ring = Ring(ONCE, blobs([6] * 10), MODEL, SecureSums(), Roots.seeded(0))
    asked = message_of(next(ONCE.run(ONCE.start(ring.server), ring.server)), ring.server)
    ring.adverts = {  # type: ignore[attr-defined]
        client: note
        for up in ring.clients.exchange(asked)
        for client, note in zip(up.clients.tolist(), up.sent.notes, strict=True)
    }
    return ring


def shares(ring: Ring[Any], roster: Roster) -> list[int]:
    """Who shares its secrets when it is told this."""
    ids = torch.tensor(roster.ids)
    adverts = {client: ring.adverts[client] for client in roster.ids}  # type: ignore[attr-defined]
    salt = salt_of({client: Advert.from_bytes(advert) for client, advert in adverts.items()})
    common = encode((replace(roster, salt=salt), adverts))
    down = Down(Kind("train", part=SHARES), 0, ids, Published({}), None, common)
    return [client for up in ring.clients.exchange(down) for client in up.clients.tolist()]


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClientsDropped")
def test_a_client_is_only_in_the_clusters_that_it_announced(ring: Ring[Any]) -> None:
    """Two sums that differ by one client, who is in both, would be that client's answer."""
    assert shares(ring, Roster((IDS, IDS[1:]), IDS)) == []


def test_a_roster_names_everybody_once() -> None:
    with pytest.raises(InvalidInput, match="must be different, and of those who take part"):
        Roster(((0, 0, 0),), (0,))
    with pytest.raises(InvalidInput, match="must be different, and of those who take part"):
        Roster(((0, 1, 7),), (0, 1))


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClientsDropped")
def test_a_client_that_is_told_that_few_shared_sends_nothing(ring: Ring[Any]) -> None:
    """It would mask with those few alone, and the others could give their keys away."""
    assert shares(ring, Roster((IDS,), IDS)) == list(IDS)
    few = Down(Kind("train", part=MASKED), 0, torch.tensor([0]), Published({}), None, encode((0, 1, 2)), (encode({}),))
    assert list(ring.clients.exchange(few)) == []


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_clients_are_left_out_without_a_word_of_them(clients: int) -> None:
    with pytest.warns((RoundLeftOut, ClientsDropped)):
        done = play(ONCE, blobs([6] * clients), MODEL, defence=SecureSums())
    assert torch.equal(flatten(done.state.published.values), flatten(done.asks[0].published.values))


LIAR = ThreatModel("liar", taps=frozenset({1}))


@dataclass(frozen=True)
class Lying:
    """On the wire: changes what client 1 notes in one of the exchanges."""

    part: str
    note: bytes
    threat: ThreatModel = LIAR

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if isinstance(message, Up) and message.kind.part == self.part and message.sent.notes:
            return replace(message, sent=replace(message.sent, notes=(self.note,)))
        return message


NOTHING = np.zeros(9, dtype=np.int64)


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClientsDropped")
@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.RoundLeftOut")
@pytest.mark.parametrize(
    "lie",
    [
        Lying("", bytes(96)),
        Lying("", b"short"),
        Lying(SHARES, b"rubbish"),
        Lying(SHARES, encode({})),
        Lying(SHARES, encode(dict.fromkeys((0, 2, 3, 4, 5), b"junk"))),
        Lying(SHARES, encode(dict.fromkeys((0, 2, 3, 4, 5), 7))),
        Lying(OPEN, encode(dict.fromkeys(range(6), NOTHING))),
        Lying(OPEN, encode(dict.fromkeys(range(6), "words"))),
        Lying(OPEN, encode({})),
    ],
)
def test_a_lie_costs_at_most_the_round_and_never_gives_a_wrong_model(lie: Lying) -> None:
    tape = Tape([lie.threat])
    done = play(ONCE, blobs(), MODEL, defence=SecureSums(), tape=tape, adversaries=[lie])
    start = done.asks[0].published.values
    without = play(ONCE, blobs(), MODEL, lost=lambda asked: [1])
    honest = play(ONCE, blobs(), MODEL)
    found = flatten(done.state.published.values)
    expected = [flatten(start), *(flatten(run.state.published.values) for run in (without, honest))]
    assert min(float((found - one).abs().max()) for one in expected) < 1e-5
