"""FedDP-KMeans (Scott, Lampert and Saulpic 2025) straight on the kernels: no ring, no messages, no guards.

``published`` is the algorithm with the parameters of the public runs, except that noise on outer products is scaled to
their real sensitivity. ``anchored`` spends one budget on Gaussian noise only, and measures everything from what is
already public: the mean of the server's data at first, then the centres released so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import dp_accounting
import torch
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
from torch import Tensor

from coterie.learn.clusters.clipping import Bounded, ClientClip, Clip, RecordClip, Unclipped, bounded, clip_clients
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import (
    cluster_sums,
    counts,
    leading_subspace,
    moved_centres,
    nearest,
    packed_outer_products,
    project,
    unpack_symmetric,
)
from coterie.learn.clusters.points import Points
from coterie.privacy.accounting import split_gaussian
from coterie.rng import Rng

DELTA = 1e-6


def cluster_counts(points: Points, labels: Tensor, clusters: int, clip: Clip) -> Bounded:
    """With its sensitivity: one record is one count, however its norm is clipped."""
    return bounded(counts(points, labels, clusters), clip, lambda _: (1.0, 1.0))


def cluster_means(sums: Tensor, heads: Tensor) -> Tensor:
    """Sums over counts where there is something to count, zero elsewhere."""
    return sums / heads.clamp_min(1).unsqueeze(-1)


@dataclass(frozen=True)
class Run:
    centres: Tensor
    events: list[DpEvent]


@dataclass(frozen=True)
class Mixture:
    """The paper's Gaussians: means uniform in the unit cube, variance 0.5; the server has 100 uniform points beside."""

    points: Points
    labels: Tensor
    server: Tensor
    means: Tensor

    @staticmethod
    def draw(clients: int, each: int, rng: Rng, clusters: int = 10, features: int = 100) -> Mixture:
        means = torch.rand(clusters, features, generator=rng.child("means").torch())
        generator = rng.child("points").torch()
        labels = torch.randint(clusters, (clients * each,), generator=generator)
        x = torch.randn(clients * each, features, generator=generator).mul_(math.sqrt(0.5)).add_(means[labels])
        own = means.repeat_interleave(20, 0)
        server = own + math.sqrt(0.5) * torch.randn(own.shape, generator=rng.child("server").torch())
        uniform = torch.rand(100, features, generator=rng.child("uniform").torch())
        points = Points(x, torch.arange(clients + 1) * each)
        return Mixture(points, labels, torch.cat([server, uniform]), means)


def gaussian(value: Tensor, deviation: float, rng: Rng, name: str) -> Tensor:
    return value + deviation * torch.randn(value.shape, generator=rng.child(name).torch())


def laplace(value: Tensor, scale: float, rng: Rng, name: str) -> Tensor:
    return value + torch.as_tensor(rng.child(name).numpy().laplace(0, scale, value.shape), dtype=value.dtype)


def sigma(epsilon: float) -> float:
    return float(dp_accounting.get_sigma_gaussian(epsilon, DELTA))


def server_centres(points: Tensor, weights: Tensor, clusters: int, least: float, rng: Rng) -> Tensor:
    """Points below the least weight are dropped, unless too few are left."""
    kept = torch.where(weights >= least, weights, 0.0)
    if int((kept > 0).sum()) < clusters:
        kept = weights.clamp_min(1e-3)
    return weighted_kmeans(points, kept, clusters, rng.child("server k-means"), restarts=20).centres[0]


