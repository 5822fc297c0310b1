"""Noise that every client adds in full to what it sends: nobody is trusted, and the sum has all clients' noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from coterie.defences.noisy_sums.plan import NoisySums, grids_of, noised, spend, told, values_of
from coterie.flow.ask import Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, ServerGuard
from coterie.flow.turn import Turn
from coterie.privacy.guarantee import ONLOOKERS, Against, Neighbours, Trust
from coterie.wire.messages import Contributions


@dataclass(frozen=True)
class LocalNoise(NoisySums):
    """Each message alone has the whole guarantee. This is the model in which paper 002 attacks FedDP-KMeans."""

    trust: ClassVar[Trust] = Trust.LOCAL_NOISE

    def against(self, delta: float, neighbours: Neighbours) -> Iterator[Against]:
        """Whoever sees a message sees all the noise that is on it, and knows none of it."""
        epsilon = self.epsilon(delta, neighbours)
        yield from (Against(whom, epsilon) for whom in ONLOOKERS)

    @property
    def client(self) -> ClientGuard:
        return NoisyClient(self.noise)

    @property
    def server(self) -> ServerGuard:
        return KnowingServer(self.noise)


@dataclass(frozen=True)
class NoisyClient(ClientGuard):
    noise: Mapping[str, float] = field(default_factory=dict)

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        turn = cohort.turn
        grids = grids_of(self.noise, turn, sent.values)
        spend(grids, turn, sent.ids.tolist())
        noisy = dict(sent.values)
        for name, grid in grids.items():
            if grid is not None:
                rows = zip(sent.ids.tolist(), noisy[name], strict=True)
                drawn = [noised(row, grid, turn.secrets(client, "noise", name)) for client, row in rows]
                noisy[name] = values_of(torch.stack(drawn), grid)
        return replace(sent, values=noisy)


@dataclass(frozen=True)
class KnowingServer(ServerGuard):
    """It adds nothing, but knows how noisy the sum of so many noisy messages is."""

    noise: Mapping[str, float] = field(default_factory=dict)

    def release(self, sums: Sums, turn: Turn) -> Sums:
        grids = grids_of(self.noise, turn, sums.values)
        return replace(sums, noise=told(grids, draws=float(sums.counts[0])))
