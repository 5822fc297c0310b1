"""Noise that the server adds to the sums: a trusted aggregator, as FedDP-KMeans has it (paper 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from coterie.defences.noisy_sums.plan import NoisySums, deviations, spend
from coterie.flow.ask import Sums
from coterie.flow.guard import ServerGuard
from coterie.flow.turn import Turn
from coterie.privacy.guarantee import Trust


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

    def release(self, sums: Sums, turn: Turn) -> Sums:
        planned = deviations(self.noise, turn, sums.values)
        noisy = dict(sums.values)
        for name, deviation in planned.items():
            if deviation > 0:
                draws = turn.secrets("server", "noise", name).torch()
                noisy[name] = noisy[name] + deviation * torch.randn(
                    noisy[name].shape, generator=draws, dtype=torch.float64
                )
        spend(planned, turn)
        return replace(sums, values=noisy, noise=planned)
