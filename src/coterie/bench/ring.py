"""Rounds of training beside a plain PyTorch loop over the clients, and beside bare matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.bench.elsewhere import Elsewhere
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.data.federation import Examples, Federation, Shards
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.bundled import Cnn, FaceCnn, Gru, fcnn
from coterie.learn.models.model import Model, ModuleModel
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng

WORKERS = 2
Build = Callable[[], nn.Module]


def random_federation(clients: int, each: int, examples: Tensor, rng: Rng, classes: int = 10) -> Federation:
    """``each`` rows a client: speed does not depend on what is in them."""
    y = torch.randint(classes, (len(examples),), generator=rng.child("labels").torch())
    rows = torch.arange(clients * each)
    none = Shards.of([rows[:0]] * clients)
    whole = Examples(examples, y, classes, "random")
    return Federation(whole, Shards.of(list(rows.split(each))), none, torch.zeros(clients, dtype=torch.int64))


@dataclass
class Rounds:
    """Rounds of ours, one a call, with the simulator (and its workers) kept between them."""

    protocol: AnyProtocol
    federation: Federation
    model: Model
    rng: Rng
    processes: int | None = None

    def __post_init__(self) -> None:
        self.ring = Ring(
            self.protocol, self.federation, self.model, roots=Roots.same(self.rng), processes=self.processes
        )
        self.state = self.protocol.start(self.ring.server)

    def __call__(self) -> Any:
        return self.ring.run(self.state)

    def close(self) -> None:
        self.ring.clients.close()


@dataclass(frozen=True)
class IfcaCase:
    """MingledPie's setting: FCNN 784-200-10, 5 local steps of 50, the choice on 50 examples."""

    clients: int = 120
    clusters: int = 5
    each: int = 500
    local: Local = field(default_factory=lambda: Local(steps=5, batch_size=50, lr=0.01))
    choose_on: int = 50

    def federation(self, rng: Rng) -> Federation:
        x = torch.rand(self.clients * self.each, 784, generator=rng.child("pictures").torch())
        return random_federation(self.clients, self.each, x, rng)

    def plain(self, rng: Rng) -> PlainLoop:
        return PlainLoop(self.federation(rng), _plain_fcnn, self.local, self.clusters, self.choose_on)


def ifca(options: Options, case: IfcaCase | None = None) -> Iterator[Ratio]:
    rng, case = Rng.seeded(options.seed), case or IfcaCase()
    protocol = Ifca(rounds=1, local=case.local, clusters=case.clusters, candidates=0, choose_on=case.choose_on)
    with closing(Elsewhere(case.plain, rng)) as loop:
        ours, products = Rounds(protocol, case.federation(rng), fcnn(), rng), _products(case, rng)
        timings = interleaved({"ours": ours, "loop": loop, "products": products}, options.repeats)
    best = {name: timing.best for name, timing in timings.items()}
    yield Ratio(
        f"IFCA, FCNN, {case.clients} clients, {case.clusters} clusters: a round",
        best["ours"],
        "s",
        best["loop"],
        2.3,
        setup=f"a loop over the clients in one process: nn.Module, autograd, SGD; {threads()}",
    )
    yield Ratio(
        "the same round, beside its matrix products alone",
        best["ours"],
        "s",
        best["products"],
        0.5,
        setup=f"the products of all clients' layers, batched, and nothing else; {threads()}",
    )


@dataclass(frozen=True)
class ModuleCase:
    """A model whose clients are computed one by one, and the same as one would write it in plain PyTorch."""

    name: str
    model: ModuleModel
    plain: Build
    inputs: Callable[[int, torch.Generator], Tensor]  # so many examples
    clients: int
    local: Local

    def federation(self, rng: Rng) -> Federation:
        each = self.local.steps * self.local.batch_size
        x = self.inputs(self.clients * each, rng.child("inputs").torch())
        return random_federation(self.clients, each, x, rng, classes=5)

    def plain_loop(self, rng: Rng) -> PlainLoop:
        return PlainLoop(self.federation(rng), self.plain, self.local)


def modules(options: Options) -> Iterator[Ratio]:
    cases = [
        ModuleCase("CNN", Cnn(), _plain_cnn, partial(_pictures, 1, 28), 40, Local(steps=5, batch_size=50)),
        ModuleCase(
            "CNN of 3 convolutions", FaceCnn(), _plain_face_cnn, partial(_pictures, 3, 48), 12, Local(batch_size=20)
        ),
        ModuleCase("GRU", Gru(), _PlainGru, _words, 12, Local(batch_size=20)),
    ]
    for case in cases:
        yield module_round(case, options)


