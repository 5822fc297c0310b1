"""What exact sums and discrete noise cost beside the float sums and pseudo-random normals that they replace.

One thread on both sides. The baselines are not safe for privacy: they are what the same work costs without a claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.whole_fit import whole_fits
from coterie.defences.dpsgd import DpSgd
from coterie.flow.batches import public_width
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.exact_sums import RECORD_UNITS, exact_cluster_sums, exact_outer_products
from coterie.learn.clusters.lloyd import cluster_sums, nearest, packed_outer_products
from coterie.learn.clusters.points import Points
from coterie.learn.models.bundled import fcnn
from coterie.learn.models.model import Batch
from coterie.learn.params import stack
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

    The goal is twice the plain step. The product of gradients is faster than the plain one, for its numbers are bytes.
    What is left: all layers are passed at a width that says nothing about who was drawn, 72 rows for 50, and 3.2
    million draws take nearly as long as the plain step.
    """
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
    rates, turn = torch.full((clients,), 0.1), Turn(0, Roots.seeded(options.seed))
    step = Step(torch.arange(clients), 0, divisors, rates, active, True, turn, width)
    guard, units = DpSgd(1.0, 1.0).client, model.units(width, 159_010)
    grid = NoiseGrid.planned(1.0, units[1], units[0])
    best = _best(
        {
            "plain": lambda: model.gradients(params, batch),
            "clipped": lambda: model.gradients(params, batch, 1.0),
            "exact": lambda: model.whole_gradients(params, padded, 1.0, grid.units, width),
            "noise": lambda: [grid.noise.singles(159_010, Secrets.seeded(client)) for client in range(clients)],
            "private": lambda: guard.gradients(model, params, padded, step),
        },
        options,
    )
    name, plain = f"FCNN, {clients} clients, batches of {batch_size}", "plain gradients, neither clipped nor noised"
    for what, ours, baseline, setup, goal in (
        ("exact sums of clipped gradients", "exact", "clipped", "clipped gradients added up in float32", None),
        ("the noise alone", "noise", "plain", plain, None),
        ("a private step", "private", "plain", plain, 1 / TIMES_PLAIN),
    ):
        yield Ratio(f"{name}: {what}", 1e3 * best[ours], "ms", 1e3 * best[baseline], goal, setup=setup)


def _best(contenders: Contenders, options: Options) -> dict[str, float]:
    return {name: timing.best for name, timing in interleaved(contenders, options.repeats).items()}
