"""All clients on this machine: chunk by chunk, vectorised where that pays, else in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.data.federation import Federation, VerticalFederation
from coterie.data.lazy import AnyFederation, shown_by
from coterie.flow.adversary import overhear
from coterie.flow.client import Answer, ClientSide
from coterie.flow.cohort import FOR_ONE_TURN, Cohort, Memory
from coterie.flow.protocol import Population
from coterie.flow.turn import Metrics, Roots, Turn
from coterie.flow.workers import Workers
from coterie.learn.memory import keep_freed_memory
from coterie.learn.models.model import Model
from coterie.learn.params import Layout, Params
from coterie.learn.threads import wait_without_spinning
from coterie.privacy.ledger import Ledger
from coterie.wire.messages import Down, Published, Up

CHUNK_BYTES = 1 << 30  # how much the clients under way may take for parameters, gradients and batches
COPIES = 4  # of a model that a client takes: its start, its parameters, its gradient, its answer
MOST_IN_BATCH = 1024  # examples that a client is reckoned to look at in one step

Order = tuple[Down, tuple[Memory, ...], tuple[Memory, ...]]
"""What a chunk of clients is asked, what each of them remembers, and what the adversaries among them do."""


def population(federation: AnyFederation) -> Population:
    joins = getattr(federation, "joins", None)
    return Population(federation.sizes, torch.zeros(federation.clients, dtype=torch.int64) if joins is None else joins)


@dataclass
class Simulator:
    """A ``Transport`` whose clients are parts of a federation in memory."""

    side: ClientSide
    federation: AnyFederation
    model: Model | None
    roots: Roots  # of the clients' streams
    chunk_bytes: int = CHUNK_BYTES
    processes: int | None = None  # None: one a core, unless the model is vectorised or this is a worker itself
    memory: dict[int, Memory] = field(default_factory=dict)  # what the clients keep; an insider k's is at -1 - k
    ledger: Ledger = field(default_factory=Ledger)
    metrics: Metrics = field(default_factory=Metrics)
    witness: Callable[[Down, Answer], None] | None = None  # sees what no adversary does
    knows: Callable[[Up], None] | None = None  # is told what curious clients know of their own answers

    def __post_init__(self) -> None:
        keep_freed_memory()
        wait_without_spinning()
        if self.processes is None:
            alone = self._vectorised or multiprocessing.parent_process() is not None
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

    def forget_turn(self, clients: Collection[int] | None = None) -> None:
        """What clients kept for one request alone, keys for instance, is gone with it, also from those who left."""
        for client in list(self.memory) if clients is None else set(clients).intersection(self.memory):
            memory = self.memory[client]
            kept = {name: value for name, value in memory.items() if not name.startswith(FOR_ONE_TURN)}
            if len(kept) < len(memory):
                self.memory[client] = kept
            if not kept:
                del self.memory[client]

    def exchange(self, asked: Down) -> Iterator[Up]:
        if not asked.kind.part:
            self.forget_turn(asked.clients.tolist())
        order = self.side.opened(asked, Turn(asked.round, self.roots, asked.kind))
        chunks = self._chunks(order)
        published = order.published
        order = replace(order, published=Published({}))  # it is the same for all chunks
        orders = ((order.pick(chunk), *self._memories(order.clients[chunk].tolist())) for chunk in chunks)
        parallel = self.processes and len(chunks) > 1
        passed: list[Up] = []
        for answer in (self._in_workers if parallel else self._in_turn)(orders, published):
            passed += self._tapped(answer.up)
            yield from self.take(asked, answer)
        for number, insider in enumerate(self.side.insiders):  # when all have answered, whatever ran in parallel
            if insider.threat.taps and passed:
                self.memory[-1 - number] = overhear(insider, passed, self.memory.get(-1 - number, {}))

    def _tapped(self, up: Up) -> list[Up]:
        """What of this answer some insider hears on its way."""
        taps = frozenset(client for insider in self.side.insiders for client in insider.threat.taps)
        here = [position for position, client in enumerate(up.clients.tolist()) if client in taps]
        return [up.pick(torch.tensor(here))] if here else []

    def take(self, asked: Down, answer: Answer) -> Iterator[Up]:
        """What leaves of an answer; what stays with its clients is remembered."""
        self._remember(answer)
        if self.witness is not None:
            self.witness(asked, answer)
        if self.knows is not None and answer.before is not None:
            self.knows(answer.before)
        if len(answer.up.clients):
            yield answer.up

    def opened_for_all(self, asked: Down) -> tuple[Down, Cohort]:
        """A message as its clients open it, and all of them together, for whoever computes their answer."""
        self.forget_turn(asked.clients.tolist())
        turn = Turn(asked.round, self.roots, asked.kind)
        return self.side.opened(asked, turn), self.cohort(asked.clients, turn, asked.sees)

    def _in_turn(self, orders: Iterable[Order], published: Published) -> Iterator[Answer]:
        for order in orders:
            yield self._answer(*order, published)

    def _in_workers(self, orders: Iterable[Order], published: Published) -> Iterator[Answer]:
        if self._workers is None:
            count = min(self.processes or 1, self._fitting({} if self.model is None else self.model.init(0), leading=0))
            self._workers = Workers(lambda *order: (self._answer(*order),), count)
        finished, threads = False, torch.get_num_threads()
        torch.set_num_threads(1)  # more would take the cores from the workers
        try:
            for (answer,) in self._workers.map(orders, (published,)):
                yield answer
            finished = True
        finally:
            torch.set_num_threads(threads)
            if not finished:  # work that is still under way would answer the next order
                self.close()

    def cohort(self, clients: Tensor, turn: Turn, sees: Tensor | None = None) -> Cohort:
        """These clients, with their data and what they remember."""
        ids = clients.tolist()
        return self._cohort(clients, turn, sees, [dict(self.memory.get(client, {})) for client in ids])

    def _cohort(self, clients: Tensor, turn: Turn, sees: Tensor | None, memory: list[Memory]) -> Cohort:
        ids, whole = clients.tolist(), self.federation
        if isinstance(whole, VerticalFederation):
            return Cohort(clients, turn, sees=sees, columns=tuple(map(whole.part, ids)), memory=memory)
        schedules = whole.schedules if isinstance(whole, Federation) else {}
        scheduled = {client: schedules[client] for client in ids if client in schedules}
        return Cohort(clients, turn, *whole.held(ids), self.model, sees, scheduled, memory=memory)

    def _answer(
        self, order: Down, memory: tuple[Memory, ...], adversaries: tuple[Memory, ...], published: Published
    ) -> Answer:
        """One chunk, from nothing but the order and what its clients remember: also what a worker process runs."""
        order = replace(order, published=published)
        turn = Turn(order.round, self.roots, order.kind)
        cohort = self._cohort(order.clients, turn, order.sees, [dict(kept) for kept in memory])
        return self.side.answer(order, cohort, tuple(dict(kept) for kept in adversaries))

    def _memories(self, ids: list[int]) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
        """What these clients keep, and the adversaries, if any of them is an insider's."""
        insiders = self.side.insiders
        present = any(client in insider.threat.clients for insider in insiders for client in ids)
        own = tuple(self.memory.get(client, {}) for client in ids)
        return own, tuple(self.memory.get(-1 - k, {}) for k in range(len(insiders))) if present else ()

    def _remember(self, answer: Answer) -> None:
        kept = dict(zip(answer.ids, answer.memory, strict=True))
        kept |= {-1 - k: memory for k, memory in enumerate(answer.adversaries)}
        for client, memory in kept.items():
            if memory:
                self.memory[client] = memory
            else:
                self.memory.pop(client, None)
        self.ledger.enter(answer.spent)
        self.metrics.enter(answer.metrics)

    def _chunks(self, order: Down) -> list[Tensor]:
        """Positions, so many at a time; an adversary's own clients are together, as it knows all that they do."""
        held = frozenset(client for insider in self.side.insiders for client in insider.threat.clients)
        theirs = torch.tensor([client in held for client in order.clients.tolist()], dtype=torch.bool)
        size = self._chunk(order.published.values, len(order.clients))
        honest = list((~theirs).nonzero().flatten().split(size)) if not bool(theirs.all()) else []
        return [*honest, theirs.nonzero().flatten()] if bool(theirs.any()) else honest

    @property
    def _vectorised(self) -> bool:
        return self.model is None or self.model.vectorised

    def _chunk(self, models: Params, clients: int) -> int:
        """Clients a chunk: what fits in memory, and small enough that all processes have work.

        It does not depend on the number of processes, and so neither does the order in which sums are rounded.
        """
        fits = self._fitting(models, leading=1)
        return fits if self._vectorised else max(1, min(4, fits // 64, clients // 16))

    def _fitting(self, models: Params, leading: int) -> int:
        """How many clients fit in memory at the same time."""
        whole = self.federation
        x = shown_by(whole).x
        batch = min(int(whole.sizes.max()), MOST_IN_BATCH)
        length = Layout.of(models, leading).length if models else 1
        a_round = self.side.protocol.models_a_round
        copies = COPIES * a_round + self.side.protocol.moments
        client_bytes = copies * 4 * length + batch * x[0].numel() * x.element_size()
        return max(1, self.chunk_bytes // client_bytes)


@dataclass
class Dropping:
    """A ``Transport`` that loses the answers of some clients: ``lost`` names them for each message."""

    transport: Simulator
    lost: Callable[[Down], Collection[int]]

    def exchange(self, asked: Down) -> Iterator[Up]:
        gone = frozenset(self.lost(asked))
        for up in self.transport.exchange(asked):
            kept = [position for position, client in enumerate(up.clients.tolist()) if client not in gone]
            if kept:
                yield up if len(kept) == len(up.clients) else up.pick(torch.tensor(kept))
