"""A server that does not keep to what it offered, and a client that answers what it likes: neither harms the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.hand import Hand, clients_of, direction
from tests.deploy.places import Place
from tests.deploy.test_policy import PLAIN, channel, first_model, place_with

from coterie.deploy.envelope import DOWN, UP
from coterie.deploy.participant import Participant
from coterie.deploy.plan import Accepted, Offer, Refused, Told
from coterie.wire.messages import TRAIN, Down, Kind, Published

RUN = b"r" * 16
NAMES = ("client0", "client1", "client2")


class Lying:
    """A server that writes to the first client whatever it likes."""

    def __init__(self, root: Path) -> None:
        self.place = place_with(root, {})
        clients, self.notes = clients_of(self.place)
        self.victim: Participant = clients[0]
        self.job = direction(self.place, PLAIN, Hand(clients))[0].job
        self.number = 0

    def says(self, said: object) -> Any:
        to_victim = channel(self.place, 0)
        self.number += 1
        return to_victim.open(UP, self.victim.answer(to_victim.seal(DOWN, RUN, self.number, said)) or b"").said

    @property
    def offer(self) -> Offer:
        return replace(self.job.offer(NAMES, False, False), number=0)

    def asks(self, kind: Kind, round: int) -> Any:
        return self.says(Down(kind, round, torch.tensor([0]), Published(first_model(self.job.config))))


def test_requests_beyond_what_was_offered_get_no_answer_whether_or_not_anything_is_counted(tmp_path: Path) -> None:
    """A model of the server's choice, again and again, tells what no run of two rounds does."""
    server = Lying(tmp_path)
    assert isinstance(server.says(server.offer), Accepted)
    answers = [server.asks(TRAIN, 0) for _ in range(30)]
    refused = [one.why for one in answers if isinstance(one, Refused)]
    assert len(refused) == 10  # two rounds, as many to be placed, and 16 beside them
    assert "the run is not what was offered: more than 20 requests are asked" in refused[0]


def test_rounds_go_forward(tmp_path: Path) -> None:
    server = Lying(tmp_path)
    server.says(server.offer)
    assert not isinstance(server.asks(TRAIN, 1), Refused)
    assert "round 0 is asked after round 1" in server.asks(TRAIN, 0).why


@pytest.mark.parametrize("shape", [(10**12,), (4, 10**9), (5,)])
def test_nothing_is_built_of_a_size_that_the_server_names(tmp_path: Path, shape: tuple[int, ...]) -> None:
    server = Lying(tmp_path)
    said = server.says(replace(server.offer, shape=shape))
    assert "must be that of an example here" in said.why
    assert "(4,)" not in said.why  # which shape that is, the server has no need to know


@pytest.mark.parametrize("words", ["[" * 100_000, '{"a":' * 50_000, "no JSON", "[1]"])
def test_an_offer_that_is_no_configuration_is_refused(tmp_path: Path, words: str) -> None:
    server = Lying(tmp_path)
    assert "offer" in server.says(replace(server.offer, words=words)).why


def answering(place: Place, change: Callable[[object], object]) -> Callable[[Hand, int, bytes], bytes | None]:
    """The last client, enrolled and with its key, says something else than its program would."""

    def carry(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = hand.clients[client].answer(letter)
        if client != 2 or answer is None:
            return answer
        to_server = channel(place, 2)
        opened = to_server.open(UP, answer)
        return to_server.seal(UP, opened.run, opened.number, change(opened.said))

    return carry


@pytest.mark.parametrize(
    "lie",
    [Accepted(10**30), Accepted(-1), Accepted(5, torch.ones(3)), Accepted(5, b"another key"), "yes"],
    ids=["more than there is", "less than nothing", "no key", "a key", "a word"],
)
def test_a_client_that_says_odd_things_when_it_is_offered_a_run_stops_nobody(tmp_path: Path, lie: object) -> None:
    place = place_with(tmp_path, {})
    clients, _ = clients_of(place)
    carry = answering(place, lambda said: lie if isinstance(said, Accepted) else said)
    directed, log = direction(place, PLAIN, Hand(clients, carry))
    directed.run()
    assert [facts["client"] for facts in log.of("declined")] == [2]
    assert [facts["answered"] for facts in log.of("exchange")] == [2, 2]


@pytest.mark.parametrize("more", [{}, {"cost": "much"}, {3: 4}])
def test_what_a_client_says_of_a_result_is_names_and_numbers(tmp_path: Path, more: dict[Any, Any]) -> None:
    """It ends in a terminal."""
    lies = {"[red]accuracy": 1.0, "\x1b[2J": 2.0, "accuracy": 0.5, "loss": float("nan"), **more}
    place = place_with(tmp_path, {})
    clients, _ = clients_of(place)
    carry = answering(place, lambda said: Told(lies) if isinstance(said, Told) else said)
    outcome = direction(place, PLAIN, Hand(clients, carry))[0].run()
    assert outcome.told.get(2, {}) in ({"accuracy": 0.5}, {})
    assert {0, 1} <= set(outcome.told)
