"""DP-SGD on the client (Abadi et al. 2016), as paper 000 applies it in Section 5.2.

Each local step clips every example's gradient, sums them, adds Gaussian noise and divides by the expected batch size:
``(sum_i g_i min(1, C / |g_i|) + N(0, sigma^2 C^2 I)) / B``. Clipped gradients are rows of whole numbers, their sum is
exact (``Model.whole_gradients``), and the noise is discrete, so that what is proven holds for the bits. The paper
prints the divisor as ``|b_i|_2``; the batch's size is meant. Its epsilons (9.23 and 33.13) come without sampling rate,
rounds and delta; ours are what the accountant says about what was run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from dp_accounting import DpEvent
from torch import Tensor

from coterie.errors import require
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Step
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Layout, Params
from coterie.privacy.accounting import dpsgd_events, epsilon_of, guarantee_of
from coterie.privacy.grid import NoiseGrid
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, RunFacts, Trust
from coterie.privacy.ledger import Spend


@dataclass(frozen=True)
class NoisyGradients(ClientGuard):
    clip: float
    noise_multiplier: float

    @property
    def example_clip(self) -> float | None:
        return None if math.isinf(self.clip) else self.clip

    @property
    def gradient_noise(self) -> float:
        return self.noise_multiplier * self.clip if self.noise_multiplier > 0 else 0.0

    @property
    def plain(self) -> bool:
        return self.example_clip is None and self.noise_multiplier == 0

    @property
    def by_client(self) -> bool:
        return True

    def gradients(self, model: Model, params: Params, batch: Batch, step: Step) -> dict[str, Tensor]:
        if self.noise_multiplier == 0:
            if math.isfinite(self.clip):  # clipped and not noised: that costs infinity
                self._spend(step, 0.0)
            return super().gradients(model, params, batch, step)
        width = block_width(step.width or batch.x.shape[1])
        layout = Layout.of(params, leading=1)
        grid = grid_of(self.noise_multiplier, *model.units(width, layout.length))
        sums = model.whole_gradients(params, batch, self.clip, grid.units, width)
        secrets = [step.turn.secrets(client, "dp-sgd", step.index) for client in step.ids.tolist()]
        steps = [sums.worth / divisor for divisor in step.divisors.tolist()]
        largest = batch.x.shape[1] * grid.units
        released = grid.release(sums.totals, sums.origins, steps, secrets, largest, layout.length)
        self._spend(step, self.noise_multiplier)
        return layout.unflatten(torch.from_numpy(released))

    def _spend(self, step: Step, multiplier: float) -> None:
        """In batches of a fixed size a record's place is taken by another: not sampled, and twice as much changes."""
        for client, rate, active in zip(step.ids.tolist(), step.rates.tolist(), step.active.tolist(), strict=True):
            if active:
                paid = (multiplier, rate) if step.sampled else (multiplier / 2, 1.0)
                step.turn.ledger.spend(Spend("dp-sgd", *paid), (client,))


@lru_cache(maxsize=64)
def grid_of(noise_multiplier: float, least: int, most: int) -> NoiseGrid:
    """Its noise is at least this, and hardly more; so this is what the accountant is told."""
    return NoiseGrid.planned(noise_multiplier, most, least)


MOST_WIDTH = 4096
"""Of a block of examples whose gradients are added up at once."""


def block_width(width: int) -> int:
    """Blocks of one width, as few as there may be: in a narrower one the same rows would be rounded otherwise."""
    blocks = -(-max(width, 1) // MOST_WIDTH)
    return -(-max(width, 1) // blocks)


def require_clipping(clip: float, noise_multiplier: float) -> None:
    require(clip > 0, "clip", clip, "must be positive; to switch clipping off, pass clip=math.inf")
    require(noise_multiplier >= 0, "noise_multiplier", noise_multiplier, "must not be negative")
    bounded = noise_multiplier == 0 or math.isfinite(clip)
    require(bounded, "clip", clip, "must be finite where noise is added: the noise is scaled to it")


@dataclass(frozen=True)
class DpSgd(Defence):
    """``noise_multiplier`` is the paper's sigma: the noise's deviation over the clipping norm.

    ``clip=math.inf, noise_multiplier=0`` is neutral. What it hides is one record within its client, from everybody,
    since the client adds the noise itself; how many records a client has is public. A guarantee needs
    ``Local(poisson=True)``: the accountant's amplification by sampling holds for batches that every record enters by
    its own coin, not for shuffled ones.
    """

    clip: float = 1.0
    noise_multiplier: float = 0.5

    def __post_init__(self) -> None:
        require_clipping(self.clip, self.noise_multiplier)

    @property
    def client(self) -> ClientGuard:
        return NoisyGradients(self.clip, self.noise_multiplier)

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.trains else "clients take no gradients that could be clipped"

    def ripple(self, run: RunFacts) -> float:
        """How far, in the logarithm, the probabilities of a run are from those that its events describe, at most."""
        return NoiseGrid.largest_ripple(run.local.steps * run.trainings)

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        """Those of the record that this run exposed most."""
        candidates = [
            [
                event
                for pool in exposure
                for event in dpsgd_events(
                    min(1.0, run.local.batch_size / pool.size), self.noise_multiplier, run.local.steps * pool.trainings
                )
            ]
            for exposure in run.exposures
        ]
        if len(candidates) <= 1:
            return candidates[0] if candidates else []
        return max(candidates, key=lambda events: epsilon_of(events, run.delta))

    def guarantee(self, run: RunFacts) -> Guarantee:
        if not run.local.poisson:
            why = (
                "batches are shuffled, and the accountant holds for Poisson sampling; set poisson = true in the "
                "trainer's local, Local(poisson=True) in Python"
            )
            return Guarantee.none(why, Level.RECORD, Trust.LOCAL_NOISE)
        found = guarantee_of(
            self.events(run),
            run.delta,
            Level.RECORD,
            Trust.LOCAL_NOISE,
            self.clip,
            Neighbours.ZERO_OUT,  # how many records a client has is public: it decides rates and weights
            self.ripple(run),
        ).against_onlookers()
        if len(run.exposures) > 1:  # the worst at this delta need not be the worst at another: no curve is claimed
            found = replace(found, events=())
        if run.reveals and found.proven:
            why = (
                f"the gradients are ({found.epsilon:.4g}, {run.delta:.0e})-DP, but a client also reveals {run.reveals}"
            )
            return Guarantee.none(why, Level.RECORD, Trust.LOCAL_NOISE, stated=found.epsilon)
        return found
