"""What an adversary makes of published models: aggregate updates, their features, and imitations of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.data.federation import Examples
from coterie.errors import require
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params, map_leaves, pick, subtract
from coterie.learn.sgd import GradientHook, Local, descend
from coterie.rng import Rng
from coterie.wire.view import View


@dataclass(frozen=True)
class Observed:
    """How one cluster's model moved in one round."""

    round: int
    slot: int
    start: dict[str, Tensor]  # the model at the start of the round
    update: dict[str, Tensor]


def aggregates(view: View, warmup: int = 0) -> Iterator[Observed]:
    """The aggregate update of every cluster that the adversary saw before and after a round.

    A cluster that did not move had no members, and rounds in which clusters came or went are left out: slots before
    and after are not the same clusters there.
    """
    rounds = [round for round in view.rounds() if round >= warmup]
    for round, following in pairwise(rounds):
        if following != round + 1:
            continue
        before, after = view.received(round), view.received(following)
        if before.slots.tolist() != after.slots.tolist():
            continue
        moved = subtract(after.values, before.values)
        for position, slot in enumerate(before.slots.tolist()):
            update = pick(moved, position)
            if any(bool(leaf.any()) for leaf in update.values()):
                yield Observed(round, slot, pick(before.values, position), update)


def magnitudes(updates: Params, most: int = 4096) -> Tensor:
    """(updates, features) of leaves (updates, ...), as Melis et al. 2019 make them.

    Biases are dropped, absolute values taken, and convolutions reduced to their maximum over the spatial axes; each
    row is scaled to norm 1. Where we differ: a leaf that still has more than ``most`` entries an update is reduced to
    the maxima of blocks of its last axis (for the dense layer after a convolution, these are again spatial positions).
    Standardising each feature, as they do, changes nothing for trees and is left out.
    """
    return _reduced(map_leaves(torch.abs, updates), most, torch.amax)


def directions(updates: Params, most: int = 4096) -> Tensor:
    """The same with signs: means in the place of maxima. It finds more than the published features do."""
    return _reduced(updates, most, torch.mean)


Features = Callable[[Params, int], Tensor]


def _reduced(updates: Params, most: int, reduce: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
    parts = []
    for leaf in updates.values():
        if leaf.dim() <= 2:  # (updates, outputs): a bias
            continue
        flat = reduce(leaf, tuple(range(3, leaf.dim()))) if leaf.dim() > 3 else leaf
        parts.append(reduce(_blocks(flat, most), (3,)).flatten(1))
    require(len(parts) > 0, "leaves", list(updates), "are all biases; property inference needs a weight")
    return normalize(torch.cat(parts, 1), dim=1)


def _blocks(leaf: Tensor, most: int) -> Tensor:
    """(updates, rows, blocks, block): the last axis in blocks, so that no more than ``most`` are left an update."""
    updates, rows, width = leaf.shape
    block = math.ceil(rows * width / most)
    block = next((size for size in range(block, width) if width % size == 0), width)
    return leaf.reshape(updates, rows, -1, block)


@dataclass(frozen=True)
class Imitation:
    """How the adversary believes that clients train: as it was told to, with the defences that are public.

    ``clip`` and ``noise_multiplier`` are DP-SGD's; an adversary that left them out would know less than anybody can.
    """

    model: Model
    local: Local
    clip: float | None = None
    noise_multiplier: float = 0.0

    def train(self, start: Params, examples: Examples, rows: Tensor, rng: Rng) -> dict[str, Tensor]:
        """The updates (clients, ...) of imagined clients that start alike, from ``rows`` (clients, steps, batch)."""
        clients = len(rows)
        stacked = map_leaves(lambda leaf: leaf.expand(clients, *leaf.shape), start)
        trained = descend(
            self.model,
            stacked,
            self._batches(examples, rows, rng.child("dropout")),
            self.local.lr,
            clip=self.clip,
            hook=self._noise(rng.child("noise").torch()) if self.noise_multiplier else None,
        )
        return subtract(trained, stacked)

    def _batches(self, examples: Examples, rows: Tensor, rng: Rng) -> Iterator[Batch]:
        clients, _, size = rows.shape
        for step, here in enumerate(rows.unbind(1)):
            seeds = [rng.child(client, step).seed() for client in range(clients)] if self.model.random else ()
            yield Batch(
                examples.x[here],
                examples.y[here],
                torch.full((clients, size), 1 / size),
                torch.full((clients,), float(size)),
                torch.ones(clients, dtype=torch.bool),
                seeds,
            )

    def _noise(self, generator: torch.Generator) -> GradientHook:
        clip = self.clip
        require(clip is not None, "clip", clip, "must be given where noise is imitated: it scales the noise")
        assert clip is not None

        def add(grads: dict[str, Tensor], params: Params, index: int, batch: Batch) -> Params:
            deviations = clip * self.noise_multiplier / batch.divisors
            return {
                name: grad + deviations.view(-1, *[1] * (grad.dim() - 1)) * torch.randn(grad.shape, generator=generator)
                for name, grad in grads.items()
            }

        return add
