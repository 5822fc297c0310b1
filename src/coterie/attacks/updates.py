"""What an adversary makes of published models: aggregate updates, their features, and imitations of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from coterie.data.federation import Examples
from coterie.errors import require
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params, map_leaves, pick, subtract
from coterie.learn.sgd import Gradients, Local, descend
from coterie.rng import Rng
from coterie.wire.view import View


@dataclass(frozen=True)
class Observed:
    """How one cluster's model moved in one round."""

    round: int
    slot: int
    start: dict[str, Tensor]  # the model at the start of the round
    update: dict[str, Tensor]
    size: int | None = None  # how many clients stand behind it, where the server says so


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
        moved, sizes = subtract(after.values, before.values), after.published.sizes
        for position, slot in enumerate(before.slots.tolist()):
            update = pick(moved, position)
            if any(bool(leaf.any()) for leaf in update.values()):
                size = None if sizes is None else int(sizes[position])
                yield Observed(round, slot, pick(before.values, position), update, size)


def magnitudes(updates: Params, most: int = 5000) -> Tensor:
    """(updates, features) of leaves (updates, ...), as Melis et al. 2019 make them.

    Biases are dropped, absolute values taken, and convolutions reduced to their maximum over the spatial axes; of a
    layer that still has more than ``most`` entries, only the maximum over its output units is kept. Each row is scaled
    to norm 1. Where we differ: a large convolution is treated so too, where their code leaves it out, and of a large
    embedding each word's maximum is kept (in general the longer axis stays). Standardising each feature, as they do,
    changes nothing for trees and is left out.
    """

    def largest(leaf: Tensor) -> Tensor:
        _, rows, width = leaf.shape
        if rows * width <= most:
            return leaf
        return leaf.amax(1 if width >= rows else 2)

    return _features(map_leaves(torch.abs, updates), torch.amax, largest)


def directions(updates: Params, most: int = 4096) -> Tensor:
    """The same with signs: means in the place of maxima, over blocks of a large leaf's last axis.

    (For the dense layer after a convolution these are spatial positions.) Of dense networks it finds more than the
    published features do, of convolutional ones less: signs follow the labels, too.
    """
    return _features(updates, torch.mean, lambda leaf: _blocks(leaf, most).mean(3))


Features = Callable[[Params, int], Tensor]


def _features(
    updates: Params, spatial: Callable[[Tensor, tuple[int, ...]], Tensor], reduced: Callable[[Tensor], Tensor]
) -> Tensor:
    parts = []
    for leaf in updates.values():
        if leaf.dim() <= 2:  # (updates, outputs): a bias
            continue
        flat = spatial(leaf, tuple(range(3, leaf.dim()))) if leaf.dim() > 3 else leaf
        parts.append(reduced(flat).flatten(1))
    require(len(parts) > 0, "leaves", list(updates), "are all biases; property inference needs a weight")
    return normalize(torch.cat(parts, 1), dim=1)


def _blocks(leaf: Tensor, most: int) -> Tensor:
    """(updates, rows, blocks, block): the last axis in blocks, so that no more than ``most`` are left an update."""
    updates, rows, width = leaf.shape
    block = math.ceil(rows * width / most)
    block = next((size for size in range(block, width) if width % size == 0), width)
    return leaf.reshape(updates, rows, -1, block)


def cut(rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Tensor:
    """Rows (clients, steps, width) of which each batch has so many: the others become negative, which are none."""
    return torch.from_numpy(np.where(np.arange(rows.shape[2]) < sizes[..., None], rows, -1))


class GuardOf(Protocol):
    """A client's guard, as whoever takes part can run it: from the adversary's own randomness."""

    def gradients(self, model: Model, rng: Rng) -> Gradients | None:
        """Inside a local step."""

    def sent(self, start: Params, trained: Params, round: int, rng: Rng) -> Params:
        """What leaves the clients (clients, ...)."""


@dataclass(frozen=True)
class Imitation:
    """How the adversary believes that clients train: as it was told to, under the defence that is in use.

    ``guard`` is the client's own (``flow.imitated``), with its clipping, penalty and noise: everybody who takes
    part has it, and an adversary that left it out would know less than anybody can.
    """

    model: Model
    local: Local
    guard: GuardOf | None = None
    proximal: float = 0.0  # FedProx's mu

    def batch_sizes(self, records: int, shape: tuple[int, int], draws: np.random.Generator) -> NDArray[np.int64]:
        """How many rows are in each of these batches (clients, steps) of clients with so many records.

        Where every record enters by its own coin, so it does here.
        """
        _, width = self.local.shape(records)
        return draws.binomial(records, width / records, shape) if self.local.poisson else np.full(shape, width)

    def train(
        self, start: Params, examples: Examples, rows: Tensor, rng: Rng, round: int = 0, divisor: int | None = None
    ) -> dict[str, Tensor]:
        """The updates (clients, ...) of imagined clients that start alike, from ``rows`` (clients, steps, batch).

        A negative row is none. ``divisor`` is what sums over a batch are divided by, where that is not its width.
        """
        clients = len(rows)
        stacked = map_leaves(lambda leaf: leaf.expand(clients, *leaf.shape), start)
        trained = descend(
            self.model,
            stacked,
            self._batches(examples, rows, rng.child("dropout"), divisor or rows.shape[2]),
            self.local.rate(round),
            proximal=self.proximal,
            gradients=None if self.guard is None else self.guard.gradients(self.model, rng.child("guard")),
            optimiser=self.local.begin(stacked, round),
        )
        if self.guard is None:
            return subtract(trained, stacked)
        return subtract(self.guard.sent(start, trained, round, rng.child("upload")), stacked)

    def _batches(self, examples: Examples, rows: Tensor, rng: Rng, divisor: int) -> Iterator[Batch]:
        clients = len(rows)
        for step, here in enumerate(rows.unbind(1)):
            seeds = [rng.child(client, step).seed() for client in range(clients)] if self.model.random else ()
            yield Batch(
                examples.x[here.clamp_min(0)],
                examples.y[here.clamp_min(0)],
                (here >= 0).float() / divisor,
                torch.full((clients,), float(divisor)),
                torch.ones(clients, dtype=torch.bool),
                seeds,
            )
