"""Secure sums as four requests: what each client refuses, and what the round does without those who are gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.defences.secure_sums import MASKED, OPEN, SHARES, WAITING, RoundLeftOut, SecureSums
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.client import ClientSide
from coterie.flow.drive import message_of
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.wire.codec import encode
from coterie.wire.messages import Down, Published
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

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


def test_what_a_drop_out_kept_for_the_round_is_gone_with_it() -> None:
    done = play(ONCE, blobs(), MODEL, defence=SecureSums(), lost=lambda asked: [0] if asked.kind.part == MASKED else [])
    assert done.ring.memory == {}


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
    with pytest.raises(InvalidInput, match="was not told who takes part; the requests come in order"):
        side.answer(to_one, cohort)
    waiting = cohort.memory[0][WAITING]
    waiting.masked = True
    with pytest.raises(NotPermitted, match="has sent its masked answer already"):
        side.answer(to_one, cohort)
    del cohort.memory[0][WAITING]
    with pytest.raises(InvalidInput, match="before the request"):
        side.answer(to_one, cohort)
    with pytest.raises(InvalidInput, match="is none of secure sums"):
        side.answer(replace(to_one, kind=replace(asked.kind, part="odd")), cohort)
