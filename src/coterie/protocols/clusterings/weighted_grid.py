"""Li, Wang and Li (VLDB 2023): parties tell centres of their own columns, and sketches of who is near which of them.

The server lays the parties' centres out as a grid, one node for each choice of a centre a party. How many records
belong to a node is the size of an intersection: all records, less the union of the complements, which sketches give.
Then it clusters the nodes by their weights. No number of a single record is ever told, so that noise on sums and
phantoms in sketches (``defences.private_grid``) guarantee something against the server itself.

Where we differ: a party's centres are found by Lloyd's steps from public points, a request each (they take DPLSF); a
cluster that is next to empty starts anew beside the largest. A complement is sketched as the union of the other
clusters, so that a record is in one sketched set a party and not in all but one. What comes out is centres: labels
would be numbers of records.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import VerticalFederation
from coterie.data.lazy import AnyFederation, revealed
from coterie.errors import InvalidInput, require, require_count
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Replies
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Protocol, Running, Server
from coterie.learn.clusters.columns import Labelled
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import nearest
from coterie.learn.clusters.sketches import common, size, sketched
from coterie.learn.params import Params
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import DELTA, RunFacts
from coterie.privacy.public_range import PublicRange
from coterie.protocols.clusterings.base import MOST_STEPS, contribution
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.messages import RESULT, Contributions, Kind, Published

WIDTHS, LOCAL, MEMBERS = Kind("widths"), Kind("local"), Kind("members")
BY_ROWS = "federation=rows: a weighted grid needs parties with columns; split it by columns"
MOST_SKETCHES = 1 << 20
MOST_NODES = 1 << 16
LEAST = 0.02  # a local cluster with less of the records is taken for empty
BESIDE = 0.1  # of the range: how far from the largest cluster's centre an empty one starts anew


@register
@dataclass(frozen=True)
class GridState:
    """What the server knows after so many requests."""

    round: int
    widths: Tensor  # (parties,): how many columns each has; none at first
    centres: Tensor  # (parties, local clusters, widest): each party's, of its own columns
    found: Tensor  # (clusters, all columns): the result; none before the end


Asking = Generator[Ask[GridState], Replies, Contributions]


@dataclass(frozen=True)
class WeightedGrid(Protocol[GridState]):
    """``local`` clusters a party by ``steps`` requests, then ``sketches`` of each; ``low`` and ``high`` are public.

    Nodes are local^parties. A party that does not answer stops the run, as in ``VerticalKMeans``.
    """

    clusters: int = 10
    local: int = 4
    steps: int = 6
    sketches: int = 4096
    low: float = 0.0
    high: float = 1.0

    reveals: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, most in {"clusters": MOST_NODES, "steps": MOST_STEPS, "sketches": MOST_SKETCHES}.items():
            require_count(name, getattr(self, name), 1, most)
        require(self.local >= 2, "local", self.local, "must be at least 2, or there is no grid")
        _ = self.middle

    @property
    def looks(self) -> str:
        return "each party's centres and sketches"

    @property
    def middle(self) -> float:
        """On the grid on which noise is added, so that what is summed about it is exact."""
        return PublicRange.of(self.low, self.high).middle

    def facts(self, federation: AnyFederation, delta: float = DELTA) -> RunFacts:
        """A record is in ``sketches`` sketches of each party, which have its level in common: they are one release."""
        if not isinstance(federation, VerticalFederation):
            raise InvalidInput(BY_ROWS)
        held, reveals = tuple(map(len, federation.columns)), revealed(federation, self.reveals)
        return replace(self.run_of(federation.clients, delta), columns=held, reveals=reveals)

    def run_of(self, parties: int, delta: float = DELTA) -> RunFacts:
        """The same before anybody knows who has which columns."""
        return RunFacts(parties, self.steps + 2, Local(), (), delta, numbers_a_record=self.sketches)

    # -- the server's side ---------------------------------------------------------------------------------------

    def start(self, server: Server) -> GridState:
        nodes = self.local ** len(server.clients.present(0))
        require(nodes <= MOST_NODES, "local", self.local, f"gives a grid of {nodes} nodes, above {MOST_NODES}")
        require(self.clusters <= nodes, "clusters", self.clusters, f"must be at most {nodes}, the nodes of the grid")
        return GridState(
            0, torch.zeros(0, dtype=torch.int64), torch.zeros(0, self.local, 0), torch.zeros(self.clusters, 0)
        )

    def run(self, state: GridState, server: Server) -> Running[GridState]:
        if state.round == 0:
            told = yield from self._all(WIDTHS, Published({}), state, server)
            widths = told.values["width"][:, 0, 0].long()
            state = replace(state, round=1, widths=widths, centres=self._first(widths, server.rng.child("start")))
        while state.round <= self.steps:
            told = yield from self._all(LOCAL, self._published(state), state, server)
            moved = self._moved(told.values["sums"][:, 0], told.values["counts"][:, 0], state, server)
            state = replace(state, round=state.round + 1, centres=moved)
        if not self.serves(state):
            told = yield from self._all(MEMBERS, self._published(state), state, server)
            weights = self._weights(told.values["sketches"][:, 0].numpy(), int(server.clients.sizes[0]))
            state = replace(state, round=state.round + 1, found=self._clustered(weights, state, server.rng))
        for _ in (yield Ask(RESULT, state.round, server.clients.present(0), self.result(state), state)):
            pass
        return state

    def _all(self, kind: Kind, published: Published, state: GridState, server: Server) -> Asking:
        parties = server.clients.present(0)
        replies = (yield Ask(kind, state.round, parties, published, state)).whole()
        answered = 0 if replies is None else len(replies)
        require(
            answered == len(parties),
            f"answers to {str(kind)!r} in round {state.round}",
            answered,
            f"leave nothing to add up: all {len(parties)} parties must answer, or there is no grid; go on from the "
            "saved state when all are back",
        )
        assert replies is not None
        return replies.pick(replies.ids.argsort())

    def _published(self, state: GridState) -> Published:
        return Published({"centres": state.centres.unsqueeze(0)})

    def _first(self, widths: Tensor, rng: Rng) -> Tensor:
        """Public points, between the bounds."""
        drawn = torch.rand(len(widths), self.local, int(widths.max()), generator=rng.torch())
        return self.low + (self.high - self.low) * drawn

    def _moved(self, sums: Tensor, counts: Tensor, state: GridState, server: Server) -> Tensor:
        """Means, which lie between the bounds whatever noise has done; next to empty clusters start anew."""
        heads = counts.double().clamp_min(1.0)
        means = (self.middle + sums.double() / heads.unsqueeze(2)).clamp(self.low, self.high).float()
        empty = counts < LEAST * int(server.clients.sizes[0])
        draws = torch.randn(means.shape, generator=server.rng.child("beside", state.round).torch())
        largest = means[torch.arange(len(means)), counts.argmax(1)].unsqueeze(1)
        beside = (largest + BESIDE * (self.high - self.low) * draws).clamp(self.low, self.high)
        last = state.round == self.steps  # whoever starts anew now will not be looked at again
        return torch.where(empty.unsqueeze(2) & (not last), beside, means)

    def _weights(self, sketches: np.ndarray, records: int) -> Tensor:
        """(nodes,): of each choice of a cluster a party, in the order of ``torch.cartesian_prod``."""
        told = np.rint(sketches).astype(np.int16)  # (parties, local, sketches)
        floor, phantoms = int(told.min()), 0.0
        choices = torch.cartesian_prod(*[torch.arange(self.local)] * len(told)).view(-1, len(told)).tolist()
        others = [[np.delete(own, choice, 0).max(0) for choice in range(self.local)] for own in told]
        everything = size(told.max((0, 1)), floor)  # all records, and all phantoms: what those are is read off it
        phantoms = max(0.0, everything - records) * (1 - 1 / len(choices))  # as many in each node
        unions = [size(np.max([others[p][c] for p, c in enumerate(node)], 0), floor) for node in choices]
        found = torch.tensor([records + phantoms - union for union in unions]).clamp_min(0.0)
        return found * (records / found.sum().clamp_min(1e-9))

    def _clustered(self, weights: Tensor, state: GridState, rng: Rng) -> Tensor:
        own = [centres[:, :width] for centres, width in zip(state.centres, state.widths.tolist(), strict=True)]
        choices = torch.cartesian_prod(*[torch.arange(self.local)] * len(own)).view(-1, len(own))
        nodes = torch.cat([part[choice] for part, choice in zip(own, choices.T, strict=True)], 1)
        filled = int((weights > 0).sum())
        mass = weights.float() if filled >= self.clusters else weights.float() + 1.0
        return weighted_kmeans(nodes, mass, self.clusters, rng.child("grid")).centres[0]

    def expects(self, ask: Ask[GridState], server: Server) -> Expected:
        if ask.kind == RESULT:
            return Expected({}, slots=1)
        if ask.kind == WIDTHS:
            return Expected({"width": (1, 1)}, slots=1)
        if ask.kind == MEMBERS:
            return Expected({"sketches": (1, self.local, self.sketches)}, slots=1)
        wide = ask.state.centres.shape[2]
        return Expected({"sums": (1, self.local, wide), "counts": (1, self.local)}, slots=1)

    def serves(self, state: GridState) -> bool:
        return state.found.shape[1] > 0

    def result(self, state: GridState) -> Published:
        return Published({"centres": state.found.unsqueeze(0)})

    # -- a party's side ------------------------------------------------------------------------------------------

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if not cohort.columns:
            raise InvalidInput(BY_ROWS)
        if kind == RESULT:
            return contribution(cohort, {})
        if kind == WIDTHS:
            return contribution(cohort, {"width": torch.tensor([[float(own.shape[1])] for own in cohort.columns])})
        columns = guard.columns(cohort)
        every = models["centres"][0]
        mine = [every[party, :, : own.shape[1]] for party, own in zip(cohort.ids.tolist(), columns, strict=True)]
        labels = [nearest(own.float(), centres) for own, centres in zip(columns, mine, strict=True)]
        if kind == MEMBERS:
            secret = common(cohort.turn.roots.secrets, models["centres"].numpy()).child("levels")
            found = [sketched(label.numpy(), self.local, self.sketches, secret) for label in labels]
            return contribution(cohort, {"sketches": torch.from_numpy(np.stack(found)).float()})
        sums = torch.zeros(len(cohort), self.local, every.shape[2], dtype=torch.float64)
        counts = torch.zeros(len(cohort), self.local, dtype=torch.float64)
        for place, (own, label) in enumerate(zip(columns, labels, strict=True)):
            within = own.double().clamp(self.low, self.high) - self.middle
            sums[place, :, : own.shape[1]] = Labelled(label, self.local).sums(within)
            counts[place] = torch.bincount(label, minlength=self.local)
        return contribution(cohort, {"sums": sums, "counts": counts})
