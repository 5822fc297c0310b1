"""Servers that ask parties with columns for more than a run takes: the records stay, so every answer counts twice."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie.config.builders import proven_sums
from coterie.data.federation import Examples
from coterie.data.partition.features import Vertical
from coterie.defences.blinding import Blinding
from coterie.defences.proven_sums import ProvenSums
from coterie.defences.secure_sums import MASKED, SHARES, PairwiseMasks, RoundLeftOut, SecureSums
from coterie.errors import NotPermitted
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.client import ClientSide
from coterie.flow.cohort import Cohort, Memory
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.flow.turn import Roots, Turn
from coterie.protocols.clusterings.vertical_kmeans import AMONG, LABELS, OF, RECORDS, Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Down, Kind, Published

ALL = (0, 1, 2, 3)
ROOTS = Roots.seeded(0)


class Parties:
    """The clients' halves of four parties, and a server that asks what it likes of whom it likes."""

    def __init__(self, defence: Defence) -> None:
        self.columns = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)).split(2, dim=1)
        self.side = ClientSide(VerticalKMeans(3, start_on=Start.RECORDS), defence.client)
        self.server, self.roots = defence.server, ROOTS
        self.memory: list[Memory] = [{} for _ in ALL]
        self.silent: tuple[str, int] = ("", -1)  # in which exchange who says nothing

    def asked(self, one: Ask[None]) -> Contributions:
        here = [party for party in one.clients.tolist() if (one.kind.part, party) != self.silent]
        turn, each = Turn(one.round, self.roots, one.kind), tuple(one.each[party] for party in here) if one.each else ()
        columns, memory = tuple(self.columns[party] for party in here), [self.memory[party] for party in here]
        cohort = Cohort(torch.tensor(here), turn, columns=columns, memory=memory)
        down = Down(one.kind, one.round, cohort.ids, one.published, None, one.common, each)
        return self.side.answer(self.side.opened(down, turn), cohort).up.sent

    def summed(
        self, told: dict[str, Tensor], round: int, who: Sequence[int] = ALL, kind: str = "distances", whole: bool = True
    ) -> Sums:
        published = Published({name: leaf.unsqueeze(0) for name, leaf in told.items()})
        ask: Ask[None] = Ask(Kind.of(kind), round, torch.tensor(who), published, None, whole=whole)
        talk = self.server.collect(ask, Turn(round, ROOTS, ask.kind))
        try:
            request = next(talk)
            while True:
                request = talk.send(Replies(iter([self.asked(request)])))
        except StopIteration as done:
            found: Sums = done.value
            return found


def starts(*rows: int) -> dict[str, Tensor]:
    return {RECORDS: torch.tensor(rows)}


