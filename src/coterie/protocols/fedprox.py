"""FedProx (Li et al. 2020): FedAvg whose clients are pulled towards the model that the round started from."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import require
from coterie.protocols.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """The local loss gains ``mu / 2 * ||w - w_round||^2``; mu = 0 is FedAvg."""

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "must be at least 0")

    @property
    def _proximal(self) -> float:
        return self.mu
