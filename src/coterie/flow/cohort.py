"""A group of clients and their data, computed together. A client on its own machine is a cohort of one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Examples, Schedule, Shards
from coterie.errors import InvalidInput
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Step, Turn
from coterie.learn.models.model import Batch, Model
from coterie.learn.optimisers import Optimiser
from coterie.learn.params import Owned, Params, map_leaves
from coterie.learn.sgd import GradientHook, Gradients, Local, check_finite, descend
from coterie.rng import Rng, Secrets
from coterie.wire.codec import Memory as Memory


def evaluation_block(model: Model) -> int:
    """Examples a forward pass: a bound on the memory of activations, which convolutions have many of."""
    return 4096 if model.vectorised else 256


FOR_ONE_TURN = "this turn/"
"""What is kept under a name that begins like this is gone when the next request comes: a guard's keys."""


@dataclass
class Cohort:
    """What a client's side of a protocol works with.

    In a federation by rows each client has examples of its own; in one by columns, ``columns`` are each client's part
    of all records, and there are no examples.
    """

    ids: Tensor  # (clients,)
    turn: Turn
    examples: Examples | None = None
    shards: Shards = field(default_factory=Shards.none)  # the cohort's own training rows, in the order of ids
    model: Model | None = None
    sees: Tensor | None = None  # (clients, slots) bool
    schedules: dict[int, Schedule] = field(default_factory=dict)
    columns: tuple[Tensor, ...] = ()  # each (records, the client's own columns)
    memory: list[Memory] = field(default_factory=list)  # one a client: kept from round to round, never sent
    given: Params = field(default_factory=dict)  # what was published, opened: leaves (slots, ...)

    def __post_init__(self) -> None:
        self.memory = self.memory or [{} for _ in self.ids]

    # -- what a client keeps -------------------------------------------------------------------------------------

    def keep(self, name: str, values: Tensor) -> None:
        """One row of (clients, ...) for each."""
        for memory, value in zip(self.memory, values, strict=True):
            memory[name] = value.clone()

    def recall(self, name: str, otherwise: Tensor) -> Tensor:
        """(clients, ...): what each kept, or its row of ``otherwise``."""
        kept = [memory.get(name, row) for memory, row in zip(self.memory, otherwise, strict=True)]
        return torch.stack(kept) if kept else otherwise

    def updates(self, sent: Params, membership: Tensor) -> dict[str, Tensor]:
        """(clients, slots | 1, ...): how far each moved from what it was given, for what is to leave it."""
        chosen = membership.argmax(1)
        return {
            name: leaf - (self.given[name] if leaf.shape[1] > 1 else self.given[name][chosen].unsqueeze(1))
            for name, leaf in sent.items()
        }

    # -- who is here ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> Tensor:
        return self.shards.sizes

    @property
    def rows(self) -> Examples:
        """The examples that the shards point into."""
        if self.examples is None:
            raise InvalidInput("clients=columns hold columns and no examples; use a federation split by rows")
        return self.examples

    @property
    def trained(self) -> Model:
        """The model whose parameters the protocol trains."""
        if self.model is None:
            raise InvalidInput("model=None: this protocol trains one; pass it to the ring")
        return self.model

    def rng(self, client: int, *purpose: str | int) -> Rng:
        return self.turn.draws(client, *purpose)

    def seen(self, models: Params) -> Tensor:
        """(clients, slots) bool."""
        slots = next(iter(models.values())).shape[0]
        return torch.ones(len(self), slots, dtype=torch.bool) if self.sees is None else self.sees

    @cached_property
    def round_shards(self) -> Shards:
        """The rows in use this round: a scheduled client uses a part of its own."""
        if not self.schedules:
            return self.shards
        return Shards.of(
            [
                self.schedules[client].rows(self.turn.round) if client in self.schedules else self.shards[position]
                for position, client in enumerate(self.ids.tolist())
            ]
        )

    # -- looking at data -----------------------------------------------------------------------------------------

    def losses(self, models: Params, sample: int | None = None, shards: Shards | None = None) -> Tensor:
        """(clients, slots): each model's mean loss on each client's data, on a fresh sample, or on these rows of it."""
        if shards is None:
            shards = self.round_shards if sample is None else self._sampled(sample)
        return segment_mean(self.example_losses(models, shards), shards)

    def example_losses(self, models: Params, shards: Shards | None = None) -> Tensor:
        """(rows, slots), rows in the order of the shards."""
        rows = (shards or self.round_shards).rows
        slots = next(iter(models.values())).shape[0]
        losses = torch.empty(len(rows), slots)
        size = evaluation_block(self.trained)
        for start, block in enumerate(rows.split(size)):
            losses[start * size : (start + 1) * size] = self.trained.slot_losses(models, *self._examples(block))
        return losses

    def first_batches(self, local: Local, label: str = "batches") -> Shards:
        """The rows of the first batch that each client will train on; none of one without data."""
        parts = []
        for position, client in enumerate(self.ids.tolist()):
            rows = self.round_shards[position]
            batches, _ = plan_batches(len(rows), local, self.rng(client, label).numpy())
            parts.append(rows[torch.from_numpy(batches[0])] if batches else rows)
        return Shards.of(parts)

    def _examples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x (*rows.shape, ...) and y; ``index_select`` copies rows twice as fast as indexing does."""
        examples = self.rows
        return examples.x.index_select(0, rows.flatten()).unflatten(0, rows.shape), examples.y[rows]

    def _sampled(self, count: int) -> Shards:
        places = [np.empty(0, dtype=np.int64)]  # in the shards' rows: numpy, for a tensor a client would cost more
        offsets = self.round_shards.offsets.tolist()
        for client, (start, end) in zip(self.ids.tolist(), pairwise(offsets), strict=True):
            if end - start > count:
                places.append(start + self.rng(client, "choice").numpy().choice(end - start, count, replace=False))
            else:
                places.append(np.arange(start, end))
        sizes = torch.tensor([len(place) for place in places])
        return Shards(self.round_shards.rows[torch.from_numpy(np.concatenate(places))], sizes.cumsum(0))

    def copies(self, models: Params, choice: Tensor) -> Owned:
        """(clients, ...): each client's copy of the slot that it chose, (clients,)."""
        return Owned(map_leaves(lambda leaf: leaf.index_select(0, choice), models))

    # -- training ------------------------------------------------------------------------------------------------

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
        """The models (clients, ...) after local training from ``start`` (clients, ...).

        ``example_weights`` (rows,) scales each example's loss; ``label`` names the stream of the batches.
        """
        model = self.trained.with_dropout(guard.dropout) if guard.dropout else self.trained
        optimiser = local.begin(start, self.turn.round)
        hook, gradients = self._hook(guard, local, label), self._gradients(guard, model, local, label)
        rate = local.rate(self.turn.round)
        plain = optimiser is None and guard.plain and not proximal
        if local.whole and plain and (found := self._repeated(model, start, local, example_weights, rate)):
            return found
        if optimiser is not None and local.carry:
            self._recall_moments(optimiser, label)
        trained = descend(
            model,
            start,
            self.batches(local, example_weights, label, random=model.random),
            rate,
            clip=guard.example_clip,
            hook=hook,
            proximal=proximal,
            gradients=gradients,
            optimiser=optimiser,
        )
        if optimiser is not None and local.carry:
            self._keep_moments(optimiser, label)
        return trained

    def _repeated(
        self, model: Model, start: Params, local: Local, example_weights: Tensor | None, rate: float
    ) -> dict[str, Tensor] | None:
        """Plain steps on all data, where the model has a shorter way: to rounding the same as step by step."""
        steps = local.epochs or local.steps
        batch = next(self.batches(replace(local, steps=1, epochs=None), example_weights), None)
        found = None if batch is None else model.repeated(start, batch, steps, rate)
        if found is not None:
            check_finite(found, rate)
        return found

    def _recall_moments(self, optimiser: Optimiser, label: str) -> None:
        optimiser.counts = self.recall(f"optimiser/{label}/steps", optimiser.counts)
        for name, leaves in optimiser.moments.items():
            for leaf, zeros in leaves.items():
                leaves[leaf] = self.recall(f"optimiser/{label}/{name}/{leaf}", zeros)

    def _keep_moments(self, optimiser: Optimiser, label: str) -> None:
        self.keep(f"optimiser/{label}/steps", optimiser.counts)
        for name, leaves in optimiser.moments.items():
            for leaf, values in leaves.items():
                self.keep(f"optimiser/{label}/{name}/{leaf}", values)

    def _hook(self, guard: ClientGuard, local: Local, label: str) -> GradientHook | None:
        if guard.plain or type(guard).gradient is ClientGuard.gradient:
            return None

        def hook(grads: dict[str, Tensor], params: Params, index: int, batch: Batch) -> Params:
            return guard.gradient(grads, params, self._step(local, label, index, batch))

        return hook

    def _gradients(self, guard: ClientGuard, model: Model, local: Local, label: str) -> Gradients | None:
        if guard.plain or type(guard).gradients is ClientGuard.gradients:
            return None

        def gradients(params: Params, index: int, batch: Batch) -> dict[str, Tensor]:
            return guard.gradients(model, params, batch, self._step(local, label, index, batch))

        return gradients

    def _step(self, local: Local, label: str, index: int, batch: Batch) -> Step:
        turn = replace(self.turn, kind=replace(self.turn.kind, part=label))
        rates = (batch.divisors.double() / self.round_shards.sizes.clamp_min(1)).clamp_max(1.0)
        width = public_width(local.batch_size) if local.poisson else 0
        return Step(self.ids, index, batch.divisors, rates, batch.active, local.poisson, turn, width)

    def batches(
        self,
        local: Local,
        example_weights: Tensor | None = None,
        label: str = "batches",
        *,
        random: bool = False,
    ) -> Iterator[Batch]:
        """Local batches, padded to one shape; ``plan_batches`` and ``poisson_batches`` say how they are drawn."""
        shards = self.round_shards
        plan = [
            poisson_batches(size, local, self.turn.secrets(client, label))
            if local.poisson
            else plan_batches(size, local, self.rng(client, label).numpy())
            for client, size in zip(self.ids.tolist(), shards.sizes.tolist(), strict=True)
        ]
        steps = max(len(indices) for indices, _ in plan)
        width = max((row.shape[0] for indices, _ in plan for row in indices), default=0)
        if local.poisson:  # whole blocks of a width that says nothing about who was drawn
            block = public_width(local.batch_size)
            width = block * max(1, -(-width // block))
        for step in range(steps):
            index, weights, divisors, active = self._padded(plan, shards, step, max(width, 1))
            if example_weights is not None:
                weights = weights * example_weights[index]
            rows = shards.rows[index]
            yield Batch(*self._examples(rows), weights, divisors, active, self._dropout(label, step) if random else ())

    def _dropout(self, label: str, step: int) -> tuple[int, ...]:
        """Each client's seed of its masks. Secret, and of 256 bits: then every example's mask is as good as independent
        of the others', and one that goes leaves theirs as they were, whatever its place in the batch was."""
        return tuple(self.turn.secrets(client, label, "dropout", step).number() for client in self.ids.tolist())

    @staticmethod
    def _padded(
        plan: list[tuple[list[np.ndarray], float]], shards: Shards, step: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Positions in shards.rows and weights, both (clients, width), the divisors, and who is active."""
        index = np.zeros((len(plan), width), dtype=np.int64)
        weights = np.zeros((len(plan), width), dtype=np.float32)
        divisors = np.ones(len(plan), dtype=np.float32)
        active = np.zeros(len(plan), dtype=bool)
        offsets = shards.offsets.numpy()
        for position, (batches, divisor) in enumerate(plan):
            if step < len(batches):
                batch = batches[step]
                index[position, : len(batch)] = offsets[position] + batch
                divisors[position] = divisor or len(batch)
                weights[position, : len(batch)] = 1 / divisors[position]
                active[position] = True
        return (
            torch.from_numpy(index),
            torch.from_numpy(weights),
            torch.from_numpy(divisors),
            torch.from_numpy(active),
        )


def plan_batches(size: int, local: Local, draws: np.random.Generator) -> tuple[list[np.ndarray], float]:
    """One client's batches as positions in its data, and the number that divides their sums (0: their own size).

    Steps run through shuffled data, shuffling again when it is used up. Epochs end in a smaller batch. Of the whole
    data there is one batch a step, or an epoch.
    """
    if size == 0:
        return [], 0
    if local.whole:
        return [np.arange(size)] * (local.epochs or local.steps), 0
    width = min(local.batch_size, size)
    if local.epochs is not None:
        orders = [draws.permutation(size) for _ in range(local.epochs)]
        return [order[at : at + width] for order in orders for at in range(0, size, width)], 0
    passes = -(-local.steps * width // size)
    order = np.concatenate([draws.permutation(size) for _ in range(passes)])
    return [order[step * width : (step + 1) * width] for step in range(local.steps)], 0


def public_width(batch_size: int) -> int:
    """The width of Poisson batches, or of the blocks that a larger one takes: three deviations above the expected size.

    Products of another width are rounded differently in every row, so it must not depend on who was drawn.
    """
    return max(16, 8 * math.ceil((batch_size + 3 * math.sqrt(batch_size)) / 8))


def poisson_batches(size: int, local: Local, secrets: Secrets) -> tuple[list[np.ndarray], float]:
    """Batches that every example enters by its own coin, and the number that divides their sums: the expected size.

    The coins are secret. Amplification by sampling is what is gained from nobody's knowing who was in a batch.
    """
    if size == 0:
        return [], 0
    rate = min(1.0, local.batch_size / size)
    return [np.flatnonzero(secrets.child(step).coins(rate, size)) for step in range(local.steps)], rate * size


def segment_mean(values: Tensor, shards: Shards) -> Tensor:
    """(clients, ...) means of (rows, ...) over each client's rows; 0 where it has none."""
    sizes = shards.sizes
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    sums = torch.zeros(len(sizes), *values.shape[1:], dtype=torch.float64).index_add_(0, owners, values.double())
    return (sums / sizes.clamp_min(1).view(-1, *[1] * (values.dim() - 1))).to(values.dtype)
