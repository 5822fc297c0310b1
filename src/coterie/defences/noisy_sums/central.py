"""Noise that the server adds to the sums: a trusted aggregator, as FedDP-KMeans has it (paper 002)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from coterie.defences.noisy_sums.plan import NoisySums, grids_of, noised, spend, told, values_of
from coterie.flow.ask import Sums
from coterie.flow.guard import ServerGuard
from coterie.flow.turn import Turn
from coterie.privacy.guarantee import Against, Neighbours, Trust, Whom


@dataclass(frozen=True)
class CentralNoise(NoisySums):
    """Whoever sees what the server publishes is kept from knowing. The server itself sees every client's exact sums."""

    trust: ClassVar[Trust] = Trust.TRUSTED_AGGREGATOR

    def against(self, delta: float, neighbours: Neighbours) -> Iterator[Against]:
        epsilon = self.epsilon(delta, neighbours)
        yield from (Against(whom, epsilon) for whom in (Whom.PUBLIC, Whom.PARTICIPANT))
        yield Against(Whom.SERVER, math.inf)

    @property
    def server(self) -> ServerGuard:
        return AddingServer(self.noise)


@dataclass(frozen=True)
class AddingServer(ServerGuard):
    noise: Mapping[str, float] = field(default_factory=dict)

    def release(self, sums: Sums, turn: Turn) -> Sums:
        grids = grids_of(self.noise, turn, sums.values)
        noisy = dict(sums.values)
        for name, grid in grids.items():
            if grid is not None:
                noisy[name] = values_of(noised(noisy[name], grid, turn.secrets("server", "noise", name)), grid)
        spend(grids, turn)
        return replace(sums, values=noisy, noise=told(grids))
