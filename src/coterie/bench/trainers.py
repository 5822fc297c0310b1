"""Optimisers beside plain SGD, and IFCA on whole batches beside a loop as its authors wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.bench.elsewhere import Elsewhere
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import PlainLoop, Rounds, _plain_fcnn, random_federation, threads
from coterie.data.federation import Federation
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Roots, Turn
from coterie.learn.memory import keep_freed_memory
from coterie.learn.models.bundled import fcnn
from coterie.learn.params import stack
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng

SLOWER = 1.6  # a step of another optimiser may take so many times as long as plain SGD's
OPTIMISERS = {
    "momentum": Local(momentum=0.9),
    "Adam": Local(optimizer="adam", lr=0.001),
    "AdamW": Local(optimizer="adamw", lr=0.001, weight_decay=0.01),
}


def optimisers(options: Options, clients: int = 100, steps: int = 5) -> Iterator[Ratio]:
    """Steps of the FCNN on batches of 50, all clients together, as a round trains them."""
    keep_freed_memory()
    rng, model = Rng.seeded(options.seed), fcnn()
    x = torch.rand(clients * steps * 50, 784, generator=rng.child("pictures").torch())
    held = random_federation(clients, steps * 50, x, rng)
    cohort = Cohort(torch.arange(clients), Turn(0, Roots.same(rng)), held.examples, held.train, model)
    start = cohort.copies(stack([model.init(0)]), torch.zeros(clients, dtype=torch.int64))

    def training(local: Local) -> Callable[[], object]:
        return lambda: cohort.train(start, replace(local, steps=steps, batch_size=50), ClientGuard())

    contenders = {"plain": Local(), **OPTIMISERS}
    timings = interleaved({name: training(local) for name, local in contenders.items()}, options.repeats)
    for name in OPTIMISERS:
        yield Ratio(
            f"{name}: a step of {clients} FCNN clients",
            timings[name].best / steps,
            "s",
            timings["plain"].best / steps,
            1 / SLOWER,
            setup=f"plain SGD's, likewise; {threads()}; of {steps} steps with the gathering of batches",
        )


@dataclass
class WholeLoop(PlainLoop):
    """A round of IFCA as its authors wrote it: choices by the loss on all data, then full-batch steps by hand."""

    def _choose(self, x: Tensor, y: Tensor) -> int:
        losses = [cross_entropy(model(x), y).item() for model in self.models]
        return losses.index(min(losses))

    def _train(self, x: Tensor, y: Tensor) -> None:
        for _ in range(self.local.steps):
            loss = cross_entropy(self.worker(x), y)
            self.worker.zero_grad()
            loss.backward()
            for leaf in self.worker.parameters():
                assert leaf.grad is not None
                leaf.data -= self.local.lr * leaf.grad


@dataclass(frozen=True)
class WholeCase:
    """Ghosh et al.'s rotated MNIST with fewer clients: tau = 10 full-batch steps, p = 4 models."""

    clients: int = 80
    samples: int = 200
    clusters: int = 4
    local: Local = field(default_factory=lambda: Local(steps=10, whole=True, lr=0.1))

    def federation(self, rng: Rng) -> Federation:
        x = torch.rand(self.clients * self.samples, 784, generator=rng.child("pictures").torch())
        return random_federation(self.clients, self.samples, x, rng)

    def plain(self, rng: Rng) -> WholeLoop:
        return WholeLoop(self.federation(rng), _plain_fcnn, self.local, self.clusters)


def ifca_whole(options: Options, case: WholeCase | None = None) -> Iterator[Ratio]:
    rng, case = Rng.seeded(options.seed), case or WholeCase()
    protocol = Ifca(rounds=1, local=case.local, weighting="equal", clusters=case.clusters, candidates=0)
    with closing(Elsewhere(case.plain, rng)) as loop:
        ours = Rounds(protocol, case.federation(rng), fcnn(), rng)
        timings = interleaved({"ours": ours, "loop": loop}, options.repeats)
    yield Ratio(
        f"IFCA as published, m = {case.clients}, n = {case.samples}, {case.local.steps} whole steps: a round",
        timings["ours"].best,
        "s",
        timings["loop"].best,
        2.0,
        setup=f"the authors' loop: client by client, autograd, parameters moved by hand; {threads()}",
    )


def trainers(options: Options) -> Iterator[Ratio]:
    yield from optimisers(options)
    yield from ifca_whole(options)
