"""Federated Lloyd: clients send the sum and the count of their points in each cluster (paper 002, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.protocol import Running, Server
from coterie.protocols.clusterings.base import Clusters
from coterie.protocols.clusterings.steps import Stepping


@dataclass(frozen=True, eq=False)
class FederatedLloyd(Stepping):
    """From public ``centres`` (clusters, features), at most ``steps`` steps, until nothing moves.

    With a ``level``, what a unit adds is bounded (see ``Stepping``). FedDP-Lloyds is this with a noisy sum. Where noise
    hides how long the vectors are, half the distance between neighbouring centres stands in for the bound.

    The sums are about the centres, not about the origin: shorter vectors need less noise, and data far from the origin
    lose no digits. A cluster that nobody has points in keeps its centre.
    """

    centres: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.centres is not None, "centres", None, "must be given: cluster some public data for them")
        assert self.centres is not None
        require(
            self.centres.dim() == 2 and len(self.centres) == self.clusters,
            "centres of shape",
            tuple(self.centres.shape),
            f"must be ({self.clusters}, features)",
        )
        require(bool(torch.isfinite(self.centres).all()), "centres", "NaN or infinity", "must all be finite")

    @property
    def features(self) -> int:
        assert self.centres is not None
        return self.centres.shape[1]

    def releases(self) -> tuple[str, ...]:
        return (*(["bound/norms"] if self.estimates else []), *self.moved(self.moves))

    def start(self, server: Server) -> Clusters:
        assert self.centres is not None
        return Clusters(0, {"centres": self.centres.float().unsqueeze(0), **self.bounds()})

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        if self.estimates and state.round == 0:
            state = yield from self.find_bound("bound", "lloyd 1", self._half_way(), state, server)
        state = yield from self.descend(int(self.estimates), state, server)
        return (yield from self.publish(state, server))

    def _half_way(self) -> float:
        """Half the median distance of a centre to the nearest other one; 1 if there is no other."""
        assert self.centres is not None
        gaps = torch.cdist(self.centres.float(), self.centres.float()).fill_diagonal_(torch.inf).min(1).values
        half = float(gaps.median()) / 2
        return half if 0 < half < torch.inf else 1.0
