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
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.exact_sums import RECORD_UNITS, exact_cluster_sums, exact_outer_products
from coterie.learn.clusters.lloyd import Points, cluster_sums, nearest, packed_outer_products
from coterie.learn.exact_gradients import LEAST_UNITS, exact_dense_sums, gradient_step, most_units
from coterie.learn.models.bundled import fcnn
from coterie.learn.models.model import Batch
from coterie.learn.params import flatten, stack
from coterie.privacy.grid import NoiseGrid
from coterie.privacy.noise import DiscreteGaussian
from coterie.rng import Rng, Secrets

Contenders = dict[str, Callable[[], object]]
TINY = 2.0**-40  # a bound that leaves of each record its direction


def noise(options: Options) -> Iterator[Ratio]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield draws(options)
        yield from kmeans_sums(options)
        yield from private_step(options)
    finally:
        torch.set_num_threads(before)


def draws(options: Options, count: int = 3_200_000) -> Ratio:
    gaussian, root, buffer = DiscreteGaussian(3), Secrets.seeded(options.seed), np.zeros(count, dtype=np.int64)
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


def private_step(options: Options, clients: int = 20, width: int = 50) -> Iterator[Ratio]:
    """The FCNN's clipped gradients, exact and noised, beside the plain gradients."""
    model, rng = fcnn(), Rng.seeded(options.seed)
    generator = rng.child("data").torch()
    params = stack([model.init(seed) for seed in range(clients)])
    x = torch.rand(clients, width, 784, generator=generator)
    y = torch.randint(0, 10, (clients, width), generator=generator)
    ones, active = torch.ones(clients, width), torch.ones(clients, dtype=torch.bool)
    batch = Batch(x, y, ones, ones.sum(1), active)
    grid = NoiseGrid.planned(1.0, most_units(width), LEAST_UNITS)
    step, root = gradient_step(1.0, grid.units, [(784, 200), (200, 10)]), Secrets.seeded(options.seed)

    def exact() -> torch.Tensor:
        inputs, masks, logits = model._forward(params, batch)
        deltas = model._backward(params, batch, inputs, masks, logits)
        sums = exact_dense_sums(inputs, deltas, 1.0, grid.units)
        leaves = {f"{layer}.{part}": leaf for layer, pair in enumerate(sums) for part, leaf in enumerate(pair)}
        return flatten({name: leaf.float() for name, leaf in leaves.items()})

    def private() -> torch.Tensor:
        sums = exact()
        for client, row in enumerate(sums.numpy()):
            grid.release(row, step, root.child(client), row)
        return sums

    plain = lambda: flatten(model.gradients(params, batch))  # noqa: E731
    clipped = lambda: flatten(model.gradients(params, batch, 1.0))  # noqa: E731
    best = _best({"plain": plain, "clipped": clipped, "exact": exact, "private": private}, options)
    name = f"FCNN, {clients} clients, batches of {width}"
    for ours, baseline, setup in (
        ("exact", "clipped", "clipped gradients added up in float32"),
        ("private", "plain", "plain gradients of the same step, neither clipped nor noised"),
    ):
        yield Ratio(f"{name}: {ours} gradients", 1e3 * best[ours], "ms", 1e3 * best[baseline], setup=setup)


def _best(contenders: Contenders, options: Options) -> dict[str, float]:
    return {name: timing.best for name, timing in interleaved(contenders, options.repeats).items()}
