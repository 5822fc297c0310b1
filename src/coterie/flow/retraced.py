"""Clients of several federations with a dense network, by the products of each client's examples with each other.

Plain steps move the first layer by sums of the client's own examples, so the products of these, which stay the same
from round to round, tell how its outputs move (``Dense.retraced``). They begin with the outputs that the choice of a
cluster has looked at already. With d features, a client of n records that takes s steps on b of them multiplies
2 n d + s b n times for an output, in place of 2 s b d.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Examples, Shards
from coterie.flow.guard import ClientGuard
from coterie.flow.joint import JointCohort
from coterie.flow.ring import AnyRing
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.own_examples import OwnExamples
from coterie.learn.params import Copies, Params, put, room_for
from coterie.learn.sgd import Local, checked


def retraces(ring: AnyRing) -> bool:
    """Whether that is the shorter way in this federation."""
    local, guard, rows = getattr(ring.protocol, "local", None), ring.defence.client, int(ring.federation.sizes.max())
    if not isinstance(local, Local) or not isinstance(ring.model, Dense) or rows == 0:
        return False
    plain = local.plain and guard.plain and not guard.dropout
    return plain and ring.model.retraces(rows, *local.shape(rows))


def products_bytes(ring: AnyRing) -> int:
    """Memory for a federation's examples and their products: every client has room for as many as the largest."""
    sizes, features = ring.federation.sizes, ring.panel.examples.x[0].numel()
    return 4 * (len(sizes) * int(sizes.max()) ** 2 + int(sizes.sum()) * features)


class Kept:
    """A group's examples as they were when it was last asked: in most rounds they are the same."""

    def __init__(self) -> None:
        self._shards, self._own = Shards.none(), OwnExamples.of(torch.zeros(0, 0), torch.zeros(0), [0])

    def own(self, examples: Examples, shards: Shards) -> OwnExamples:
        before = self._shards
        if not (torch.equal(before.offsets, shards.offsets) and torch.equal(before.rows, shards.rows)):
            x, y = examples.x[shards.rows].flatten(1), examples.y[shards.rows]
            self._shards, self._own = shards, OwnExamples.of(x, y, shards.sizes.tolist())
        return self._own


@dataclass
class RetracedCohort(JointCohort):
    kept: Kept = field(default_factory=Kept)
    _looked: tuple[Params, list[Tensor]] = field(default_factory=lambda: ({}, []))

    @cached_property
    def own(self) -> OwnExamples:
        return self.kept.own(self.rows, self.round_shards)

    @property
    def dense(self) -> Dense:
        assert isinstance(self.trained, Dense)
        return self.trained

    def example_losses(self, models: Params, shards: Shards | None = None) -> Tensor:
        """What the first layers gave for it is kept: training begins with that."""
        if shards is not None and shards is not self.round_shards:
            return super().example_losses(models, shards)
        rows = [int(part.round_shards.sizes.sum()) for part in self.parts]
        x, y = (whole.split(rows) for whole in (self.own.x, self.own.y))
        each = self.own_models(models)
        outputs = [self.dense.first_outputs(own, rows) for own, rows in zip(each, x, strict=True)]
        self._looked = models, outputs
        losses = [self.dense.losses_onward(*given) for given in zip(each, outputs, y, strict=True)]
        return torch.cat([found.T for found in losses])

    def train(
        self,
        start: Params,
        local: Local,
        guard: ClientGuard,
        *,
        proximal: float = 0.0,
        example_weights: Tensor | None = None,
        label: str = "batches",
    ) -> dict[str, Tensor]:
        if proximal or example_weights is not None or not self.own.finite:
            return super().train(start, local, guard, proximal=proximal, example_weights=example_weights, label=label)
        outputs = self._first_outputs(start)
        trained, rate = room_for(start), local.rate(self.turn.round)
        put(start, trained, slice(0, len(self)))
        drawn = self.drawn(local, label, np.zeros(len(self), dtype=np.int64))
        batches = (Batch(at, at, weights, divisors, active) for at, weights, divisors, active in drawn)
        self.dense.retraced(trained, outputs, self.own, batches, rate)
        return trained if guard.answers_anyway else checked(trained, rate)

    def _first_outputs(self, start: Params) -> Tensor:
        """(rows, width): of each client's examples under the model that it starts from."""
        models, looked = self._looked
        if isinstance(start, Copies) and start.models is models:
            count = self._slots(models)
            slots = start.choice.remainder(count).repeat_interleave(self.round_shards.sizes)
            chosen = zip(slots.split([len(each) for each in looked]), looked, strict=True)
            places = ((count * torch.arange(len(slot)) + slot, each) for slot, each in chosen)
            return torch.cat([each.flatten(0, 1).index_select(0, place) for place, each in places])
        pairs = zip(self.own.clients, start["0.weight"], start["0.bias"], strict=True)
        return torch.cat([torch.addmm(bias, x, weight.T) for x, weight, bias in pairs])
