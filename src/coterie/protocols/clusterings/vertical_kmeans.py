"""Vertical k-means: parties hold columns of the same records and send distances, the server adds and assigns (003)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from coterie.data.federation import VerticalFederation
from coterie.data.lazy import AnyFederation, revealed
from coterie.errors import InvalidInput, require
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort, Memory
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Protocol, Running, Server
from coterie.learn.clusters.columns import Labelled, absolute_differences, least_of_blocks, small, squared_differences
from coterie.learn.params import Params
from coterie.learn.sgd import Local
from coterie.learn.threads import each_in_one_thread
from coterie.privacy.guarantee import RunFacts
from coterie.protocols.clusterings.base import contribution
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.messages import RESULT, Contributions, Kind, Published

SEED, DISTANCES = Kind("seed"), Kind("distances")
LABELS, RECORDS, TOTALS = "labels", "records", "distances"
OF, AMONG = "of", "among"  # beside labels: by which round's totals, and among how many clusters, they were found
BY_ROWS = "federation=rows: vertical k-means needs parties with columns; split it by columns"
SUMS = "sums of the clusters"  # kept as well: of which few change from step to step
CENTRES = "centres"  # what a party keeps: its own part of each, (clusters, own columns)


class Fusion(Enum):
    """How a party makes one number of its columns' differences from a centre."""

    SQUARES = "squares"  # these add up to squared Euclidean distances, and the assignment is that of k-means
    ROOTS = "roots"  # the paper's literal text: a distance for each attribute, added up. That is the Manhattan distance


class Start(Enum):
    """Where the centres are at first."""

    PLUS_PLUS = "k-means++"  # records drawn by their distance from those before: clusters - 1 further requests
    RECORDS = "records"  # records that the server draws; each party has its part of them
    RANDOM = "random"  # the paper's: each party draws points within the range of its columns, whatever the others draw


@register
@dataclass(frozen=True)
class Assignments:
    """What the server knows after so many requests. The centres are known to the parties alone, each its part."""

    round: int
    labels: Tensor  # (records,): the cluster of each, as the server found it; 0 before the first step
    chosen: Tensor  # (records so far,): on which the centres start
    nearest: Tensor  # (records,): how far from those each record is; none unless k-means++ asks
    still: bool = False  # whether the last step changed no label


Steps = Generator[Ask[Assignments], Replies, Sums]


