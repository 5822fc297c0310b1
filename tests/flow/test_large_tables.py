"""Large tables that are only added up are looked at when they are; wherever else they go, before."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from tests.ring import blobs, play

from coterie.data.federation import VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.errors import InvalidInput
from coterie.flow.ask import SPAN
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence, ServerGuard
from coterie.flow.turn import Turn
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Down

BAD = [math.nan, math.inf, -math.inf]


@dataclass(frozen=True)
class Spoilt(ClientGuard):
    """One number of party 1's is none."""

    value: float

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        for leaf in sent.values.values():
            for place in (sent.ids == 1).nonzero().flatten().tolist():
                leaf[place].view(-1)[-7] = self.value
        return sent


class Looking(ServerGuard):
    def screen(self, sent: Contributions, asked: Down, turn: Turn) -> Contributions:
        assert all(bool(leaf.isfinite().all()) for leaf in sent.values.values())
        return sent


@dataclass(frozen=True)
class Spoiling(Defence):
    value: float
    looks: bool = False

    @property
    def server(self) -> ServerGuard:
        return Looking() if self.looks else ServerGuard()

    @property
    def client(self) -> ClientGuard:
        return Spoilt(self.value)


def parties() -> VerticalFederation:
    return Vertical(3).split(blobs([SPAN + 9], features=6).examples, Rng.seeded(0))


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("start", [Start.RECORDS, Start.PLUS_PLUS])
def test_the_party_whose_number_is_none_is_named(value: float, start: Start) -> None:
    with pytest.raises(InvalidInput, match=r"distances='NaN or infinite' was sent by \[1\]"):
        play(VerticalKMeans(2, 2, start_on=start), parties(), None, defence=Spoiling(value))


@pytest.mark.parametrize("value", BAD)
def test_a_guard_that_looks_at_answers_never_meets_them(value: float) -> None:
    with pytest.raises(InvalidInput, match="leave nothing to add up"):
        play(VerticalKMeans(2, 2), parties(), None, defence=Spoiling(value, looks=True))


def test_answers_that_come_one_by_one_are_looked_at_as_they_come() -> None:
    with pytest.raises(InvalidInput, match="leave nothing to add up"):
        play(VerticalKMeans(2, 2), parties(), None, defence=Spoiling(math.nan), chunk_bytes=1)