def published(data: Mixture, clusters: int, record_level: bool, rng: Rng) -> Run:
    points, server = data.points, data.server
    outer = packed_outer_products(points, RecordClip(11.0) if record_level else ClientClip(1500.0))
    noisy = gaussian(outer.value.sum(0), sigma(1.0) * outer.l2, rng, "outer product")
    subspace = leading_subspace(unpack_symmetric(noisy, points.features), clusters)
    seen, known = project(points.x, subspace), project(server, subspace)
    histogram = counts(points, nearest(seen, known), len(known))
    if not record_level:
        histogram = histogram / histogram.sum(1, keepdim=True)
    weights = laplace(histogram.sum(0), 1.0, rng, "weights")
    labels = nearest(seen, server_centres(known, weights, clusters, 5.0, rng))
    events: list[DpEvent] = [GaussianDpEvent(sigma(1.0)), LaplaceDpEvent(1.0)]
    if not record_level:
        each = counts(points, labels, clusters)
        means = cluster_means(cluster_sums(points, labels, clusters, Unclipped()).value, each)
        total = gaussian(clip_clients(means, ClientClip(21.0)).value.sum(0), sigma(1.0) * 21, rng, "means")
        heads = laplace((each > 0).float().sum(0), 10 / 0.2, rng, "contributors")
        events += [GaussianDpEvent(sigma(1.0)), LaplaceDpEvent(5.0)]
        return Run(moved_centres(torch.zeros_like(total), total, heads), events)
    centres = torch.zeros(clusters, points.features)
    for step in range(2):  # from the projection, and one step of Lloyd
        labels = labels if step == 0 else nearest(points.x, centres)
        total = cluster_sums(points, labels, clusters, RecordClip(11.0)).value.sum(0)
        total = gaussian(total, sigma(0.5) * 11, rng, f"sums {step}")
        heads = laplace(counts(points, labels, clusters).sum(0), 2.0, rng, f"counts {step}")
        centres = moved_centres(torch.zeros_like(total), total, heads)
        events += [GaussianDpEvent(sigma(0.5)), LaplaceDpEvent(2.0)]
    return Run(centres, events)


@dataclass(frozen=True)
class Plan:
    """Shares of the squared signal-to-noise ratio, and clipping bounds, step by step."""

    record_level: bool
    shares: Mapping[str, float]
    outer_clip: float
    sums_clip: float
    histogram_clip: float = 1.0
    lloyd_steps: int = 0
    least_deviations: float = 3.0


RECORD = Plan(
    True,
    {"outer": 0.2, "weights": 0.1, "sums": 0.1, "counts": 0.01, "sums 1": 2.0, "counts 1": 0.01},
    outer_clip=8.0,
    sums_clip=7.5,
    lloyd_steps=1,
)
CLIENT = Plan(
    False,
    {"outer": 1.0, "weights": 0.5, "sums": 2.0, "counts": 0.05},
    outer_clip=500.0,
    sums_clip=11.0,
    histogram_clip=9.0,
)


def anchored(data: Mixture, clusters: int, epsilon: float, plan: Plan, rng: Rng) -> Run:
    points, server = data.points, data.server
    noise = split_gaussian(epsilon, DELTA, plan.shares)
    clip = RecordClip if plan.record_level else ClientClip
    middle = server.mean(0)
    outer = packed_outer_products(points, clip(plan.outer_clip), middle)
    noisy = gaussian(outer.value.sum(0), noise["outer"] * outer.l2, rng, "outer product")
    subspace = leading_subspace(unpack_symmetric(noisy, points.features), clusters)
    seen, known = project(points.x, subspace, middle), project(server, subspace, middle)
    histogram = cluster_counts(points, nearest(seen, known), len(known), clip(plan.histogram_clip))
    deviation = noise["weights"] * histogram.l2
    weights = gaussian(histogram.value.sum(0), deviation, rng, "weights")
    projected = server_centres(known, weights, clusters, plan.least_deviations * deviation, rng)
    centres = middle + projected @ subspace
    labels = nearest(seen, projected)
    for step in range(1 + plan.lloyd_steps):
        suffix = f" {step}" if step else ""
        labels = labels if step == 0 else nearest(points.x, centres)
        centres = _moved(points, labels, centres, plan, (noise["sums" + suffix], noise["counts" + suffix]), rng, step)
    return Run(centres, [GaussianDpEvent(z) for z in noise.values()])


def _moved(
    points: Points, labels: Tensor, centres: Tensor, plan: Plan, noise: tuple[float, float], rng: Rng, step: int
) -> Tensor:
    clusters = len(centres)
    if plan.record_level:
        sums = cluster_sums(points, labels, clusters, RecordClip(plan.sums_clip), centres)
        heads = cluster_counts(points, labels, clusters, RecordClip(plan.sums_clip))
    else:
        each = counts(points, labels, clusters)
        means = cluster_means(cluster_sums(points, labels, clusters, Unclipped(), centres).value, each)
        sums = clip_clients(means, ClientClip(plan.sums_clip))
        heads = clip_clients((each > 0).float(), ClientClip(math.sqrt(clusters)))
    total = gaussian(sums.value.sum(0), noise[0] * sums.l2, rng, f"sums {step}")
    number = gaussian(heads.value.sum(0), noise[1] * heads.l2, rng, f"counts {step}")
    return moved_centres(centres, total, number, least=max(1.0, 2 * noise[1] * heads.l2))
