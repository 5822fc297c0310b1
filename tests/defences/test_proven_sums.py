"""Proven sums: honest parties pass, and whoever proves one number and sends another, or an old proof, does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from tests.defences.test_ckks_sums import parties
from tests.ring import play

from coterie.attacks.distance_geometry import CURIOUS_SERVER
from coterie.defences.proven_sums import LEVELS, OVER, CheckingServer, LieCaught, ProvenSums, ProvingClient, Question
from coterie.defences.secure_sums.defence import MaskingClient
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.seal.range_proofs import added, bare, chance
from coterie.wire.messages import Contributions, Down, Kind, Published
from coterie.wire.tape import Tape

PROTOCOL = VerticalKMeans(3, steps=2, start_on=Start.RECORDS)
DEFENCE = ProvenSums(bound=200.0, bits=8, sampled=3)
KIND = Kind("distances", part="prove")


def test_honest_parties_pass_and_the_sums_are_those_of_levels() -> None:
    tape = Tape([CURIOUS_SERVER])
    done = play(PROTOCOL, parties(), None, defence=DEFENCE, tape=tape)
    bare_run = play(PROTOCOL, parties(), None)
    assert float((done.state.labels == bare_run.state.labels).float().mean()) > 0.9
    view = tape.view(CURIOUS_SERVER)
    opened = view.sent(0, "distances/opened").values["distances"]
    assert bool((opened / DEFENCE.step == (opened / DEFENCE.step).round()).all())
    assert not view.sent(0, "distances").values


@dataclass(frozen=True)
class Lying(ProvenSums):
    """Party 1 masks other numbers than it will prove, or proves numbers outside of the range."""

    sends: float = 0.0  # is added to each of its numbers, in steps, after they were noted
    notes: int = 0  # is added to what it will prove

    @property
    def client(self) -> ClientGuard:
        lie = self

        class Liar(ProvingClient):
            def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
                def masked(one: ProvingClient, told: Contributions, of: Cohort) -> Contributions:
                    here = (told.ids == 1).double().view(-1, 1, 1, 1) * lie.sends * lie.step
                    values = {name: leaf + here for name, leaf in told.values.items()}
                    return plain(one, replace(told, values=values), of)

                plain = MaskingClient.contribute
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(MaskingClient, "contribute", masked)
                    found = super().contribute(sent, cohort)
                for client, memory in zip(cohort.ids.tolist(), cohort.memory, strict=True):
                    if client == 1:
                        memory[LEVELS] = memory[LEVELS] + lie.notes
                return found

        return Liar(self.masks, self.bits, self.step, self.sampled)


@pytest.mark.parametrize(
    ("lie", "caught"),
    [
        (Lying(bound=200.0, sampled=2, sends=300.0), "is not the sum of what was proven"),
        (Lying(bound=200.0, sampled=2, sends=1.0), "is not the sum of what was proven"),  # also within the range
        (Lying(bound=200.0, sampled=2, sends=300.0, notes=300), r"parties \[1\] did not prove their numbers"),
        (Lying(bound=200.0, sampled=2, sends=-300.0, notes=-300), r"parties \[1\] did not prove|is not the sum"),
    ],
)
def test_a_liar_is_caught(lie: Lying, caught: str) -> None:
    with pytest.raises(LieCaught, match=caught):
        play(PROTOCOL, parties(), None, defence=lie)


def test_a_few_lies_are_caught_as_often_as_stated() -> None:
    """The chance is of the draw alone: a number that is drawn and wrong is always found out."""
    assert chance(540, 540, 1) == 1.0
    assert chance(10_000_000, 100_000, 16) == pytest.approx(1 - 0.99**16, rel=1e-4)


class _Asked:
    """A party that has masked some levels, and is asked to prove a few of them."""

    def __init__(self) -> None:
        self.done = play(PROTOCOL, parties(), None, defence=DEFENCE)
        self.cohort = self.done.ring.everyone(self.done.state)

    def answers(self, question: Question, levels: list[int]) -> Contributions:
        for memory in self.cohort.memory:
            memory[LEVELS], memory[OVER] = torch.tensor(levels, dtype=torch.int32), (0, 1, 2)
        return DEFENCE.client.follow_up(self.down(question), self.cohort)

    def down(self, question: Question) -> Down:
        return Down(KIND, 5, self.cohort.ids, Published({}), None, question.to_bytes())


def test_an_old_proof_fits_no_other_question_request_or_party() -> None:
    asked, server = _Asked(), DEFENCE.server
    assert isinstance(server, CheckingServer)
    first, second = (Question(bytes([one]) * 32, (0, 2), (0, 1, 2)) for one in (1, 2))
    sent = asked.answers(first, [1, 2, 3, 4])
    points = server._points([sent], first, KIND, 5)
    assert points.keys() == {0, 1, 2}
    assert added([own[0] for own in points.values()]) == bare(3)  # three parties with a 1 each
    assert added([own[1] for own in points.values()]) == bare(9)
    assert not server._points([sent], second, KIND, 5)
    assert not server._points([sent], first, KIND, 6)
    assert not server._points([sent], replace(first, places=(0, 3)), KIND, 5)
    passed_on = replace(sent, notes=(sent.notes[1], sent.notes[0], sent.notes[2]))
    assert server._points([passed_on], first, KIND, 5).keys() == {2}


def test_commitments_of_two_requests_have_nothing_in_common() -> None:
    """Or the server would see which levels stayed the same."""
    asked, server = _Asked(), DEFENCE.server
    assert isinstance(server, CheckingServer)
    told = []
    for one in (1, 2):
        question = Question(bytes([one]) * 32, (0,), (0, 1, 2))
        told.append(server._points([asked.answers(question, [7])], question, KIND, 5))
    assert all(told[0][party] != told[1][party] for party in range(3))
    assert len({told[0][party] for party in range(3)}) == 3


@pytest.mark.parametrize(
    ("places", "who", "error", "match"),
    [
        ((0, 1, 2, 3), (0, 1, 2), InvalidInput, "must be at most 3"),
        ((0, 0), (0, 1, 2), InvalidInput, "must be at most 3"),
        ((9,), (0, 1, 2), InvalidInput, "must be at most 3"),
        ((0,), (0,), InvalidInput, r"parties=\[0\] must be \[0, 1, 2\]"),  # its blinding factors would be nothing
        ((0,), (0, 1), InvalidInput, "as in the sum"),  # the sum of two, and so what the third has
        ((0,), (0, 1, 2, 3), InvalidInput, "as in the sum"),
        ((0,), (1, 1), InvalidInput, "as in the sum"),
    ],
)
def test_a_party_proves_no_more_than_agreed(
    places: tuple[int, ...], who: tuple[int, ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        _Asked().answers(Question(bytes(32), places, who), [1, 2, 3, 4])


def test_a_party_proves_once() -> None:
    asked, question = _Asked(), Question(bytes(32), (0,), (0, 1, 2))
    asked.answers(question, [1])
    with pytest.raises(NotPermitted, match="once is all"):
        DEFENCE.client.follow_up(asked.down(question), asked.cohort)


def _settings() -> list[Callable[[], ProvenSums]]:
    return [lambda: ProvenSums(bound=0.0), lambda: ProvenSums(bits=17), lambda: ProvenSums(sampled=0)]


@pytest.mark.parametrize("make", _settings())
def test_bad_settings_are_refused(make: Callable[[], ProvenSums]) -> None:
    with pytest.raises(InvalidInput, match="must"):
        make()
