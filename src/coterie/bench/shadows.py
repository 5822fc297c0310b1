"""Shadow federations computed together, beside one by one: what an adversary's rehearsals cost."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources

import torch

from coterie.audit.case import Subject, parse
from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.bench.ring import threads
from coterie.data.federation import Examples, Federation
from coterie.data.partition import Iid
from coterie.data.sources.embedded import Digits
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.protocols.base import AnyTrainer, Trainer
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng

SHADOWS = 64
LEAST_RATIO, MOST_SECONDS = 5.0, 120.0


def example() -> Subject:
    """The federation that ``coterie audit`` audits if nobody names another."""
    return parse(tomllib.loads(resources.files("coterie.audit").joinpath("example.toml").read_text()), "example")


def shadows(options: Options, count: int = SHADOWS, subject: Subject | None = None) -> Iterator[Ratio]:
    """Of the default federation, which is bound by its matrix products: the row's limit says so."""
    asked = subject or example()
    examples, protocol = asked.examples(options.seed), asked.protocol(asked.trainers[0])
    model = asked.built_model(examples)
    assert isinstance(protocol, Trainer)

    def rings() -> list[AnyRing]:
        seeds = range(options.seed, options.seed + count)
        return [_ring(protocol, asked.partitioned(examples, seed), model, seed) for seed in seeds]

    together, apart = _timed(rings, options)
    bare = count * _products(protocol, rings()[0], model)
    setup = f"the same rings, one after the other, {threads()}"
    name = f"{count} shadow federations of {asked.name}"
    yield Ratio(name, together, "s", apart, LEAST_RATIO, limit=apart / bare, setup=setup)
    yield Ratio(f"{name}: in all", together, "s", None, MOST_SECONDS, bound_on_ratio=False)


def small_shadows(options: Options, count: int = SHADOWS) -> Iterator[Ratio]:
    """Of a federation so small that calls cost more than what they compute."""
    examples, model = Digits().load(), Dense((64, 16, 10))
    protocol = FedAvg(rounds=20, local=Local(steps=5, batch_size=8, lr=0.1))

    def rings() -> list[AnyRing]:
        return [_ring(protocol, _dealt(examples, 10, seed), model, seed) for seed in range(count)]

    together, apart = _timed(rings, options)
    setup = f"the same rings, one after the other, {threads()}"
    yield Ratio(f"{count} shadow federations of digits: 64-16-10, 10 clients", together, "s", apart, setup=setup)


def both(options: Options) -> Iterator[Ratio]:
    yield from shadows(options)
    yield from small_shadows(options)


def _timed(rings: Callable[[], list[AnyRing]], options: Options) -> tuple[float, float]:
    """Two are enough to warm up with: all of them take minutes."""

    def apart(many: list[AnyRing]) -> list[object]:
        return [ring.run() for ring in many]

    def seconds(way: Callable[[list[AnyRing]], list[object]]) -> float:
        many, started = rings(), time.perf_counter()
        way(many)
        return time.perf_counter() - started

    for way in (run_together, apart):
        way(rings()[:2])
    pairs = [(seconds(run_together), seconds(apart)) for _ in range(options.repeats)]
    return min(one for one, _ in pairs), min(other for _, other in pairs)


def _ring(protocol: AnyProtocol, federation: Federation, model: Model, seed: int) -> AnyRing:
    return Ring(protocol, federation, model, roots=Roots.seeded(seed), processes=0)


def _dealt(examples: Examples, clients: int, seed: int) -> Federation:
    return Iid(clients).split(examples, Rng.seeded(seed))


def _products(protocol: AnyTrainer, ring: AnyRing, model: Model) -> float:
    """Seconds of one federation's matrix products alone: those of the first layer, which are nearly all."""
    assert isinstance(ring.federation, Federation)
    first = next(iter(model.init(0).values()))  # (hidden, features)
    rows, clients = len(ring.federation.train.rows), ring.federation.clients
    slots = max(1, protocol.choices)
    x, many = torch.randn(rows, first.shape[1]), torch.randn(slots * first.shape[0], first.shape[1])
    batch = torch.randn(clients, protocol.local.batch_size, first.shape[1])
    weights = torch.randn(clients, *first.shape)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        if protocol.choices:
            x @ many.T
        for _ in range(protocol.local.steps):
            delta = torch.bmm(batch, weights.transpose(1, 2))
            torch.bmm(delta.transpose(1, 2), batch)
        best = min(best, time.perf_counter() - started)
    return protocol.rounds * best
