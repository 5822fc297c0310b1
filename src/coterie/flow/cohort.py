"""A group of clients and their data, computed together. A client on its own machine is a cohort of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Examples, Schedule, Shards
from coterie.errors import InvalidInput
from coterie.flow.batches import Drawn, padded, plan_batches, poisson_batches, public_width, stepwise
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Metrics, Step, Turn
from coterie.learn.models.model import Batch, Model
from coterie.learn.optimisers import Optimiser
from coterie.learn.params import Copies, Layout, Params, put, room_for
from coterie.learn.sgd import GradientHook, Gradients, Local, checked, descend
from coterie.learn.threads import each_in_one_thread
from coterie.privacy.ledger import Ledger
from coterie.rng import Rng
from coterie.wire.codec import Memory as Memory


def evaluation_block(model: Model) -> int:
    """Examples a forward pass: a bound on the memory of activations, which convolutions have many of."""
    return 1024 if model.vectorised else 256


CACHED_NUMBERS = 1 << 20  # parameters and examples of the clients that are trained at a time

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

    def origins(self, sent: Params, membership: Tensor) -> dict[str, Tensor]:
        """(clients, slots | 1, ...): what each was given and set out from, for what is to leave it."""
        chosen = membership.argmax(1)
        return {
            name: self.given[name].expand_as(leaf) if leaf.shape[1] > 1 else self.given[name][chosen].unsqueeze(1)
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

        def look(block: slice) -> None:
            losses[block] = self.trained.slot_losses(models, *self._examples(rows[block]))

        size = evaluation_block(self.trained)
        blocks = [slice(start, start + size) for start in range(0, len(rows), size)]
        each_in_one_thread(look, blocks, self.trained.in_parts)
        return losses

    def first_batches(self, local: Local) -> Shards:
        """The rows of the first batch that each client will train on; none of one without data."""
        parts = []
        for position, client in enumerate(self.ids.tolist()):
            rows = self.round_shards[position]
            batches, _ = plan_batches(len(rows), local, self.rng(client, "batches").numpy())
            parts.append(rows[torch.from_numpy(batches[0])] if batches else rows)
        return Shards.of(parts)

    def _examples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x (*rows.shape, ...) and y; ``index_select`` copies rows twice as fast as indexing does."""
        examples = self.rows
        x, y = (whole.index_select(0, rows.flatten()).unflatten(0, rows.shape) for whole in (examples.x, examples.y))
        return x, y

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

    def copies(self, models: Params, choice: Tensor) -> Copies:
        """(clients, ...): each client's copy of the slot that it chose, (clients,)."""
        return Copies(models, choice)

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
        trained, offsets = room_for(start), self.round_shards.offsets.tolist()

        def train(clients: slice) -> None:
            rows = slice(offsets[clients.start], offsets[clients.stop])
            weights = None if example_weights is None else example_weights[rows]
            own, part = put(start, trained, clients), cohorts[clients.start]
            found = part._train(model, own, local, guard, proximal, weights, label)
            for name, leaf in own.items():
                if found[name] is not leaf:  # it was not trained in place
                    leaf.copy_(found[name])

        parts = self._parts(model, trained, local, guard.plain) if guard.by_client else [slice(0, len(self))]
        cohorts = {clients.start: self._part(clients) for clients in parts}
        try:
            each_in_one_thread(train, parts)
        finally:  # in the order of clients, whichever thread was first; what was spent stays, whatever went wrong
            for part in cohorts.values():
                if part is not self:
                    self.turn.ledger.enter(part.turn.ledger.rows)
                    self.turn.metrics.enter(part.turn.metrics.rows)
        return trained

    def _parts(self, model: Model, start: Params, local: Local, plain: bool) -> list[slice]:
        """The clients that are trained at a time: few enough that what changes in a step stays in a core's cache.

        A private step is many small kernels, which cost more the more often they are called: one part a thread.
        """
        if not model.in_parts:
            return [slice(0, len(self))]
        _, width = local.shape(int(self.round_shards.sizes.max()))
        numbers = Layout.of(start, leading=1).length + width * self.rows.x.shape[1:].numel()
        threads = torch.get_num_threads()
        count = min(len(self), threads * (-(-len(self) * numbers // (CACHED_NUMBERS * threads)) if plain else 1))
        return [slice(*pair) for pair in pairwise(len(self) * number // count for number in range(count + 1))]

    def _part(self, clients: slice) -> Cohort:
        ids = self.ids[clients]
        if len(ids) == len(self):
            return self
        shards = self.shards.between(clients.start, clients.stop)
        turn = replace(self.turn, ledger=Ledger(), metrics=Metrics())  # of its own: threads write at the same time
        return Cohort(ids, turn, self.examples, shards, self.model, None, self.schedules, memory=self.memory[clients])

    def _train(
        self,
        model: Model,
        start: Params,
        local: Local,
        guard: ClientGuard,
        proximal: float,
        example_weights: Tensor | None,
        label: str,
    ) -> dict[str, Tensor]:
        optimiser = local.begin(start, self.turn.round)
        hook, gradients = self._hook(guard, local, label), self._gradients(guard, model, local, label)
        rate = local.rate(self.turn.round)
        plain = optimiser is None and guard.plain and not proximal
        if local.whole and plain and (found := self._repeated(model, start, local, example_weights, rate)):
            return found if guard.answers_anyway else checked(found, rate)
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
            may_diverge=guard.answers_anyway,
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
        return None if batch is None else model.repeated(start, batch, steps, rate)

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
        for step, (index, weights, divisors, active) in enumerate(self.drawn(local, label, shards.offsets.numpy())):
            if example_weights is not None:
                weights = weights * example_weights[index]
            rows = shards.rows[index]
            yield Batch(*self._examples(rows), weights, divisors, active, self._dropout(label, step) if random else ())

    def drawn(self, local: Local, label: str, offsets: np.ndarray) -> Iterator[Drawn]:
        """``padded`` for one step after the other, where the clients' rows begin at these offsets."""
        ids, sizes = self.ids.tolist(), self.round_shards.sizes.tolist()
        if not (local.poisson or local.whole or local.epochs):
            yield from stepwise(sizes, local, (self.rng(client, label).numpy() for client in ids), offsets)
            return
        plan = [
            poisson_batches(size, local, self.turn.secrets(client, label))
            if local.poisson
            else plan_batches(size, local, self.rng(client, label).numpy())
            for client, size in zip(ids, sizes, strict=True)
        ]
        steps = max(len(indices) for indices, _ in plan)
        width = max((max(map(len, indices)) for indices, _ in plan if indices), default=0)
        if local.poisson:  # whole blocks of a width that says nothing about who was drawn
            block = public_width(local.batch_size)
            width = block * max(1, -(-width // block))
        for step in range(steps):
            yield padded(plan, offsets, step, max(width, 1))

    def _dropout(self, label: str, step: int) -> tuple[int, ...]:
        """Each client's seed of its masks. Secret, and of 256 bits: then every example's mask is as good as independent
        of the others', and one that goes leaves theirs as they were, whatever its place in the batch was."""
        return tuple(self.turn.secrets(client, label, "dropout", step).number() for client in self.ids.tolist())


def segment_mean(values: Tensor, shards: Shards) -> Tensor:
    """(clients, ...) means of (rows, ...) over each client's rows; 0 where it has none."""
    sizes = shards.sizes
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    sums = torch.zeros(len(sizes), *values.shape[1:], dtype=torch.float64).index_add_(0, owners, values.double())
    return (sums / sizes.clamp_min(1).view(-1, *[1] * (values.dim() - 1))).to(values.dtype)
