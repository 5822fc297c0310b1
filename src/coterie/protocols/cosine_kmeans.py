"""Clustering on the server by cosine similarity and k-means (paper 004, Algorithm 1), then FedAvg in each cluster."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.errors import InvalidInput, require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Ask, Replies, Server
from coterie.flow.rng import Rng
from coterie.learn.params import Params
from coterie.protocols.base import Trainer, copies, updates
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Published


@register
@dataclass(frozen=True)
class Groups:
    """A model a cluster, and who is where (-1: not clustered yet)."""

    round: int
    published: Published
    assignment: Tensor  # (clients,)


@dataclass(frozen=True)
class CosineKMeans(Trainer[Groups]):
    """The paper compares parameters; we compare updates, since parameters that share a start are all alike.

    For ``warmup`` rounds all clients train one model. The next round asks everybody and clusters. A round that finds
    newcomers among its clients does the same again, each from the model that it has; a newcomer is given slot 0.
    """

    clusters: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clusters >= 1, "clusters", self.clusters, "must be at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "must be at least 0")

    def start(self, server: Server) -> Groups:
        one = server.fresh(1)
        same = copies(one, torch.zeros(self.clusters, dtype=torch.int64))
        return Groups(0, Published(same), torch.full((len(server.clients.sizes),), -1))

    def run(self, state: Groups, server: Server) -> Generator[Ask[Groups], Replies, Groups]:
        for round in range(state.round, self.rounds):
            chosen = server.sample(round, self.participation)
            clustering = round >= self.warmup and bool((state.assignment[chosen] < 0).any())
            if clustering:
                chosen = server.clients.present(round)
            replies = yield Ask("train", round, chosen, state.published, state, self.sees(state, chosen))
            if clustering:
                sent = replies.whole()
                state = self.clustered(state, sent, server.rng.child("k-means", "round", round))
                membership = one_hot(state.assignment[sent.ids], self.clusters).float()
                replies = Replies(iter([replace(sent, membership=membership)]))
            published = server.aggregate(replies, round).mean(state.published)
            if round < self.warmup:  # one model for all: what slot 0 became
                published = Published(copies(published.values, torch.zeros(self.clusters, dtype=torch.int64)))
            state = replace(state, round=round + 1, published=published)
        return state

    def clustered(self, state: Groups, sent: Contributions, rng: Rng) -> Groups:
        """Algorithm 1: the cosine similarity matrix, and k-means on its rows."""
        from sklearn.cluster import KMeans

        if len(sent) < self.clusters:
            raise InvalidInput(f"clusters={self.clusters} is more than the {len(sent)} clients; use fewer clusters")
        given = state.assignment[sent.ids].clamp_min(0)
        directions = normalize(updates(sent, state.published.values, given), dim=1)
        similarity = (directions @ directions.T).double().numpy()
        labels = KMeans(self.clusters, n_init=10, random_state=rng.seed() % 2**32).fit_predict(similarity)
        assignment = state.assignment.clone()
        assignment[sent.ids] = torch.from_numpy(labels).to(assignment.dtype)
        return replace(state, assignment=assignment)

    def result(self, state: Groups) -> Published:
        return state.published

    def sees(self, state: Groups, clients: Tensor) -> Tensor:
        return one_hot(state.assignment[clients].clamp_min(0), self.clusters).bool()

    def answer(self, kind: str, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        seen = cohort.seen(models)
        trained = cohort.train(copies(models, seen.int().argmax(1)), self.local, guard)
        return self.contribution(cohort, trained, seen.float())
