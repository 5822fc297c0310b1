"""Noise that the server adds to the sums: a trusted aggregator, as FedDP-KMeans has it (paper 002)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from coterie.defences.noisy_sums.plan import NoisySums, deviations
from coterie.flow.guard import ServerGuard, Sums, Turn
from coterie.privacy.guarantee import Trust
from coterie.wire.messages import Contributions


@dataclass(frozen=True)
class CentralNoise(NoisySums):
    """Whoever sees what the server publishes is kept from knowing. The server itself sees every client's exact sums."""

    trust: ClassVar[Trust] = Trust.TRUSTED_AGGREGATOR

    @property
    def server(self) -> ServerGuard:
        return AddingServer(self.noise)


@dataclass(frozen=True)
class AddingServer(ServerGuard):
    noise: Mapping[str, float] = field(default_factory=dict)

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        exact = super().aggregate(replies, turn)
        planned = deviations(self.noise, turn, exact.values)
        noisy = dict(exact.values)
        for name, deviation in planned.items():
            if deviation > 0:
                draws = turn.noise("server", "noise", name).torch()
                noisy[name] = noisy[name] + deviation * torch.randn(
                    noisy[name].shape, generator=draws, dtype=torch.float64
                )
        return replace(exact, values=noisy, noise=planned)