def module_round(case: ModuleCase, options: Options) -> Ratio:
    rng, local, clients = Rng.seeded(options.seed), case.local, case.clients
    protocol = FedAvg(rounds=1, local=local)
    with (
        closing(Elsewhere(case.plain_loop, rng)) as loop,
        closing(Rounds(protocol, case.federation(rng), case.model, rng, processes=WORKERS)) as ours,
    ):
        best = {key: timing.best for key, timing in interleaved({"ours": ours, "loop": loop}, options.repeats).items()}
    return Ratio(
        f"FedAvg, {case.name}, {clients} clients, {local.steps} steps of {local.batch_size}: a round",
        best["ours"],
        "s",
        best["loop"],
        1.5,
        setup=f"a loop over the clients in one process, {threads()}; ours in {WORKERS} processes of 1 thread",
    )


def _pictures(channels: int, side: int, count: int, draws: torch.Generator) -> Tensor:
    return torch.rand(count, channels, side, side, generator=draws)


def _words(count: int, draws: torch.Generator) -> Tensor:
    return torch.randint(1, Gru().vocabulary, (count, 50), generator=draws)


def threads() -> str:
    return f"torch's {torch.get_num_threads()} threads"


def _plain_fcnn() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def _plain_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _plain_face_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4608, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


class _PlainGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 100)
        self.gru = nn.GRU(100, 128, batch_first=True)
        self.head = nn.Linear(128, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


@dataclass
class PlainLoop:
    """A round as one would write it without us: client by client; more than one cluster makes it IFCA."""

    federation: Federation
    build: Build
    local: Local
    clusters: int = 1
    choose_on: int = 0

    def __post_init__(self) -> None:
        self.models = [self.build() for _ in range(self.clusters)]
        self.worker = self.build()

    def __call__(self) -> list[dict[str, Tensor]]:
        sums = [{name: torch.zeros_like(leaf) for name, leaf in m.state_dict().items()} for m in self.models]
        counts = [0] * self.clusters
        for client in range(self.federation.clients):
            rows = self.federation.train[client]
            x, y = self.federation.examples.x[rows], self.federation.examples.y[rows]
            chosen = self._choose(x, y)
            self.worker.load_state_dict(self.models[chosen].state_dict())
            self._train(x, y)
            for name, leaf in self.worker.state_dict().items():
                sums[chosen][name] += leaf * len(rows)
            counts[chosen] += len(rows)
        return [{name: leaf / max(n, 1) for name, leaf in total.items()} for total, n in zip(sums, counts, strict=True)]

    def _choose(self, x: Tensor, y: Tensor) -> int:
        if self.clusters == 1:
            return 0
        sample = torch.randperm(len(x))[: self.choose_on]
        x, y = x[sample], y[sample]
        with torch.no_grad():
            losses = [cross_entropy(model(x), y).item() for model in self.models]
        return losses.index(min(losses))

    def _train(self, x: Tensor, y: Tensor) -> None:
        optimizer = torch.optim.SGD(self.worker.parameters(), lr=self.local.lr)
        order = torch.randperm(len(x))
        for step in range(self.local.steps):
            batch = order[step * self.local.batch_size : (step + 1) * self.local.batch_size]
            optimizer.zero_grad()
            cross_entropy(self.worker(x[batch]), y[batch]).backward()
            optimizer.step()


def _products(case: IfcaCase, rng: Rng) -> Callable[[], object]:
    """The matrix products of an IFCA round of the FCNN, each once, on operands that lie ready."""
    draws, clients, local = rng.child("operands").torch(), case.clients, case.local

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draws)

    sample = random(clients * case.choose_on, 784)
    x, hidden, delta = (random(clients, local.batch_size, width) for width in (784, 200, 10))
    first, second = random(clients, 200, 784), random(clients, 10, 200)

    def run() -> None:
        for cluster in range(case.clusters):
            (sample @ first[cluster].T) @ second[cluster].T
        for _ in range(local.steps):
            torch.bmm(x, first.transpose(1, 2))
            torch.bmm(hidden, second.transpose(1, 2))
            torch.bmm(delta.transpose(1, 2), hidden)
            back = torch.bmm(delta, second)
            torch.bmm(back.transpose(1, 2), x)

    return run
