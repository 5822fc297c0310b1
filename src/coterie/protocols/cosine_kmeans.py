"""Clustering on the server by cosine similarity and k-means (paper 004, Algorithm 1), then FedAvg in each cluster."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.errors import InvalidInput, require, require_count
from coterie.flow.ask import Ask, Replies
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Running, Server
from coterie.learn.params import Params, flatten, pick
from coterie.protocols.base import MOST_MODELS, Trainer, cosines, updates
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.messages import TRAIN, Contributions, Kind, Published


@register
@dataclass(frozen=True)
class Groups:
    """A model a cluster, who is where (-1: not clustered yet), and what a newcomer is placed by."""

    round: int
    published: Published
    assignment: Tensor  # (clients,)
    origin: Published | None = None  # one slot: the model that all trained when they were first clustered
    directions: Tensor | None = None  # (clusters, length): the mean of what each cluster was then compared by
    settled: bool = False  # whether clusters are what they will be


@dataclass(frozen=True)
class CosineKMeans(Trainer[Groups]):
    """Every round the server compares the clients' parameters and divides them anew, until nothing changes.

    For ``warmup`` rounds all clients train one model. From then on a round asks everybody, clusters by Algorithm 1 and
    averages within the clusters; when two clusterings in succession agree, they are settled. ``compare="updates"``
    compares what clients changed instead. Updates of models that have come apart say nothing, so this clusters once.

    A newcomer (the paper has none) trains the model at which the first clustering was made, and joins the cluster whose
    mean was then most similar to what comes of it.

    The server looks at each answer of a round that clusters, so it holds them all in memory, twice.
    """

    clusters: int = 5
    warmup: int = 1
    compare: Literal["parameters", "updates"] = "parameters"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("clusters", self.clusters, 1, MOST_MODELS)
        require(self.warmup >= 0, "warmup", self.warmup, "must be at least 0")
        known = ("parameters", "updates")
        require(self.compare in known, "compare", self.compare, f"must be one of {', '.join(known)}")

    @property
    def placements(self) -> int:
        return 1

    def start(self, server: Server) -> Groups:
        return Groups(0, self._same(self.begins.models(server, 1)), torch.full((len(server.clients.sizes),), -1))

    @property
    def looks(self) -> str:
        return "each client's update, to cluster by"

    def run(self, state: Groups, server: Server) -> Running[Groups]:
        for round in range(state.round, self.rounds):
            clusters = not state.settled and round >= self.warmup
            chosen = server.clients.present(round) if clusters else server.sample(round, self.participation)
            placed = replace(state, assignment=(yield from self.place(state, chosen)))
            ask = Ask(TRAIN, round, chosen, state.published, state, self.sees(placed, chosen))
            if clusters:
                sent = (yield ask).whole()
                if sent is None or len(sent) < self.clusters <= len(chosen):  # too few: the next round clusters
                    state = replace(placed, round=round + 1)
                    continue
                placed = self.clustered(placed, sent, server.rng.child("k-means"))
                membership = one_hot(placed.assignment[sent.ids], self.clusters).float()
                sums = server.add_up(replace(sent, membership=membership), round)
            else:
                sums = yield from server.collect(ask)
            published = sums.mean(state.published)
            if round < self.warmup:  # one model for all: what slot 0 became
                published = self._same(published.values)
            state = replace(placed, round=round + 1, published=published)
        everybody = server.clients.present(state.round)
        return replace(state, assignment=(yield from self.place(state, everybody)))

    def place(self, state: Groups, chosen: Tensor) -> Generator[Ask[Groups], Replies, Tensor]:
        """Newcomers go where their update points; before the clustering there is nothing to do."""
        new = chosen[state.assignment[chosen] < 0]
        assignment = state.assignment.clone()
        if state.origin is not None and state.directions is not None and len(new):
            sent = (yield Ask(Kind("place"), state.round, new, state.origin, state)).whole()
            if sent is None:
                return assignment
            shown = self._compared(sent, state.origin.values, torch.zeros(len(sent), dtype=torch.int64))
            towards = normalize(shown, dim=1) @ normalize(state.directions, dim=1).T  # (newcomers, clusters)
            assignment[sent.ids] = towards.argmax(1)
        return assignment

    def clustered(self, state: Groups, sent: Contributions, rng: Rng) -> Groups:
        """Algorithm 1: the cosine similarity matrix, and k-means on its rows."""
        from sklearn.cluster import KMeans

        if len(sent) < self.clusters:
            raise InvalidInput(f"clusters={self.clusters} is more than the {len(sent)} clients; use fewer clusters")
        before = state.assignment[sent.ids]
        shown = self._compared(sent, state.published.values, before.clamp_min(0))
        similarity = cosines(shown.double()).numpy()
        found = KMeans(self.clusters, n_init=10, random_state=rng.seed() % 2**32).fit_predict(similarity)
        labels = renamed(torch.from_numpy(found).to(before.dtype), before, self.clusters)
        assignment = state.assignment.clone()
        assignment[sent.ids] = labels
        if state.origin is not None:
            return replace(state, assignment=assignment, settled=bool(torch.equal(labels, before)))
        members = one_hot(labels, self.clusters).float()
        directions = members.T @ shown / members.sum(0).clamp_min(1).unsqueeze(1)  # an empty cluster's: nowhere
        origin = Published({name: leaf[:1] for name, leaf in state.published.values.items()})
        once = self.compare == "updates"
        return replace(state, assignment=assignment, origin=origin, directions=directions, settled=once)

    def _compared(self, sent: Contributions, models: Params, given: Tensor) -> Tensor:
        """(clients, length): what the server compares."""
        if self.compare == "updates":
            return updates(sent, models, given)
        return flatten(sent.values, leading=2)[:, 0]

    def _same(self, models: Params) -> Published:
        """The first model in every slot."""
        return Published(pick(models, torch.zeros(self.clusters, dtype=torch.int64)))

    def result(self, state: Groups) -> Published:
        return state.published

    def sees(self, state: Groups, clients: Tensor) -> Tensor:
        return one_hot(state.assignment[clients].clamp_min(0), self.clusters).bool()

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        seen = cohort.seen(models)
        trained = cohort.train(cohort.copies(models, seen.int().argmax(1)), self.local, guard, label=str(kind))
        return self.contribution(cohort, trained, seen.float())


def renamed(labels: Tensor, before: Tensor, clusters: int) -> Tensor:
    """The same clusters under the names that agree best with those before, of whom some may be in none (-1)."""
    from scipy.optimize import linear_sum_assignment

    shared = one_hot(labels, clusters).T @ one_hot(before + 1, clusters + 1)[:, 1:]  # (labels, names)
    old, new = linear_sum_assignment(shared.numpy(), maximize=True)
    names = torch.empty(clusters, dtype=labels.dtype)
    names[torch.from_numpy(old)] = torch.from_numpy(new).to(labels.dtype)
    return names[labels]