@dataclass(frozen=True)
class VerticalKMeans(Protocol[Assignments]):
    """Steps (1) to (6) of Section 3.1, without its noise, for which ``defences.randomised_response`` is there.

    At most ``steps`` steps of Lloyd, until no label changes. Where we differ: differences are squared, for only squares
    add up to a Euclidean assignment (``Fusion.ROOTS`` is the paper's text); and centres start on records that the
    server draws, so that the parts of one centre belong together (``Start.RANDOM`` is the paper's).

    A cluster without records keeps its centre. A party that does not answer stops the run: distances without its
    columns are another clustering. Everything before that is in the state, and the run goes on from it.
    """

    clusters: int = 10
    steps: int = 20
    fusion: Fusion = Fusion.SQUARES
    start_on: Start = Start.PLUS_PLUS

    tells_records: ClassVar[str] = TOTALS

    def __post_init__(self) -> None:
        require(self.clusters >= 1, "clusters", self.clusters, "must be at least 1")
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")

    @property
    def seedings(self) -> int:
        """Requests before the first step."""
        return self.clusters - 1 if self.start_on is Start.PLUS_PLUS else 0

    def facts(self, federation: AnyFederation, delta: float = 1e-6) -> RunFacts:
        """What a defence must know of clustering this federation to say what it guarantees."""
        if not isinstance(federation, VerticalFederation):
            raise InvalidInput(BY_ROWS)
        told = self.seedings + self.steps * self.clusters
        held = tuple(map(len, federation.columns))
        rounds, reveals = self.seedings + self.steps, revealed(federation, "")
        return RunFacts(federation.clients, rounds, Local(), (), delta, reveals, numbers_a_record=told, columns=held)

    # -- the server's side ---------------------------------------------------------------------------------------

    def start(self, server: Server) -> Assignments:
        records = int(server.clients.sizes[0])
        require(
            self.clusters <= records,
            "clusters",
            self.clusters,
            f"must be at most {records}, the records that there are",
        )
        at_once = {Start.PLUS_PLUS: 1, Start.RECORDS: self.clusters, Start.RANDOM: 0}[self.start_on]
        chosen = server.rng.child("start").numpy().choice(records, at_once, replace=False)
        far = torch.full((records if self.seedings else 0,), torch.inf, dtype=torch.float64)
        return Assignments(0, torch.zeros(records, dtype=small(self.clusters)), torch.from_numpy(chosen), far)

    def run(self, state: Assignments, server: Server) -> Running[Assignments]:
        while state.round < self.seedings:
            sums = yield from self._totals(SEED, {RECORDS: state.chosen[-1:]}, state, server)
            state = _farther(state, sums.values[TOTALS][0, :, 0], server.rng.child("start", state.round + 1))
        while state.round < self.seedings + self.steps and not state.still:
            sums = yield from self._totals(DISTANCES, self._known(state), state, server)
            labels = least_of_blocks(partial(sums.rows, TOTALS), len(state.labels), self.clusters)
            del sums  # with all messages
            still = state.round > self.seedings and torch.equal(labels, state.labels)
            state = replace(state, round=state.round + 1, labels=labels, still=still)
        for _ in (yield Ask(RESULT, state.round, server.clients.present(0), self.result(state), state)):
            pass
        return state

    def _known(self, state: Assignments) -> dict[str, Tensor]:
        """What the parties must be told to have the next centres: the labels, or at first the records."""
        return {RECORDS: state.chosen} if state.round == self.seedings else self._found(state)

    def _found(self, state: Assignments) -> dict[str, Tensor]:
        return {LABELS: state.labels, OF: torch.tensor(state.round - 1), AMONG: torch.tensor(self.clusters)}

    def _totals(self, kind: Kind, told: Mapping[str, Tensor], state: Assignments, server: Server) -> Steps:
        """(1, records, centres): the distances summed over all parties, or to be summed."""
        parties = server.clients.present(0)
        published = Published({name: leaf.unsqueeze(0) for name, leaf in told.items()})
        ask = Ask(kind, state.round, parties, published, state, whole=True)
        sums = yield from server.collect(ask)
        answered = 0 if sums.empty else int(sums.counts[0])
        require(
            answered == len(parties),
            f"answers to {str(kind)!r} in round {state.round}",
            answered,
            f"leave nothing to add up: all {len(parties)} parties must answer, for distances without a party's columns "
            "are another clustering; resume the run once all do, or start it again",
        )
        due = self.expects(ask, server).leaves
        require(
            sums.shapes == due, f"sums of {str(kind)!r}", sums.shapes, f"must be {due}: all parties sent other tables"
        )
        return sums

    def expects(self, ask: Ask[Assignments], server: Server) -> Expected:
        if ask.kind == RESULT:
            return Expected({}, slots=1)
        centres = 1 if ask.kind == SEED else self.clusters
        return Expected({TOTALS: (1, int(server.clients.sizes[0]), centres)}, slots=1)

    def serves(self, state: Assignments) -> bool:
        return state.round > self.seedings

    def result(self, state: Assignments) -> Published:
        return Published({name: leaf.unsqueeze(0) for name, leaf in self._found(state).items()})

    # -- a party's side ------------------------------------------------------------------------------------------

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if not cohort.columns:
            raise InvalidInput(BY_ROWS)
        columns, ids = guard.columns(cohort), cohort.ids.tolist()
        labelled = Labelled(models[LABELS][0], self.clusters) if LABELS in models else None
        if labelled is not None:
            labelled.prepare([memory.get(SUMS) for memory in cohort.memory])
        fused = squared_differences if self.fusion is Fusion.SQUARES else absolute_differences
        centres = 1 if kind == SEED else self.clusters
        distances = torch.empty(len(cohort), 0 if kind == RESULT else len(columns[0]), centres)

        def work(place: int) -> None:
            own, memory = columns[place], cohort.memory[place]
            memory[CENTRES] = self._centres(models, labelled, own, memory, cohort.rng(ids[place], CENTRES))
            if kind != RESULT:
                fused(own, memory[CENTRES], distances[place])

        each_in_one_thread(work, range(len(cohort)))
        return contribution(cohort, {} if kind == RESULT else {TOTALS: distances})

    def _centres(self, models: Params, labelled: Labelled | None, own: Tensor, memory: Memory, rng: Rng) -> Tensor:
        """The party's part of the centres, (centres, own columns): it follows from what it was told."""
        if labelled is not None:  # a party that has lost what it kept puts a cluster without records at its mean
            before = memory[CENTRES] if CENTRES in memory else own.mean(0).expand(self.clusters, -1)
            memory[SUMS] = labelled.added(own, memory.get(SUMS))
            return labelled.means_of(memory[SUMS], before)
        if models[RECORDS].shape[1]:
            return own[models[RECORDS][0]]
        low, high = own.min(0).values, own.max(0).values
        return low + (high - low) * torch.rand(self.clusters, own.shape[1], generator=rng.torch())


def _farther(state: Assignments, distances: Tensor, rng: Rng) -> Assignments:
    """One record more, by how far it is from those chosen before (Arthur and Vassilvitskii 2007)."""
    nearest = torch.minimum(state.nearest, distances).clamp_min_(0)  # noise may have led below
    mass = nearest if float(nearest.sum()) > 0 else torch.ones_like(nearest)  # fewer distinct records than clusters
    drawn = rng.numpy().choice(len(mass), 1, p=(mass / mass.sum()).numpy())
    chosen = torch.cat([state.chosen, torch.from_numpy(drawn)])
    return replace(state, round=state.round + 1, chosen=chosen, nearest=nearest)
