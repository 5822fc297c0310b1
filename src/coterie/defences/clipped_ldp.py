"""Layer-wise noise on the client with a proof: paper 004's defence as far as local differential privacy allows it.

Each client clips its whole update, adds discrete Gaussian noise from secrets, and sends the sum: whatever it holds,
what leaves it looks almost the same. What it keeps of the paper is the decay of the budget, which is known before the
run, and noise that is stronger on some layers: leaves are scaled by public constants before they are clipped and scaled
back afterwards, which costs nothing. What it cannot keep is noise whose amount depends on accuracy and similarity:
these are looked up in the data, and whoever sees how noisy an upload is would learn of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent

from coterie.defences.adaptive_ldp import UPLOADS, Budget, Layers, strengths
from coterie.defences.dpsgd import require_clipping
from coterie.errors import require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.params import Layout, flatten, pick
from coterie.learn.whole import SINGLE_UNITS, step_of, whole_rows
from coterie.privacy.accounting import guarantee_of
from coterie.privacy.grid import NoiseGrid, least_units
from coterie.privacy.guarantee import AS_MANY, Guarantee, Level, Neighbours, RunFacts, Trust
from coterie.privacy.ledger import Spend
from coterie.wire.messages import Contributions

LONGEST = 1 << 26  # entries of an update: the grid must not depend on the model, or the forecast would


@lru_cache(maxsize=256)
def grid_of(multiplier: float) -> NoiseGrid:
    return NoiseGrid.planned(multiplier, SINGLE_UNITS, least_units(LONGEST))


@dataclass(frozen=True)
class ClippedNoise(ClientGuard):
    how: ClippedLdp

    @property
    def reveals(self) -> str:
        return ""

    @property
    def noises_uploads(self) -> bool:
        return True

    @property
    def answers_anyway(self) -> bool:
        return not self.how.is_neutral

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        how, turn = self.how, cohort.turn
        if turn.kind.name not in UPLOADS or how.is_neutral:
            return sent
        starts = flatten(cohort.origins(sent.values, sent.membership)).double()
        parts = strengths(pick(cohort.given, 0), how.layers, how.lighter)
        layout = Layout.of(sent.values, leading=1)
        scales = torch.cat([torch.full((layout.shapes[name].numel(),), 1 / parts[name]) for name in sent.values])
        rows = (flatten(sent.values).double() - starts) * scales
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)  # who diverged sends noise alone
        multiplier = how.multiplier_at(turn.round)
        if multiplier:
            grid = grid_of(multiplier)
            whole = whole_rows(rows, how.clip, grid.units).numpy()
            step = step_of(how.clip, grid.units, layout.length, torch.float64)
            drawn = [
                grid.values(grid.noised(row, turn.secrets(client, "clipped ldp")), step)
                for client, row in zip(sent.ids.tolist(), whole, strict=True)
            ]
            moved, spent = torch.from_numpy(np.stack(drawn)), grid.multiplier
        else:
            norms = rows.norm(dim=1, keepdim=True)
            moved, spent = rows * (how.clip / norms).clamp_max(1.0), 0.0
        turn.ledger.spend(Spend("clipped ldp", spent), sent.ids.tolist())
        left = layout.unflatten(starts + moved / scales)  # of what is public and what is noised, and of nothing else
        values = {name: left[name].to(leaf.dtype) for name, leaf in sent.values.items()}
        return replace(sent, values=values, weights=torch.ones(len(sent)))


@dataclass(frozen=True)
class ClippedLdp(Defence):
    """``noise_multiplier`` is the noise's deviation over ``clip`` in the first round; it grows as the budget decays.

    ``clip=math.inf, noise_multiplier=0`` is neutral. Every client counts the same, so that no weight tells how much it
    holds; trainers have that on their public roster all the same.
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0
    budget: Budget = field(default_factory=lambda: Budget(1.0, 1.0))
    layers: Layers = Layers.DEEP
    lighter: float = 1.0

    def __post_init__(self) -> None:
        require_clipping(self.clip, self.noise_multiplier)
        require(0 < self.lighter <= 1, "lighter", self.lighter, "must lie in (0, 1]")

    @property
    def is_neutral(self) -> bool:
        return math.isinf(self.clip)

    def multiplier_at(self, round: int) -> float:
        return self.noise_multiplier * self.budget.start / self.budget.at(round)

    @property
    def client(self) -> ClientGuard:
        return ClippedNoise(self)

    def fits(self, protocol: AnyProtocol) -> str:
        if not protocol.trains or getattr(protocol, "average_gradients", False):
            return "clients send no models whose updates could be clipped"
        reveals = getattr(protocol, "reveals", "")
        return f"beside its update a client reveals {reveals}, on which this puts no noise" if reveals else ""

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        """Of a client that is asked in every round, and placed with the least noise there is."""
        asked = [*range(min(run.rounds, run.trainings)), *[0] * max(0, run.trainings - run.rounds)]
        return [GaussianDpEvent(self._told(round)) for round in asked]

    def _told(self, round: int) -> float:
        multiplier = self.multiplier_at(round)
        return grid_of(multiplier).multiplier if multiplier else 0.0

    def guarantee(self, run: RunFacts) -> Guarantee:
        """Of all records that a client holds, replaced by as many others, against everybody who sees what it sends."""
        events = self.events(run)
        ripple, trust = NoiseGrid.largest_ripple(len(events)), Trust.LOCAL_NOISE
        found = guarantee_of(events, run.delta, Level.CLIENT, trust, self.clip, Neighbours.REPLACE, ripple)
        return replace(found.against_onlookers(), leaves=(AS_MANY,)).beside(run.reveals)
