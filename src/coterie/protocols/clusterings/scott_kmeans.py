"""FedDP-KMeans as published (Scott, Lampert and Saulpic 2025, Algorithms 1 and 2), at record level.

Beside ``FedDPKMeans``, which is our version of it. Everything is about the origin, clipping bounds are set by hand, the
server's points of little weight are dropped, and there is one step of Lloyd; ``defences.noisy_sums.published`` has its
noise and what that really guarantees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.protocol import Running, Server
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import leading_subspace, moved_centres, project, unpack_symmetric
from coterie.learn.clusters.statistics import CLIP, ORIGIN, unscaled
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import Clusterer, Clusters, Steps

RESTARTS = 20


@dataclass(frozen=True, eq=False)
class ScottKMeans(Clusterer):
    """``bound`` clips records, for outer products and for sums: 11 in the public runs on Gaussian mixtures.

    ``least`` is the weight below which a server point is dropped, there 5.
    """

    level: Level | None = Level.RECORD
    server_data: Tensor | None = None  # (points, features), public
    bound: float = 11.0
    least: float = 5.0
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.level is Level.RECORD, "level", self.level, "must be Level.RECORD: this is its record-level run")
        require(self.server_data is not None, "server_data", None, "must be given: FedDP-Init starts from it")
        assert self.server_data is not None
        enough = self.server_data.dim() == 2 and len(self.server_data) >= self.clusters
        shape = tuple(self.server_data.shape)
        require(
            enough, "server_data of shape", shape, f"must be (points, features) with at least {self.clusters} points"
        )
        require(self.bound > 0, "bound", self.bound, "must be positive")
        require(self.steps >= 0, "steps", self.steps, "must be at least 0")

    @property
    def moves(self) -> tuple[str, ...]:
        return ("centres", *(f"lloyd {step}" for step in range(1, self.steps + 1)))

    def releases(self) -> tuple[str, ...]:
        sums = [f"{kind}/{leaf}" for kind in self.moves for leaf in ("sums", "counts")]
        return ("outer/outer", "weights/weights", *sums)

    def start(self, server: Server) -> Clusters:
        assert self.server_data is not None
        bound = torch.tensor([self.bound])
        middle = torch.zeros(1, self.server_data.shape[1])
        return Clusters(0, {"middle": middle, CLIP: bound, "bound": bound, ORIGIN: torch.ones(1)})

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        if state.round == 0:  # step 1: the subspace in which the points differ most
            state = yield from self._project(state, server)
        if state.round == 1:  # step 2: the server's points, weighed by how many points they stand for
            sums = yield from self.ask("weights", ["middle", "subspace", "known"], state, server)
            centres = self._weighed(state, sums.values["weights"][0].float(), server)
            state = state.after("weights", sums, {"centres": centres})
        for number, kind in enumerate(self.moves, 2):  # step 3, back to the full space, and Lloyd
            if state.round == number:
                state = yield from self._move(kind, state, server)
        return (yield from self.publish(state, server))

    def _project(self, state: Clusters, server: Server) -> Steps[Clusters]:
        assert self.server_data is not None
        sums = yield from self.ask("outer", ["middle", CLIP], state, server)
        packed = unscaled("outer", sums.values["outer"][0].double(), state.get("middle"), self.unit)
        features = self.server_data.shape[1]
        subspace = leading_subspace(unpack_symmetric(packed, features), min(self.clusters, features)).float()
        known = project(self.server_data.float(), subspace)
        return state.after("outer", sums, {"subspace": subspace, "known": known})

    def _weighed(self, state: Clusters, weights: Tensor, server: Server) -> Tensor:
        kept = torch.where(weights >= self.least, weights, 0.0)
        if int((kept > 0).sum()) < self.clusters:
            kept = weights.clamp_min(1e-3)
        public = state.get("subspace", "known")
        stream = server.rng.child("server k-means")
        found = weighted_kmeans(public["known"], kept, self.clusters, stream, restarts=RESTARTS)
        return found.centres[0] @ public["subspace"]

    def _move(self, kind: str, state: Clusters, server: Server) -> Steps[Clusters]:
        names = ["centres", "bound", ORIGIN]
        sums = yield from self.ask(kind, names, state, server)
        public = state.get(*names)
        total, heads = (unscaled(leaf, sums.values[leaf][0], public, self.unit).float() for leaf in ("sums", "counts"))
        return state.after(kind, sums, {"centres": moved_centres(torch.zeros_like(total), total, heads)})
