"""Shadow federations as an audit trains them, beside one by one: what an adversary's rehearsals cost."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from coterie.audit.case import Subject, parse
from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.bench.ring import threads
from coterie.config.registry import Words
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
from coterie.run.jobs import Job, Result, run_jobs

SHADOWS = 64
LEAST_RATIO, MOST_SECONDS = 5.0, 120.0


def example() -> Subject:
    """The federation that ``coterie audit`` audits if nobody names another."""
    return parse(tomllib.loads(resources.files("coterie.audit").joinpath("example.toml").read_text()), "example")


def shadows(options: Options, count: int = SHADOWS, subject: Subject | None = None) -> Iterator[Ratio]:
    """Of the default federation, as an audit has them: together, in as many processes as there are cores.

    The row's limit is what the products that are left would allow, if nothing else cost anything.
    """
    asked, seeds = subject or example(), list(range(options.seed, options.seed + count))
    cores = len(os.sched_getaffinity(0))
    jobs = [
        Job(f"shadows-{core}", train_shadows, {"subject": asked.model_dump(mode="json"), "seeds": seeds[core::cores]})
        for core in range(min(cores, count))
    ]

    def spread() -> None:
        with TemporaryDirectory() as folder:
            run_jobs(jobs, Path(folder))

    def apart() -> None:
        for ring in _rings(asked, seeds):
            ring.run()

    many, one = _seconds(spread, apart, options)
    bare = count * _products(*_federation(asked, asked.examples(asked.seed), options.seed)) / cores
    name, setup = f"{count} shadow federations of {asked.name}", f"the same, one after the other, {threads()}"
    yield Ratio(f"{name}, {cores} processes", many, "s", one, LEAST_RATIO, limit=one / bare, setup=setup)
    yield Ratio(f"{name}: in all", many, "s", None, MOST_SECONDS, bound_on_ratio=False)


def train_shadows(subject: Words, seeds: list[int]) -> Result:
    """Together; what is kept of each is how many parameters it ended with."""
    rings = _rings(Subject.model_validate(subject), seeds)
    ends = zip(rings, run_together(rings), strict=True)
    return {"parameters": [sum(leaf.numel() for leaf in ring.models(state).values()) for ring, state in ends]}


def _rings(asked: Subject, seeds: list[int]) -> list[AnyRing]:
    examples = asked.examples(asked.seed)
    return [_ring(*_federation(asked, examples, seed), seed) for seed in seeds]


def small_shadows(options: Options, count: int = SHADOWS) -> Iterator[Ratio]:
    """Of a federation so small that calls cost more than what they compute: those are computed together."""
    examples, model = Digits().load(), Dense((64, 16, 10))
    protocol = FedAvg(rounds=20, local=Local(steps=5, batch_size=8, lr=0.1))

    def rings() -> list[AnyRing]:
        return [_ring(protocol, _dealt(examples, 10, seed), model, seed) for seed in range(count)]

    def apart() -> None:
        for ring in rings():
            ring.run()

    together, one = _seconds(lambda: run_together(rings()), apart, options)
    setup = f"the same rings, one after the other, {threads()}"
    yield Ratio(f"{count} shadow federations of digits: 64-16-10, 10 clients", together, "s", one, setup=setup)


def both(options: Options) -> Iterator[Ratio]:
    yield from shadows(options)
    yield from small_shadows(options)


def _seconds(ours: Callable[[], object], baseline: Callable[[], object], options: Options) -> tuple[float, float]:
    """The best of each, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.repeats):
        for way, times in zip((ours, baseline), found, strict=True):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
    return min(found[0]), min(found[1])


def _federation(asked: Subject, examples: Examples, seed: int) -> tuple[AnyTrainer, Federation, Model]:
    protocol = asked.protocol(asked.trainers[0])
    assert isinstance(protocol, Trainer)
    return protocol, asked.partitioned(examples, seed), asked.built_model(examples)


def _ring(protocol: AnyProtocol, federation: Federation, model: Model, seed: int) -> AnyRing:
    return Ring(protocol, federation, model, roots=Roots.seeded(seed), processes=0)


def _dealt(examples: Examples, clients: int, seed: int) -> Federation:
    return Iid(clients).split(examples, Rng.seeded(seed))


def _products(protocol: AnyTrainer, federation: Federation, model: Model) -> float:
    """Seconds of one federation's first-layer products on one thread: those of the choice, and of the update."""
    first = next(iter(model.init(0).values()))  # (hidden, features)
    rows, slots = len(federation.train.rows), max(1, protocol.choices)
    x, moved = torch.randn(rows, first.shape[1]), torch.randn(rows, first.shape[0])
    weights = torch.randn(slots, first.shape[1], first.shape[0])
    best, usual = float("inf"), torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5):
        started = time.perf_counter()
        torch.matmul(x, weights)
        torch.mm(moved.T, x)
        best = min(best, time.perf_counter() - started)
    torch.set_num_threads(usual)
    return protocol.rounds * best
