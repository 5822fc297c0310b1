"""k-FED (Dennis, Li and Smith 2021): each client clusters its own points, the server clusters the centres."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.errors import InvalidInput, require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Ask, Replies, Server
from coterie.learn.clusters.kmeans import Clustering, local_kmeans, merge_local_centres
from coterie.learn.params import Params
from coterie.protocols.clusterings.base import Clusterer, Clusters, contribution, points_of
from coterie.wire.messages import Contributions, Published

LOCAL = "local centres"


@dataclass(frozen=True, eq=False)
class KFed(Clusterer):
    """One round, and no noise that could be added to it: the server looks at every client's own centres.

    ``local_clusters`` is how many a client has (None: as many as there are in all). This is the non-private
    baseline of paper 002. Its public code sends a client's first ten records where all points differ; this does not.
    """

    local_clusters: int | None = None

    reveals: ClassVar[str] = "the means of its own clusters, exactly"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.level is None, "level", self.level, "must be None: k-FED bounds nothing")
        local = self.local_clusters
        require(
            local is None or 1 <= local <= self.clusters,
            "local_clusters",
            local,
            f"must lie in 1..{self.clusters}, the clusters there are in all",
        )

    def start(self, server: Server) -> Clusters:
        return Clusters(0, {"clusters": torch.tensor([self.local_clusters or self.clusters])})

    def run(self, state: Clusters, server: Server) -> Generator[Ask[Clusters], Replies, Clusters]:
        if state.round == 0:
            everybody = server.clients.present(0)
            replies = yield Ask(LOCAL, 0, everybody, Published({"clusters": state.known["clusters"]}), state)
            centres = merge_local_centres(_seen(replies.whole()), self.clusters, server.rng)
            state = state.after(LOCAL, None, {"centres": centres})
        return (yield from self.publish(state, server))

    def answer(self, kind: str, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind != LOCAL:
            return super().answer(kind, models, cohort, guard)
        streams = cohort.turn.rng.child("round", cohort.turn.round, "kind", kind)
        found = local_kmeans(points_of(cohort), int(models["clusters"][0]), streams, cohort.ids)
        return contribution(cohort, {"centres": found.centres, "weights": found.weights})


def _seen(sent: Contributions) -> Clustering:
    if sent.sealed:
        raise InvalidInput("k-FED's server looks at each client's centres; use a defence that does not seal them")
    weights = sent.values["weights"][:, 0]
    return Clustering(sent.values["centres"][:, 0], weights, torch.zeros(len(weights)))
