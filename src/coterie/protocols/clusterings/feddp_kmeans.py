"""FedDP-KMeans (Scott, Lampert and Saulpic 2025): a start from a little server data, and a step or two of Lloyd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.protocol import Running, Server
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import Points, leading_subspace, project, unpack_symmetric
from coterie.learn.clusters.shrinkage import shrunk
from coterie.learn.clusters.statistics import statistics
from coterie.protocols.clusterings.base import Clusterer, Clusters
from coterie.rng import Rng
from coterie.wire.messages import Kind

RESTARTS = 20


@dataclass(frozen=True, eq=False)
class FedDPKMeans(Clusterer):
    """FedDP-Init's three steps (Algorithm 1), then ``steps`` of FedDP-Lloyds (Algorithm 2).

    ``server_data`` (points, features) is public. ``bound`` limits the norm that a unit adds to a sum, about the centres
    so far; None: what ``share`` of the units stay below, by a histogram of norms that is released (and paid for) too.

    Where we differ from the paper. Vectors are measured from what is already public (the mean of the server's data,
    then the centres released so far), so they are shorter and need less noise. Outer products and, at client level,
    histograms are scaled to norm 1, so only one bound is left to find. All noise is Gaussian, which composes without
    loss. Server points whose noisy weight is below ``least`` deviations are dropped (the original: below 5), if the
    others are most of the weight. What is released is shrunk towards what the server knew before, by as much as noise
    explains (``shrunk``): where noise drowns all, the result is a clustering of the server's own points.
    """

    server_data: Tensor | None = None
    steps: int = 1
    bound: float | None = None
    share: float = 0.5
    least: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.server_data is not None, "server_data", None, "must be given: FedDP-Init starts from it")
        assert self.server_data is not None
        require(
            self.server_data.dim() == 2 and len(self.server_data) >= self.clusters,
            "server_data of shape",
            tuple(self.server_data.shape),
            f"must be (points, features) with at least {self.clusters} points, one a cluster",
        )
        finite = bool(torch.isfinite(self.server_data).all())
        require(finite, "server_data", "NaN or infinity", "must be finite; drop those points")
        require(self.steps >= 0, "steps", self.steps, "must be at least 0")
        require(self.bound is None or self.bound > 0, "bound", self.bound, "must be positive, or None to estimate it")
        require(0 < self.share <= 1, "share", self.share, "must lie in (0, 1]")
        require(self.least >= 0, "least", self.least, "must not be negative")

    @property
    def estimates(self) -> bool:
        return self.level is not None and self.bound is None

    def releases(self) -> tuple[str, ...]:
        moves = ["centres", *(f"lloyd {step}" for step in range(1, self.steps + 1))]
        found = ["bound/norms"] if self.estimates else []
        pairs = [f"{kind}/{leaf}" for kind in moves for leaf in ("sums", "counts")]
        return ("outer/outer", "weights/weights", *found, *pairs)

    def start(self, server: Server) -> Clusters:
        assert self.server_data is not None
        known = {"middle": self.server_data.float().mean(0, keepdim=True)}
        if self.bound is not None:
            known["bound"] = torch.tensor([self.bound])
        return Clusters(0, known)

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        if state.round == 0:  # step 1: the subspace in which the points differ most
            sums = yield from self.ask(Kind("outer"), ["middle"], state, server)
            noise = sums.noise.get("outer", 0.0)
            state = state.after(Kind("outer"), sums, self._subspace(state, sums.values["outer"][0], noise))
        if state.round == 1:  # step 2: the server's points, weighed by how many points they stand for
            sums = yield from self.ask(Kind("weights"), ["middle", "subspace", "known"], state, server)
            noise = sums.noise.get("weights", 0.0)
            centres = self._coarse_centres(state, sums.values["weights"][0], noise, server.rng)
            state = state.after(Kind("weights"), sums, {"centres": centres})
        if state.round == 2:  # how long the vectors of the next step are
            bound = self.find_bound(["centres"], self.share, state, server)
            state = (yield from bound) if self.estimates else state.at(3)
        names = ["centres"] if self.level is None else ["centres", "bound"]
        if state.round == 3:  # step 3: back to the full space
            state = yield from self.move(Kind("centres"), names, state, server)
        while state.round < 4 + self.steps:
            state = yield from self.move(Kind("lloyd", state.round - 3), names, state, server)
        return (yield from self.publish(state, server))

    def _subspace(self, state: Clusters, packed: Tensor, noise: float) -> dict[str, Tensor]:
        """The leading directions of the noisy sum, shrunk towards that of the server's own points at its best scale.

        That is at least what noise can hide, for a guess of nothing has no directions.
        """
        assert self.server_data is not None
        middle, features = state.known["middle"][0], self.server_data.shape[1]
        own = statistics("outer", state.get("middle"), Points.of([self.server_data]), RecordClip)["outer"][0].double()
        direction = own / own.norm().clamp_min(torch.finfo(own.dtype).tiny)
        guess = direction * (packed.double() @ direction).clamp_min(noise)
        matrix = unpack_symmetric(shrunk(packed.double(), guess, noise), features)
        subspace = leading_subspace(matrix, min(self.clusters, features)).float()
        return {"subspace": subspace, "known": project(self.server_data.float(), subspace, middle)}

    def _coarse_centres(self, state: Clusters, weights: Tensor, noise: float, rng: Rng) -> Tensor:
        """Centres in the subspace, as they lie in full.

        Clients label their points by them without projecting: what sticks out of the subspace decides nothing.
        """
        public, kept = state.get("middle", "subspace", "known"), self._cleaned(weights, noise).float()
        found = weighted_kmeans(public["known"], kept, self.clusters, rng.child("server k-means"), restarts=RESTARTS)
        return public["middle"] + found.centres[0] @ public["subspace"]

    def _cleaned(self, weights: Tensor, noise: float) -> Tensor:
        """Only weights that stand out of the noise, if these are most of it; else all, shrunk towards their mean."""
        kept = torch.where(weights >= self.least * noise, weights, 0.0)
        if float(kept.sum()) < float(weights.sum()) / 2:
            kept = shrunk(weights, weights.mean(), noise)
        kept = kept.clamp_min(0)
        return kept if int((kept > 0).sum()) >= self.clusters else torch.ones_like(kept)
