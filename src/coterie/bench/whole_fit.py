"""A fit of FedDP-KMeans with exact sums and discrete noise, beside the same fit in floats with noise from torch.

The kernels in floats are those that serve where nothing is claimed; they are put in the place of the exact ones for as
long as the baseline runs. What it releases protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.bench.kmeans import SIZES
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.data.federation import Federation
from coterie.data.partition.gaussians import GaussianClients
from coterie.defences.noisy_sums.central import AddingServer, CentralNoise
from coterie.defences.noisy_sums.plan import SHARES, grids_of, plan_noise, spend, told
from coterie.flow.ask import Sums
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots, Turn
from coterie.learn.clusters import lloyd, statistics
from coterie.learn.clusters.clipping import RecordClip, Unclipped
from coterie.learn.clusters.points import Points
from coterie.learn.whole import STEP
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.feddp_kmeans import FedDPKMeans
from coterie.rng import Rng

TIMES_FLOATS = 1.3
STEPS = {Level.RECORD: 8, Level.CLIENT: 1}  # what the estimator plans


def whole_fits(options: Options, sizes: Mapping[Level, tuple[int, int]] = SIZES) -> Iterator[Ratio]:
    for level, (clients, points) in sizes.items():
        maker, rng = GaussianClients(clients, points), Rng.seeded(options.seed)
        federation, server_data = maker.make(rng), maker.server(rng).whole().x
        times = interleaved(
            {
                "ours": partial(fit, federation, server_data, level, options.seed),
                "floats": partial(fit_in_floats, federation, server_data, level, options.seed),
            },
            options.repeats,
        )
        yield Ratio(
            f"FedDP-KMeans, {clients} clients of {points} points, {level.value} level: a whole fit",
            1e3 * times["ours"].best,
            "ms",
            1e3 * times["floats"].best,
            1 / TIMES_FLOATS,
            setup="the same fit in float32, with noise from torch",
        )


def fit(federation: Federation, server_data: Tensor, level: Level, seed: int) -> Tensor:
    """The centres at epsilon 1, with the number of steps that the estimator takes."""
    protocol = FedDPKMeans(10, level, server_data=server_data, steps=STEPS[level])
    planned = plan_noise(protocol.releases(), 1.0, 1e-6, SHARES[level])
    protocol, defence = replace(protocol, planned=planned), CentralNoise(planned)
    ring = Ring(protocol, federation, defence=defence, roots=Roots.seeded(seed), processes=0)
    return ring.run().known["centres"][0]


def fit_in_floats(federation: Federation, server_data: Tensor, level: Level, seed: int) -> Tensor:
    with _in_floats():
        return fit(federation, server_data, level, seed)


@contextmanager
def _in_floats() -> Iterator[None]:
    with ExitStack() as stack:
        for name, kernel in FLOATS.items():
            stack.enter_context(patch.object(statistics, name, kernel))
        stack.enter_context(patch.object(AddingServer, "release", _release))
        yield


def _release(guard: AddingServer, sums: Sums, turn: Turn) -> Sums:
    grids, generator = grids_of(guard.noise, turn, sums.values), turn.draws("server", "noise").torch()
    deviations = told(grids)
    noisy = {
        name: values + torch.randn(values.shape, generator=generator) * deviations[name]
        for name, values in sums.values.items()
    }
    spend(grids, turn)
    return replace(sums, values=noisy, noise=deviations)


def _cluster_sums(
    points: Points,
    labels: Tensor,
    clusters: int,
    bound: float,
    units: int,
    anchors: Tensor,
    norms: NDArray[np.float64] | None = None,
) -> Tensor:
    if norms is not None:
        norms[:] = lloyd.row_norms(points.x, anchors, labels).numpy()
    return lloyd.cluster_sums(points, labels, clusters, RecordClip(bound), anchors).value.double().mul_(units / bound)


def _outer_products(points: Points, bound: float, anchor: Tensor) -> tuple[Tensor, float]:
    return lloyd.packed_outer_products(points, RecordClip(bound), anchor).value.div(bound**2 * STEP), 1.0


def _client_sums(points: Points, labels: Tensor, clusters: int, anchors: Tensor) -> Tensor:
    return lloyd.cluster_sums(points, labels, clusters, Unclipped(), anchors).value


def _in_bounds(rows: Tensor, bound: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return rows / lengths.clamp_min(bound).view(-1, *[1] * (rows.dim() - 1))


FLOATS: Mapping[str, Callable[..., object]] = {
    "nearest": lambda x, centres, alone=False: lloyd.nearest(x, centres),
    "project": lambda x, subspace, anchor=None, alone=False: lloyd.project(x, subspace, anchor),
    "exact_cluster_sums": _cluster_sums,
    "exact_outer_products": _outer_products,
    "client_outer_products": lambda points, anchor: lloyd.packed_outer_products(points, Unclipped(), anchor).value,
    "exact_counts": lambda points, labels, clusters, steps=1: lloyd.counts(points, labels, clusters).double() * steps,
    "sums_by_client": _client_sums,
    "_in_steps": _in_bounds,
}
"""What takes the place of each kernel in ``coterie.learn.clusters.statistics``."""
