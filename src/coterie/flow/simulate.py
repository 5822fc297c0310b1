"""All clients on this machine: chunk by chunk, vectorised where that pays, else in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Turn
from coterie.flow.protocol import Population, Protocol
from coterie.flow.workers import Workers
from coterie.learn.memory import keep_freed_memory
from coterie.learn.models.model import Model
from coterie.learn.params import Layout, Params
from coterie.rng import Rng
from coterie.wire.messages import Envelope, Published

CHUNK_BYTES = 1 << 30  # how much the clients under way may take for parameters, gradients and batches
COPIES = 4  # of a model that a client takes: its start, its parameters, its gradient, its answer
MOST_IN_BATCH = 1024  # examples that a client is reckoned to look at in one step

Answer = tuple[Envelope, dict[str, Tensor]]
"""What a chunk of clients sends, and what it keeps for itself."""


def population(federation: Federation) -> Population:
    joins = federation.joins if federation.joins is not None else torch.zeros(federation.clients, dtype=torch.int64)
    return Population(federation.train.sizes, joins)


def respond(protocol: Protocol[Any], kind: str, models: Params, cohort: Cohort, guard: ClientGuard) -> Envelope:
    """The client's half of a round, wherever the client runs."""
    answer = protocol.answer(kind, models, cohort, guard)
    return Envelope(kind, cohort.turn.round, cohort.ids, guard.contribute(answer, cohort.turn))


@dataclass
class Simulator:
    """A ``Transport`` whose clients are rows of a federation in memory."""

    protocol: Protocol[Any]
    federation: Federation
    model: Model
    guard: ClientGuard
    rng: Rng  # the root of the clients' streams
    chunk_bytes: int = CHUNK_BYTES
    processes: int | None = None  # None: one a core, unless the model is vectorised or this is a worker itself
    memory: dict[str, Tensor] = field(default_factory=dict)  # (clients, ...): what the clients keep

    def __post_init__(self) -> None:
        keep_freed_memory()
        if self.processes is None:
            alone = self.model.vectorised or multiprocessing.parent_process() is not None
            self.processes = 0 if alone else len(os.sched_getaffinity(0))
        self._workers: Workers | None = None

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def exchange(self, ask: Envelope) -> Iterator[Envelope]:
        """Every client opens what was published in the same way, so that is done once."""
        assert isinstance(ask.payload, Published)
        turn = Turn(ask.round, self.rng, ask.kind)
        models = self.guard.receive(ask.payload, turn)
        order = replace(ask, payload=Published(models))
        chunks = torch.arange(len(ask.clients)).split(self._chunk(models, len(ask.clients)))
        orders = (order.pick(chunk) for chunk in chunks)
        answers = self._in_workers(orders) if self.processes and len(chunks) > 1 else self._in_turn(orders)
        yield from self.guard.together(self._remembered(answers), turn)

    def _remembered(self, answers: Iterator[Answer]) -> Iterator[Envelope]:
        for envelope, memory in answers:
            self._remember(envelope.clients, memory)
            yield envelope

    def _in_turn(self, orders: Iterable[Envelope]) -> Iterator[Answer]:
        for order in orders:
            yield self._answer_alone(order, self._memory_of(order))

    def _in_workers(self, orders: Iterable[Envelope]) -> Iterator[Answer]:
        if self._workers is None:
            count = min(self.processes or 1, self._fitting(self.model.init(0), leading=0))
            self._workers = Workers(self._answer_alone, count)
        finished, threads = False, torch.get_num_threads()
        torch.set_num_threads(1)  # more would take the cores from the workers
        try:
            yield from self._workers.map((order, self._memory_of(order)) for order in orders)
            finished = True
        finally:
            torch.set_num_threads(threads)
            if not finished:  # work that is still under way would answer the next order
                self.close()

    def cohort(self, clients: Tensor, turn: Turn, sees: Tensor | None = None) -> Cohort:
        ids = clients.tolist()
        scheduled = {client: self.federation.schedules[client] for client in ids if client in self.federation.schedules}
        memory = {name: kept[clients] for name, kept in self.memory.items()}
        shards = self.federation.train.pick(ids)
        return Cohort(clients, self.federation.examples, shards, self.model, turn, sees, scheduled, memory)

    def _answer_alone(self, order: Envelope, memory: dict[str, Tensor]) -> Answer:
        """One chunk, from nothing but the order and what its clients remember: also what a worker process runs."""
        assert isinstance(order.payload, Published)
        cohort = self.cohort(order.clients, Turn(order.round, self.rng, order.kind), order.sees)
        cohort.memory = dict(memory)
        envelope = respond(self.protocol, order.kind, order.payload.values, cohort, self.guard)
        return envelope, cohort.memory

    def _memory_of(self, order: Envelope) -> dict[str, Tensor]:
        return {name: kept[order.clients] for name, kept in self.memory.items()}

    def _remember(self, clients: Tensor, memory: dict[str, Tensor]) -> None:
        for name, kept in memory.items():
            if name not in self.memory:
                self.memory[name] = kept.new_full((self.federation.clients, *kept.shape[1:]), torch.nan)
            self.memory[name][clients] = kept

    def _chunk(self, models: Params, clients: int) -> int:
        """Clients a chunk: what fits in memory, and small enough that all processes have work.

        It does not depend on the number of processes, and so neither does the order in which sums are rounded.
        """
        fits = self._fitting(models, leading=1)
        return fits if self.model.vectorised else max(1, min(4, fits // 64, clients // 16))

    def _fitting(self, models: Params, leading: int) -> int:
        """How many clients fit in memory at the same time."""
        x = self.federation.examples.x
        batch = min(int(self.federation.train.sizes.max()), MOST_IN_BATCH)
        length = Layout.of(models, leading).length
        client_bytes = COPIES * self.protocol.models_a_round * 4 * length + batch * x[0].numel() * x.element_size()
        return max(1, self.chunk_bytes // client_bytes)
