"""The noise of FedDP-KMeans as published (Scott et al. 2025, the public code's record-level runs), and its worth.

Gaussian on outer products and sums, Laplace on weights and counts, each planned for an epsilon of its own. The noise on
outer products is scaled to the clipping bound C. One record moves them by C squared, so that with C = 11 there is an
eleventh of the noise that the stated epsilon needs: 3.13 in all is stated, and what is proven is several times as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import dp_accounting
import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent

from coterie.defences.noisy_sums.plan import (
    NoisySums,
    grid_of,
    grids_of,
    multiplier,
    noised,
    spend,
    told,
    values_of,
)
from coterie.flow.ask import Sums
from coterie.flow.guard import ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.whole import STEP, UNITS
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import Against, Level, Neighbours, RunFacts, Trust, Whom
from coterie.privacy.ledger import Spend
from coterie.privacy.noise import discrete_laplace

OUTER, WEIGHTS, SUMS, COUNTS = 1.0, 1.0, 0.5, 0.5
"""The epsilons of the public runs: step 1, step 2, and the two halves of step 3 and of each step of Lloyd."""


@dataclass(frozen=True)
class PublishedNoise(NoisySums):
    """``noise`` has the Gaussian deviations, ``laplace`` the scales; both where one record moves a sum by at most 1."""

    laplace: Mapping[str, float] = field(default_factory=dict)
    stated: tuple[DpEvent, ...] = ()  # what the public code's own accounting is told

    trust: ClassVar[Trust] = Trust.TRUSTED_AGGREGATOR

    @staticmethod
    def planned(releases: Sequence[str], bound: float, delta: float) -> PublishedNoise:
        """As in the public runs; ``bound`` is their clipping bound."""
        noise, laplace, stated = {}, {}, []
        for name in releases:
            leaf = name.split("/")[1]
            if leaf in ("weights", "counts"):
                laplace[name] = 1 / (WEIGHTS if leaf == "weights" else COUNTS)
                stated.append(LaplaceDpEvent(laplace[name]))
            elif leaf in ("outer", "sums"):  # it releases nothing else, and does not fit what does
                sigma = float(dp_accounting.get_sigma_gaussian(OUTER if leaf == "outer" else SUMS, delta))
                noise[name] = sigma / bound if leaf == "outer" else sigma
                stated.append(GaussianDpEvent(sigma))
        return PublishedNoise(noise, laplace=laplace, stated=tuple(stated))

    def stated_epsilon(self, delta: float) -> float:
        """What the public code states."""
        return epsilon_of(self.stated, delta)

    def fits(self, protocol: AnyProtocol) -> str:
        if getattr(protocol, "level", None) is not Level.RECORD:
            return "its Laplace noise hides a record, which adds to one count alone; a client adds to many"
        missing = set(protocol.releases()) ^ {*self.noise, *self.laplace}
        return f"its noise is for another protocol: {', '.join(sorted(missing))}" if missing else ""

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        return [*super().events(run), *(LaplaceDpEvent(scale) for scale in self.laplace.values())]

    def against(self, delta: float, neighbours: Neighbours) -> Iterator[Against]:
        gaussian = [GaussianDpEvent(multiplier(grid_of(deviation, 1))) for deviation in self.noise.values()]
        events = [*gaussian, *(LaplaceDpEvent(scale) for scale in self.laplace.values())]
        epsilon = epsilon_of(events, delta, neighbours)
        yield from (Against(whom, epsilon) for whom in (Whom.PUBLIC, Whom.PARTICIPANT))
        yield Against(Whom.SERVER, math.inf)

    @property
    def server(self) -> ServerGuard:
        return PublishedServer(self.noise, self.laplace)


@dataclass(frozen=True)
class PublishedServer(ServerGuard):
    noise: Mapping[str, float]
    laplace: Mapping[str, float]

    def release(self, sums: Sums, turn: Turn) -> Sums:
        leaves = [name for name in sums.values if f"{turn.kind}/{name}" not in self.laplace]
        grids, noisy, scales = grids_of(self.noise, turn, leaves), dict(sums.values), {}
        for name, grid in grids.items():
            noisy[name] = values_of(noised(noisy[name], grid, turn.secrets("server", "noise", name)), grid)
        spend(grids, turn)
        for name in set(sums.values) - set(leaves):
            scales[name] = self.laplace[f"{turn.kind}/{name}"]
            turn.ledger.spend(Spend(f"{turn.kind}/{name}", scales[name], laplace=True))
            if scales[name] == 0:
                continue
            steps = (noisy[name] * UNITS).round().long()
            own = turn.secrets("server", "noise", name).upon(np.array([scales[name]]), steps.numpy())
            steps += torch.from_numpy(discrete_laplace(steps.numel(), scales[name] * UNITS, own)).view(steps.shape)
            noisy[name] = steps.double() * STEP
        deviations = {name: math.sqrt(2) * scale for name, scale in scales.items()}
        return replace(sums, values=noisy, noise={**told(grids), **deviations})