@pytest.mark.parametrize("whole", [True, False])  # a server that follows the protocol, and one that does not
@pytest.mark.parametrize("part", ["", SHARES, MASKED])
def test_a_sum_without_a_party_is_not_opened_beside_one_with_it(part: str, whole: bool) -> None:
    """Their difference would be its distances."""
    parties = Parties(SecureSums())
    parties.silent = (part, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = parties.summed(starts(1, 2, 3), 0, whole=whole)
        parties.silent = ("", -1)
        second = parties.summed(starts(1, 2, 3), 1, whole=whole)
    assert first.empty or second.empty
    assert not (whole and second.empty)  # nothing is lost: when it is back, the run goes on


@pytest.mark.parametrize(("round", "kind"), [(1, "distances"), (0, "seed"), (0, "distances 7")])
def test_a_party_stays_among_the_same_others(round: int, kind: str) -> None:
    parties = Parties(SecureSums(PairwiseMasks(signed=True)))
    assert not parties.summed(starts(1, 2, 3), 0).empty
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert parties.summed(starts(*(1, 2, 3)[: 1 if kind == "seed" else 3]), round, ALL[:3], kind, False).empty
    assert any("parties=[0, 1, 2] must be [0, 1, 2, 3]" in str(one.message) for one in said)


def test_the_server_says_who_is_missing() -> None:
    parties = Parties(SecureSums())
    parties.silent = (MASKED, 2)
    with pytest.warns(RoundLeftOut, match=r"parties \[2\] are missing, \[2\] without a word; the round was left out"):
        parties.summed(starts(1, 2, 3), 0)


@pytest.mark.parametrize("signed", [True, False])
def test_a_server_in_the_others_place_reads_a_party_unless_they_sign(signed: bool) -> None:
    parties, others = (Parties(proven_sums(bound=4.0, sampled=2, signed=signed)) for _ in range(2))
    assert not parties.summed(starts(1, 2, 3), 0).empty  # from here on they know each other
    others.columns = tuple(torch.zeros_like(own) for own in parties.columns)
    others.roots, alone = Roots.seeded(1), others.asked

    def between(one: Ask[None]) -> Contributions:
        theirs = alone(replace(one, clients=one.clients[one.clients != 3]))
        own = replace(one, clients=one.clients[one.clients == 3])
        return Contributions.join([theirs, parties.asked(own)]) if len(own.clients) else theirs

    others.asked = between  # type: ignore[method-assign]
    others.server = SecureSums(PairwiseMasks(signed=signed)).server  # it need not check its own proofs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert others.summed(starts(1, 2, 3), 1).empty == signed


def places(of: int, among: int = 3) -> dict[str, Tensor]:
    return {LABELS: torch.zeros(40, dtype=torch.uint8), OF: torch.tensor(of), AMONG: torch.tensor(among)}


@pytest.mark.parametrize(
    ("told", "round", "kind", "match"),
    [
        (starts(4, 5, 6), 0, "seed 1", "round 0 was blinded before"),  # the same scales and orders, another centre
        (starts(4, 5, 6), 1, "distances", "in the first round alone"),  # ratios of distances from what it knows
        (places(1), 1, "distances", "must be those of the round before, among 3"),
        (places(0, among=1), 1, "distances", "must be those of the round before, among 3"),  # all in one cluster
    ],
)
def test_blinded_parties_take_no_centres_of_the_server_s_choice(
    told: dict[str, Tensor], round: int, kind: str, match: str
) -> None:
    parties = Parties(Stack(Blinding(), SecureSums()))
    assert not parties.summed(starts(1, 2, 3), 0).empty
    before = [dict(memory) for memory in parties.memory]
    with pytest.raises(NotPermitted, match=match):
        parties.summed(told, round, kind=kind)
    parties.memory = before
    assert not parties.summed(places(0), 1).empty


def test_blinded_parties_start_on_different_records() -> None:
    """How often a number comes would say which record it is of."""
    with pytest.raises(NotPermitted, match=r"records=\[1, 1, 2\] of round 0 must be different ones"):
        Parties(Stack(Blinding(), SecureSums())).summed(starts(1, 1, 2), 0)


@pytest.mark.parametrize("defence", [SecureSums(), SecureSums(PairwiseMasks(signed=True)), ProvenSums()])
def test_masks_claim_nothing_for_the_numbers_of_single_records(defence: Defence) -> None:
    """Totals give every column, and so every answer: to say that none is read would be wrong."""
    columns = torch.rand(40, 8, generator=torch.Generator().manual_seed(0))
    examples = Examples(columns, torch.zeros(40, dtype=torch.int64), 1, "uniform")
    claimed = defence.guarantee(VerticalKMeans(3).facts(Vertical(4).split(examples, Rng.seeded(0))))
    assert claimed is not None
    assert not claimed.proven
    assert "reads every party's columns" in claimed.why_not
    assert "no answer is read" not in claimed.why_not


@pytest.mark.parametrize("left_out", [OF, AMONG])
def test_places_without_their_origin_are_refused(left_out: str) -> None:
    parties = Parties(Stack(Blinding(), SecureSums()))
    parties.summed(starts(1, 2, 3), 0)
    told = {LABELS: torch.zeros(40, dtype=torch.uint8), OF: torch.tensor(0), AMONG: torch.tensor(3)}
    del told[left_out]
    with pytest.raises(NotPermitted, match=rf"places=\['{left_out}'\] must come with one number each"):
        parties.summed(told, 1)


@pytest.mark.parametrize("permute", [True, False])
def test_without_an_order_the_server_chooses_centres_and_reads_every_column(permute: bool) -> None:
    """Three known records alone in their clusters: a ratio of differences is one equation about every record."""
    parties = Parties(Blinding(permute=permute))
    parties.side = ClientSide(VerticalKMeans(4, start_on=Start.RECORDS), Blinding(permute=permute).client)
    truth = torch.cat(parties.columns, 1).double()
    parties.summed(starts(0, 1, 2, 3), 0)
    draws, left, right = torch.Generator().manual_seed(0), [], []
    for round in range(1, 25):
        alone = torch.randperm(12, generator=draws)[:3]  # of twelve records that it knows
        labels = torch.full((40,), 3, dtype=torch.uint8)
        labels[alone] = torch.arange(3, dtype=torch.uint8)
        told = {LABELS: labels, OF: torch.tensor(round - 1), AMONG: torch.tensor(4)}
        totals = parties.summed(told, round).values["distances"][0].double()
        centres = truth[alone]
        steps = 2 * (centres[0] - centres[1:])  # |x - c0|^2 - |x - cj|^2 = bj - x (2 (c0 - cj))
        gaps = centres[0].square().sum() - centres[1:].square().sum(1)
        far = totals[:, :1] - totals[:, 1:3]  # the same, by each record's own scale
        left.append(far[:, 1:] * steps[0] - far[:, :1] * steps[1])
        right.append(far[:, 1] * gaps[0] - far[:, 0] * gaps[1])
    rows, sides = torch.stack(left, 1), torch.stack(right, 1)  # (records, rounds, columns), (records, rounds)
    read = torch.linalg.lstsq(rows[12:], sides[12:].unsqueeze(2)).solution[:, :, 0]
    wrong = (read - truth[12:]).abs().median()
    assert (wrong < 1e-3) != permute
    assert (wrong > 0.1) == permute
