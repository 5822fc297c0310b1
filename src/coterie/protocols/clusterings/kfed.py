"""k-FED (Dennis, Li and Smith 2021): each client clusters its own points, the server clusters the centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.errors import InvalidInput, require
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Running, Server
from coterie.learn.clusters.kmeans import Clustering, local_kmeans, merge_local_centres
from coterie.learn.params import Params
from coterie.protocols.clusterings.base import Clusterer, Clusters, contribution, points_of
from coterie.wire.messages import Contributions, Kind, Published

LOCAL = Kind("local")


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

    @property
    def looks(self) -> str:
        return "each client's own centres, to merge them"

    def start(self, server: Server) -> Clusters:
        return Clusters(0, {"clusters": torch.tensor([self.local_clusters or self.clusters])})

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        if state.round == 0:
            everybody = server.clients.present(0)
            sent = (yield Ask(LOCAL, 0, everybody, Published({"clusters": state.known["clusters"]}), state)).whole()
            if sent is None:
                raise InvalidInput("answers=0 to the only request leave nothing to cluster; run it again")
            centres = merge_local_centres(_seen(sent), self.clusters, server.rng)
            state = state.after(str(LOCAL), None, {"centres": centres})
        return (yield from self.publish(state, server))

    def expects(self, ask: Ask[Clusters], server: Server) -> Expected | None:
        if ask.kind != LOCAL:
            return super().expects(ask, server)
        local = self.local_clusters or self.clusters
        return Expected({"centres": (1, local, -1), "weights": (1, local)}, slots=1)

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind != LOCAL:
            return super().answer(kind, models, cohort, guard)
        streams = cohort.turn.roots.draws.child("round", cohort.turn.round, "kind", "local centres")
        found = local_kmeans(points_of(cohort), int(models["clusters"][0]), streams, cohort.ids)
        return contribution(cohort, {"centres": found.centres, "weights": found.weights})


def _seen(sent: Contributions) -> Clustering:
    weights = sent.values["weights"][:, 0]
    return Clustering(sent.values["centres"][:, 0], weights, torch.zeros(len(weights)))
