"""What exact sums and discrete noise cost beside the float sums and pseudo-random normals that they replace.

One thread on both sides, and for the steps of a network as many as there are, too. The baselines are not safe for
privacy: they are what the same work costs without a claim.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import random_federation, threads
from coterie.bench.whole_fit import whole_fits
from coterie.defences.dpsgd import DpSgd
from coterie.flow.batches import public_width
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.exact_sums import RECORD_UNITS, exact_cluster_sums, exact_outer_products
from coterie.learn.clusters.lloyd import cluster_sums, nearest, packed_outer_products
from coterie.learn.clusters.points import Points
from coterie.learn.memory import keep_freed_memory
from coterie.learn.models.bundled import fcnn
from coterie.learn.models.model import Batch
from coterie.learn.params import Params, stack
from coterie.learn.sgd import Local
from coterie.learn.threads import each_in_one_thread
from coterie.privacy.grid import NoiseGrid
from coterie.privacy.noise import DiscreteGaussian
from coterie.rng import Rng, Secrets

Contenders = dict[str, Callable[[], object]]
TIMES_PLAIN = 2.0
TINY = 2.0**-40  # a bound that leaves of each record its direction


def noise(options: Options) -> Iterator[Ratio]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield draws(options)
        yield from kmeans_sums(options)
        yield from whole_fits(options)
        yield from private_step(options)
    finally:
        torch.set_num_threads(before)
    if before > 1:
        yield from private_step(options)
    yield from private_training(options)


def draws(options: Options, count: int = 3_200_000) -> Ratio:
    gaussian, root, buffer = DiscreteGaussian(1), Secrets.seeded(options.seed), np.zeros(count, dtype=np.int64)
    generator = Rng.seeded(options.seed).torch()
    best = _best(
        {
            "ours": lambda: gaussian.add_to(buffer, root),
            "baseline": lambda: torch.randn(count, generator=generator),
        },
        options,
    )
    setup = "torch.randn, float32, from a generator with 32 bits of seed"
    return Ratio(f"{count:,} discrete Gaussians", 1e3 * best["ours"], "ms", 1e3 * best["baseline"], setup=setup)


def kmeans_sums(options: Options, records: int = 400_000, features: int = 100, clients: int = 100) -> Iterator[Ratio]:
    """A step of Lloyd with records clipped, and the outer products of the subspace."""
    x = torch.randn(records, features, generator=Rng.seeded(options.seed).torch())
    points = Points(x, torch.linspace(0, records, clients + 1).long())
    centres, middle, bound = x[:10].clone(), torch.zeros(features), math.sqrt(features)
    labels = nearest(x, centres)
    cases: dict[str, tuple[Contenders, float]] = {
        "cluster sums alone": (
            {
                "ours": lambda: exact_cluster_sums(points, labels, 10, bound, RECORD_UNITS, centres),
                "baseline": lambda: cluster_sums(points, labels, 10, RecordClip(bound), centres),
            },
            1 / 1.7,
        ),
        "a step of Lloyd: nearest centres and sums": (
            {
                "ours": lambda: exact_cluster_sums(points, nearest(x, centres), 10, bound, RECORD_UNITS, centres),
                "baseline": lambda: cluster_sums(points, nearest(x, centres), 10, RecordClip(bound), centres),
            },
            1 / 1.3,
        ),
        "outer products": (
            {
                "ours": lambda: exact_outer_products(points, TINY, middle),
                "baseline": lambda: packed_outer_products(points, RecordClip(TINY), middle),
            },
            1 / 1.8,
        ),
    }
    for name, (contenders, bound_on_ratio) in cases.items():
        best = _best(contenders, options)
        yield Ratio(
            f"{records:,} records of {features}: {name}, exact",
            1e3 * best["ours"],
            "ms",
            1e3 * best["baseline"],
            bound_on_ratio,
            setup="the same in float32, whose sums depend on their order",
        )


def private_step(options: Options, clients: int = 20, batch_size: int = 50) -> Iterator[Ratio]:
    """A step of the FCNN as DP-SGD takes it, in blocks of the public width, beside the plain step of the same examples.

    The goal is twice the plain step, in as many threads as there are on both sides, with secrets that are secret. The
    product of gradients is faster than the plain one, for its numbers are bytes. What is left: all layers are passed at
    a width that says nothing about who was drawn, 72 rows for 50, and 3.2 million draws take half of the plain step.
    """
    keep_freed_memory()
    model, rng = fcnn(), Rng.seeded(options.seed)
    generator, width = rng.child("data").torch(), public_width(batch_size)
    params = stack([model.init(seed) for seed in range(clients)])
    x = torch.rand(clients, width, 784, generator=generator)
    y = torch.randint(0, 10, (clients, width), generator=generator)
    there, active = torch.zeros(clients, width), torch.ones(clients, dtype=torch.bool)
    there[:, :batch_size] = 1 / batch_size
    divisors = torch.full((clients,), float(batch_size))
    padded = Batch(x, y, there, divisors, active)
    batch = Batch(x[:, :batch_size], y[:, :batch_size], there[:, :batch_size], divisors, active)
    rates, turn = torch.full((clients,), 0.1), Turn(0, Roots(rng, Secrets.from_entropy()))
    step = Step(torch.arange(clients), 0, divisors, rates, active, True, turn, width)
    guard, units = DpSgd(1.0, 1.0).client, model.units(width, 159_010)
    grid, parts = NoiseGrid.planned(1.0, units[1], units[0]), _parts(clients)

    def exact(part: slice) -> None:
        sums = model.whole_gradients(_part(params, part), _part_of(padded, part), 1.0, grid.units, width)
        deque(sums.totals, maxlen=0)

    def noise(part: slice) -> None:
        total = np.zeros(159_010, dtype=np.int32)
        for client in range(part.start, part.stop):
            grid.noise.add_to(total, turn.secrets(client))

    def private(part: slice) -> None:
        own = replace(step, **{name: getattr(step, name)[part] for name in ("ids", "divisors", "rates", "active")})
        guard.gradients(model, _part(params, part), _part_of(padded, part), own)

    best = _best(
        {
            "plain": lambda: model.gradients(params, batch),
            "clipped": lambda: model.gradients(params, batch, 1.0),
            "exact": lambda: each_in_one_thread(exact, parts),
            "noise": lambda: each_in_one_thread(noise, parts),
            "private": lambda: each_in_one_thread(private, parts),
        },
        options,
    )
    name, plain = f"FCNN, {clients} clients, batches of {batch_size}", "plain gradients, neither clipped nor noised"
    for what, ours, baseline, setup, goal in (
        ("exact sums of clipped gradients", "exact", "clipped", "clipped gradients added up in float32", None),
        ("the noise alone", "noise", "plain", plain, None),
        ("a private step", "private", "plain", plain, 1 / TIMES_PLAIN),
    ):
        yield Ratio(
            f"{name}: {what}", 1e3 * best[ours], "ms", 1e3 * best[baseline], goal, setup=f"{setup}; {threads()}"
        )


def private_training(options: Options, clients: int = 20, batch_size: int = 50, steps: int = 5) -> Iterator[Ratio]:
    """What a round trains, from drawing batches to new weights. The plain side never has gradients: they go straight
    into the weights. So there is no goal here, but what a user pays."""
    keep_freed_memory()
    rng, model = Rng.seeded(options.seed), fcnn()
    x = torch.rand(clients * steps * batch_size, 784, generator=rng.child("pictures").torch())
    held, roots = random_federation(clients, steps * batch_size, x, rng), Roots(rng, Secrets.from_entropy())
    cohort = Cohort(torch.arange(clients), Turn(0, roots), held.examples, held.train, model)
    start = cohort.copies(stack([model.init(0)]), torch.zeros(clients, dtype=torch.int64))
    plain = Local(steps=steps, batch_size=batch_size)
    best = _best(
        {
            "plain": lambda: cohort.train(start, plain, ClientGuard()),
            "private": lambda: cohort.train(start, replace(plain, poisson=True), DpSgd(1.0, 1.0).client),
        },
        options,
    )
    yield Ratio(
        f"FCNN, {clients} clients, {steps} steps on {batch_size} of {steps * batch_size}: private training",
        1e3 * best["private"],
        "ms",
        1e3 * best["plain"],
        setup=f"plain training, whose gradients go straight into the weights; {threads()}",
    )


def _parts(clients: int) -> list[slice]:
    """As a cohort takes them: a part a thread."""
    each = -(-clients // torch.get_num_threads())
    return [slice(start, min(start + each, clients)) for start in range(0, clients, each)]


def _part(params: Params, part: slice) -> Params:
    return {name: leaf[part] for name, leaf in params.items()}


def _part_of(batch: Batch, part: slice) -> Batch:
    return Batch(batch.x[part], batch.y[part], batch.weights[part], batch.divisors[part], batch.active[part])


def _best(contenders: Contenders, options: Options) -> dict[str, float]:
    return {name: timing.best for name, timing in interleaved(contenders, options.repeats).items()}
