"""Federated Lloyd: clients send the sum and the count of their points in each cluster (paper 002, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.protocol import Running, Server
from coterie.protocols.clusterings.base import Clusterer, Clusters
from coterie.wire.messages import Kind

STILL = 1e-6  # of the largest coordinate: below that, only rounding moves


@dataclass(frozen=True, eq=False)
class FederatedLloyd(Clusterer):
    """From public ``centres`` (clusters, features), at most ``steps`` steps, until nothing moves.

    With a ``level``, what a unit adds is bounded: by ``bound`` if given, else by the norm that ``share`` of the units
    stays below, found by a histogram of norms that is a release of its own. FedDP-Lloyds is this with a noisy sum.

    The sums are about the centres, not about the origin: shorter vectors need less noise, and data far from the origin
    lose no digits. A cluster that nobody has points in keeps its centre.
    """

    centres: Tensor | None = None
    steps: int = 20
    bound: float | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.centres is not None, "centres", None, "must be given: cluster some public data, or run KFed first")
        assert self.centres is not None
        require(
            self.centres.dim() == 2 and len(self.centres) == self.clusters,
            "centres of shape",
            tuple(self.centres.shape),
            f"must be ({self.clusters}, features)",
        )
        require(bool(torch.isfinite(self.centres).all()), "centres", "NaN or infinity", "must all be finite")
        require(self.steps >= 0, "steps", self.steps, "must be at least 0")
        require(self.bound is None or self.bound > 0, "bound", self.bound, "must be positive, or None to estimate it")
        require(0 < self.share <= 1, "share", self.share, "must lie in (0, 1]")

    @property
    def estimates(self) -> bool:
        return self.level is not None and self.bound is None

    def releases(self) -> tuple[str, ...]:
        moves = [f"lloyd {step}/{leaf}" for step in range(1, self.steps + 1) for leaf in ("sums", "counts")]
        return (*(["bound/norms"] if self.estimates else []), *moves)

    def start(self, server: Server) -> Clusters:
        assert self.centres is not None
        known = {"centres": self.centres.float().unsqueeze(0)}
        if self.bound is not None:
            known["bound"] = torch.tensor([self.bound])
        return Clusters(0, known)

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        first = int(self.estimates)
        if state.round < first:
            state = yield from self.find_bound(["centres"], self.share, state, server)
        names = ["centres"] if self.level is None else ["centres", "bound"]
        while state.round < first + self.steps:
            before = state.known["centres"]
            state = yield from self.move(Kind("lloyd", state.round - first + 1), names, state, server)
            if torch.allclose(before, state.known["centres"], rtol=0, atol=STILL * float(before.abs().max())):
                state = state.at(first + self.steps)
        return (yield from self.publish(state, server))
