"""Letters that are changed, old, sent again or rubbish: at the client's end and at the server's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.hand import Hand, clients_of, direction, straight
from tests.deploy.places import Place
from tests.deploy.test_policy import PLAIN, channel, place_with

from coterie.deploy.envelope import DOWN, HEADER, UP, Channel
from coterie.deploy.plan import Offer
from coterie.deploy.transport import TooFewAnswers
from coterie.errors import NotPermitted
from coterie.wire.codec import encode
from coterie.wire.messages import RESULT, TRAIN, Down, Published, Up

RUN = b"r" * 16


class TestEnvelopes:
    key = Channel(b"k" * 32)

    def test_what_is_sealed_opens_to_itself(self) -> None:
        letter = self.key.open(DOWN, self.key.seal(DOWN, RUN, 7, ("train", 1.5)))
        assert (letter.run, letter.number, letter.said) == (RUN, 7, ("train", 1.5))

    def test_every_bit_of_it_counts(self) -> None:
        sealed = self.key.seal(DOWN, RUN, 7, "said")
        for place in range(len(sealed)):
            changed = bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]])
            with pytest.raises(NotPermitted):
                self.key.open(DOWN, changed)

    @pytest.mark.parametrize("length", [0, 1, HEADER, HEADER + 27])
    def test_what_is_cut_off_does_not_open(self, length: int) -> None:
        with pytest.raises(NotPermitted):
            self.key.open(DOWN, self.key.seal(DOWN, RUN, 7, "said")[:length])

    def test_an_answer_is_no_request(self) -> None:
        """Or the link could give a client its own letters back."""
        with pytest.raises(NotPermitted):
            self.key.open(DOWN, self.key.seal(UP, RUN, 7, "said"))

    def test_another_key_does_not_open_it(self) -> None:
        with pytest.raises(NotPermitted):
            Channel(b"j" * 32).open(DOWN, self.key.seal(DOWN, RUN, 7, "said"))

    def test_the_link_reads_nothing_of_it(self) -> None:
        sealed = self.key.seal(DOWN, RUN, 7, "a sentence that must not be read")
        assert b"sentence" not in sealed
        assert self.key.seal(DOWN, RUN, 7, "x") != self.key.seal(DOWN, RUN, 7, "x")


# -- at the client's end ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_with(tmp_path, {})


def recorded(place: Place) -> Hand:
    """A run as it passed, letter by letter."""
    hand = Hand(clients_of(place)[0])
    direction(place, PLAIN, hand)[0].run()
    return hand


def test_no_letter_is_answered_twice_not_even_after_a_restart(place: Place) -> None:
    hand = recorded(place)
    again, notes = clients_of(place)
    for client, letter, answer in hand.letters:
        assert answer is not None
        assert hand.clients[client].answer(letter) is None
        assert again[client].answer(letter) is None
    assert len(notes[0].of("ignored")) == sum(client == 0 for client, _, _ in hand.letters)


def test_a_letter_of_another_client_or_run_gets_no_answer(place: Place) -> None:
    hand = recorded(place)
    letter = next(letter for client, letter, _ in hand.letters if client == 1)
    assert hand.clients[0].answer(letter) is None
    down = Down(TRAIN, 9, torch.tensor([0]), Published({}))
    assert hand.clients[0].answer(channel(place, 0).seal(DOWN, b"x" * 16, 99, down)) is None


def test_a_run_that_is_over_does_not_begin_again(place: Place) -> None:
    first = recorded(place)
    hand = Hand(first.clients)
    direction(place, PLAIN, hand)[0].run()
    for client, letter, _ in first.letters:
        assert hand.clients[client].answer(letter) is None


def lying(place: Place, client: int = 0) -> tuple[Hand, Channel, int]:
    """In the middle of a run: who may write to the client, and the number that comes next."""
    hand = Hand(clients_of(place)[0])
    directed, _ = direction(place, PLAIN, hand)
    offer = replace(directed.job.offer(("client0", "client1", "client2"), False, False), number=client)
    assert hand.clients[client].answer(channel(place, client).seal(DOWN, RUN, 1, offer))
    return hand, channel(place, client), 2


def to_client(
    round: int, clients: list[int], values: dict[str, torch.Tensor], sees: torch.Tensor | None = None
) -> Down:
    return Down(TRAIN, round, torch.tensor(clients), Published(values), sees)


@pytest.mark.parametrize(
    "said",
    [
        "words",
        None,
        (1, 2, 3),
        Down(RESULT, 0, torch.tensor([0]), Published({})),
        Down(TRAIN, 0, torch.tensor([0]), Published({})),
        to_client(0, [1], {"a": torch.zeros(1, 2)}),
        to_client(0, [0, 1], {"a": torch.zeros(1, 2)}),
        to_client(-5, [0], {"a": torch.full((1, 2), torch.nan)}),
        to_client(0, [0], {"a": torch.zeros(3)}),
        to_client(0, [0], {"a": torch.zeros(1, 2)}, torch.ones(1, 5, dtype=torch.bool)),
    ],
    ids=str,
)
def test_whatever_the_server_says_a_client_goes_on(place: Place, said: object) -> None:
    hand, server, number = lying(place)
    answer = hand.clients[0].answer(server.seal(DOWN, RUN, number, said))
    assert answer is not None
    assert type(server.open(UP, answer).said).__name__ in ("Refused", "Told")
    hand.letters.clear()
    direction(place, PLAIN, hand)[0].run()  # and takes part in the next run


# -- at the server's end ----------------------------------------------------------------------------------------------

Change = Callable[[Place, Up], object]


def values(up: Up, value: float) -> Up:
    return replace(up, sent=replace(up.sent, values={name: leaf * 0 + value for name, leaf in up.sent.values.items()}))


BAD: dict[str, Change] = {
    "not a number": lambda _, up: values(up, np.nan),
    "infinite": lambda _, up: values(up, np.inf),
    "another shape": lambda _, up: replace(
        up, sent=replace(up.sent, values={name: leaf[..., :1] for name, leaf in up.sent.values.items()})
    ),
    "other leaves": lambda _, up: replace(up, sent=replace(up.sent, values={"x": torch.zeros(1, 1, 2)})),
    "in another's name": lambda _, up: replace(up, sent=replace(up.sent, ids=torch.tensor([1]))),
    "in two names": lambda _, up: replace(up, sent=replace(up.sent, ids=torch.tensor([0, 1]))),
    "of another round": lambda _, up: replace(up, round=up.round + 1),
    "of another kind": lambda _, up: replace(up, kind=RESULT),
    "with all the weight": lambda _, up: replace(up, sent=replace(up.sent, weights=torch.tensor([1e9]))),
    "with a negative weight": lambda _, up: replace(up, sent=replace(up.sent, weights=torch.tensor([-1.0]))),
    "in no slot that there is": lambda _, up: replace(up, sent=replace(up.sent, membership=torch.ones(1, 7))),
    "no answer at all": lambda _, up: ("hello", 3),
    "an offer": lambda _, up: Offer("{}", (), (), (), 0, b""),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_client_that_sends_rubbish_is_left_out_and_changes_nothing(place: Place, name: str) -> None:
    """The result is that of a run in which it was silent."""
    server = channel(place, 0)

    def rubbish(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = straight(hand, client, letter)
        if client == 0 and answer is not None:
            opened = server.open(UP, answer)
            if isinstance(opened.said, Up):
                return server.seal(UP, opened.run, opened.number, BAD[name](place, opened.said))
        return answer

    def silent(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = straight(hand, client, letter)
        opened = None if client or answer is None else server.open(UP, answer)
        return None if opened is not None and isinstance(opened.said, Up) else answer

    found = direction(place, PLAIN, Hand(clients_of(place)[0], rubbish))[0].run()
    expected = direction(place, PLAIN, Hand(clients_of(place)[0], silent))[0].run()
    assert encode(found.plan.protocol.result(found.state)) == encode(expected.plan.protocol.result(expected.state))


@pytest.mark.parametrize(
    "garble",
    [
        lambda answer: b"",
        lambda answer: b"\x00" * 1000,
        lambda answer: answer[:-1],
        lambda answer: answer + b"\x00",
        lambda answer: answer[:60] + bytes([answer[60] ^ 1]) + answer[61:],
    ],
)
def test_an_answer_that_was_changed_on_its_way_is_rejected(place: Place, garble: Callable[[bytes], bytes]) -> None:
    def carry(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = straight(hand, client, letter)
        return garble(answer) if client == 2 and answer is not None else answer

    directed, log = direction(place, PLAIN, Hand(clients_of(place)[0], carry))
    directed.run()
    assert {facts["client"] for facts in log.of("rejected")} == {2}
    assert [facts["answered"] for facts in log.of("exchange")] == [2, 2]


def test_an_answer_of_an_earlier_request_or_of_another_client_is_rejected(place: Place) -> None:
    last: dict[int, bytes] = {}

    def carry(hand: Hand, client: int, letter: bytes) -> bytes | None:
        answer = straight(hand, client, letter)
        assert answer is not None
        former, last[client] = last.get(client), answer
        if client == 2 and former is not None:
            return former  # replayed
        return last[0] if client == 1 and former is not None else answer  # in another's place

    directed, log = direction(place, PLAIN.replace("least = 2", "least = 1"), Hand(clients_of(place)[0], carry))
    directed.run()
    assert {facts["client"] for facts in log.of("rejected")} == {1, 2}


def test_too_few_answers_end_the_run_and_it_goes_on_from_its_checkpoint(place: Place) -> None:
    """Killed after the first round, resumed with everybody: the models are those of a run that was never killed."""
    whole = direction(place, PLAIN, Hand(clients_of(place)[0]))[0].run()

    def dies(hand: Hand, client: int, letter: bytes) -> bytes | None:
        return None if len(hand.letters) >= 6 else straight(hand, client, letter)

    clients, _ = clients_of(place)
    directed, _ = direction(place, PLAIN, Hand(clients, dies))
    with pytest.raises(TooFewAnswers, match=r"answers to 'train' in round 1=0 of 3, and least=2; when more clients"):
        directed.run()
    resumed, log = direction(place, PLAIN, Hand(clients), directed.folder)
    found = resumed.run(resumes=True)
    assert [facts["round"] for facts in log.of("exchange")] == [1]
    assert encode(found.plan.protocol.result(found.state)) == encode(whole.plan.protocol.result(whole.state))


def test_a_client_that_is_silent_for_long_is_not_waited_for_and_may_come_back(place: Place) -> None:
    away = {2, 3, 4}

    def carry(hand: Hand, client: int, letter: bytes) -> bytes | None:
        number = Channel.address(DOWN, letter)[1]
        return None if client == 1 and number in away else straight(hand, client, letter)

    directed, log = direction(place, PLAIN.replace("rounds = 2", "rounds = 5"), Hand(clients_of(place)[0], carry))
    directed.run()
    assert [facts["answered"] for facts in log.of("exchange")] == [2, 2, 2, 3, 3]
    assert [facts["missed"] for facts in log.of("silent")] == [1, 2, 3]
