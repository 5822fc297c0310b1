"""k-means++ and weighted Lloyd for a batch of small problems at once: a server's restarts, or k-FED's clients.

Every problem is a row of a batch (problems, points, features); a point of weight 0 is padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.errors import require
from coterie.learn.clusters.lloyd import nearest
from coterie.learn.clusters.points import Points
from coterie.rng import Rng

BATCH_FLOATS = 1 << 24
"""Working memory of one batch of clients, in floats (64 MiB)."""


@dataclass(frozen=True)
class Clustering:
    """The answer for each problem of the batch. A centre of weight 0 stands for no point."""

    centres: Tensor  # (problems, clusters, features)
    weights: Tensor  # (problems, clusters): the weight of the points it stands for
    costs: Tensor  # (problems,): weighted sum of squared distances


def _squared(x: Tensor, centres: Tensor) -> Tensor:
    """(problems, points, centres); the batch is centred, so float32 has the digits."""
    inner = torch.baddbmm(x.square().sum(2, keepdim=True), x, centres.transpose(1, 2), alpha=-2)
    return inner.add_(centres.square().sum(2).unsqueeze(1)).clamp_min_(0)


def _labels(x: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point, (problems, points). What is the same for all of them is left out."""
    half = centres.square().sum(2).unsqueeze(1) / 2
    scores = torch.baddbmm(half, x, centres.transpose(1, 2), alpha=-1)
    return torch.from_numpy(np.argmin(scores.numpy(), axis=2))


def _draw(mass: Tensor, uniforms: Tensor) -> Tensor:
    """Indices drawn in proportion to mass (problems, points), one for each uniform (problems, draws)."""
    cumulated = mass.double().cumsum(1)
    # A uniform times the total may round up to the total; the last point of positive mass is then due.
    last = (mass > 0).long().mul(torch.arange(1, mass.shape[1] + 1)).argmax(1, keepdim=True)
    picked = torch.searchsorted(cumulated, uniforms.double() * cumulated[:, -1:], right=True)
    return torch.minimum(picked, last)


def seeds(x: Tensor, weights: Tensor, uniforms: Tensor) -> Tensor:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): of a few candidates drawn by D^2, the best one stays.

    ``uniforms`` (problems, clusters, candidates) holds all the randomness: each problem can have its own stream.
    """
    problems, clusters, _ = uniforms.shape
    rows = torch.arange(problems)
    chosen = [x[rows, _draw(weights, uniforms[:, 0, :1])[:, 0]]]
    distance = _squared(x, chosen[0].unsqueeze(1))[:, :, 0]
    for cluster in range(1, clusters):
        mass = distance * weights
        # Fewer distinct points than clusters: nothing is left to cover, so any point will do.
        mass = torch.where(mass.sum(1, keepdim=True) > 0, mass, weights)
        drawn = _draw(mass, uniforms[:, cluster])  # (problems, candidates)
        proposals = x[rows.unsqueeze(1), drawn]  # (problems, candidates, features)
        closer = torch.minimum(_squared(x, proposals), distance.unsqueeze(2))
        best = (closer * weights.unsqueeze(2)).sum(1).argmin(1)
        chosen.append(proposals[rows, best])
        distance = closer[rows, :, best]
    return torch.stack(chosen, 1)


def lloyd(x: Tensor, weights: Tensor, centres: Tensor, steps: int) -> Clustering:
    """Weighted Lloyd until no label changes. An empty cluster keeps its centre."""
    labels = torch.full(x.shape[:2], -1)
    for _ in range(steps):
        updated = _labels(x, centres)
        if torch.equal(updated, labels):
            break
        labels = updated
        share = torch.zeros(*labels.shape, centres.shape[1]).scatter_(2, labels.unsqueeze(2), weights.unsqueeze(2))
        mass = share.sum(1).unsqueeze(2)  # (problems, clusters, 1)
        means = torch.bmm(share.transpose(1, 2), x) / mass.clamp_min(torch.finfo(x.dtype).tiny)
        centres = torch.where(mass > 0, means, centres)
    distance, labels = _squared(x, centres).min(2)
    mass = torch.zeros(centres.shape[:2]).scatter_add_(1, labels, weights)
    return Clustering(centres, mass, (distance * weights).sum(1))


def candidates_of(clusters: int) -> int:
    return 2 + int(math.log(clusters))


def weighted_kmeans(
    x: Tensor, weights: Tensor, clusters: int, rng: Rng, restarts: int = 10, steps: int = 300
) -> Clustering:
    """The best of several restarts on one weighted set of points, as a batch of one."""
    require(len(x) == len(weights), "len(weights)", len(weights), f"must equal len(x)={len(x)}")
    require(
        bool((weights >= 0).all()),
        "weights",
        float(weights.min()),
        "must not be negative; clip noise at 0 first",
    )
    positive = weights > 0
    filled = int(positive.sum())
    require(
        1 <= clusters <= filled,
        "clusters",
        clusters,
        f"must lie in 1..{filled}, the points of positive weight",
    )
    middle = x[positive].mean(0)
    batch = (x[positive] - middle).expand(restarts, -1, -1)
    mass = weights[positive].to(x.dtype).expand(restarts, -1)
    uniforms = torch.rand(restarts, clusters, candidates_of(clusters), generator=rng.child("k-means++").torch())
    found = lloyd(batch, mass, seeds(batch, mass, uniforms), steps)
    best = int(found.costs.argmin())
    return Clustering(
        found.centres[best : best + 1] + middle, found.weights[best : best + 1], found.costs[best : best + 1]
    )


def _batches(sizes: Tensor, floats_a_point: int) -> list[Tensor]:
    """Clients of like size together, so that padding is little, in batches of bounded memory."""
    order = sizes.argsort(stable=True)
    batches: list[Tensor] = []
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * int(sizes[order[stop]]) * floats_a_point <= BATCH_FLOATS:
            stop += 1
        batches.append(order[start:stop])
        start = stop
    return batches


def _masses(points: Points) -> Tensor:
    """The weight of each client's points, (clients,)."""
    each = torch.ones(len(points.x)) if points.weights is None else points.weights
    return torch.zeros(points.clients).index_add_(0, points.owners().long(), each)


def _padded(points: Points, clients: Tensor) -> tuple[Tensor, Tensor]:
    sizes = points.sizes[clients]
    longest = int(sizes.max())
    steps = torch.arange(longest)
    present = (steps < sizes.unsqueeze(1)).float()  # (clients, longest)
    rows = (points.offsets[clients].unsqueeze(1) + steps).clamp_max(len(points.x) - 1)
    weights = present if points.weights is None else present * points.weights[rows]
    return points.x[rows] * present.unsqueeze(2), weights


def _projected(x: Tensor, dimensions: int) -> Tensor:
    """x projected on the span of its own leading singular vectors, problem by problem."""
    if dimensions >= min(x.shape[1:]):
        return x
    if x.shape[1] <= x.shape[2]:
        left = _leading(torch.bmm(x, x.transpose(1, 2)), dimensions)
        return torch.bmm(left, torch.bmm(left.transpose(1, 2), x))
    right = _leading(torch.bmm(x.transpose(1, 2), x), dimensions)
    return torch.bmm(torch.bmm(x, right), right.transpose(1, 2))


def _leading(gram: Tensor, dimensions: int) -> Tensor:
    """Eigenvectors of the largest eigenvalues. In float32 LAPACK gives up on many equal ones, as one-hot data have."""
    vectors: Tensor = torch.linalg.eigh(gram.double()).eigenvectors
    return vectors[:, :, -dimensions:].to(gram.dtype)


def _by_proximity(x: Tensor, weights: Tensor, projected: Tensor, centres: Tensor, margin: float) -> Tensor:
    """Means in the full space of the points that lie clearly nearest to one projected centre."""
    distance = _squared(projected, centres)
    two, order = distance.topk(min(2, centres.shape[1]), dim=2, largest=False)
    clear = two[..., 0] <= margin**2 * two[..., -1] if centres.shape[1] > 1 else torch.ones_like(weights).bool()
    share = torch.zeros_like(distance).scatter_(2, order[..., :1], (weights * clear).unsqueeze(2))
    mass = share.sum(1).unsqueeze(2)
    means = torch.bmm(share.transpose(1, 2), x) / mass.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(mass > 0, means, centres)


def local_kmeans(
    points: Points, clusters: int, rng: Rng, ids: Tensor | None = None, margin: float = 1.0, steps: int = 100
) -> Clustering:
    """k-means on each client's own points: k-FED's local step (Dennis et al. 2021, after Awasthi and Sheffet).

    Project on the leading singular vectors, cluster there, take the means of the points that are ``margin`` times
    nearer to one centre than to the next, and run Lloyd in the full space. The analysis has a margin of 1/3; on
    overlapping mixtures hardly a point is that clear, and 1 (every point counts) is better. Where no point is
    clear, the projected centre itself is the start. A client with fewer distinct points than clusters returns
    centres of weight 0 for the rest, and one without points (or with points of weight 0 alone) no others. Each client
    draws from its own stream, so its answer does not depend on the company.
    """
    require(clusters >= 1, "clusters", clusters, "must be at least 1")
    ids = torch.arange(points.clients) if ids is None else ids
    shape = (clusters, candidates_of(clusters))
    centres = torch.zeros(points.clients, clusters, points.features)
    weights = torch.zeros(points.clients, clusters)
    costs = torch.zeros(points.clients)
    filled = _masses(points).nonzero().flatten()
    for places in _batches(points.sizes[filled], 3 * points.features + 4 * clusters):
        batch = filled[places]
        x, present = _padded(points, batch)
        middle = (x * present.unsqueeze(2)).sum(1, keepdim=True) / present.sum(1)[:, None, None]
        x = (x - middle) * (present > 0).unsqueeze(2)
        uniforms = torch.stack(
            [torch.rand(shape, generator=rng.child("client", int(i), "k-means++").torch()) for i in ids[batch]]
        )
        flat = _projected(x, clusters)
        coarse = lloyd(flat, present, seeds(flat, present, uniforms), steps)
        start = _by_proximity(x, present, flat, coarse.centres, margin)
        found = lloyd(x, present, start, steps)
        centres[batch] = found.centres + middle
        weights[batch], costs[batch] = found.weights, found.costs
    return Clustering(centres, weights, costs)


def farthest_first(x: Tensor, start: Tensor, clusters: int) -> Tensor:
    """``start``, and then again and again the point of x that is farthest from all chosen so far."""
    chosen = list(start[:clusters])
    distance = torch.cdist(x, start).min(1).values
    while len(chosen) < clusters:
        chosen.append(x[int(distance.argmax())])
        distance = torch.minimum(distance, torch.linalg.vector_norm(x - chosen[-1], dim=1))
    return torch.stack(chosen)


def merge_local_centres(local: Clustering, clusters: int, rng: Rng) -> Tensor:
    """k-FED's server step: one client's centres, filled up farthest first, and one step of Lloyd on all of them.

    The local centres count alike, whatever their weights, as in the paper. Those of weight 0 are left out. Where every
    client looked for as many as there are to be, and all together found fewer, some coincide.
    """
    real = local.weights > 0
    available = int(real.sum())
    if 0 < available < clusters == local.weights.shape[1]:
        return local.centres[real][torch.arange(clusters) % available]
    require(
        1 <= clusters <= available,
        "clusters",
        clusters,
        f"must lie in 1..{available}, the local centres there are",
    )
    able = real.any(1).nonzero().flatten()
    client = int(able[torch.randint(len(able), (1,), generator=rng.child("first client").torch())])
    pool = local.centres[real]
    centres = farthest_first(pool, local.centres[client][real[client]], clusters)
    labels = nearest(pool, centres)
    sums = torch.zeros_like(centres).index_add_(0, labels, pool)
    mass = torch.bincount(labels, minlength=clusters).unsqueeze(1)
    return torch.where(mass > 0, sums / mass.clamp_min(1), centres)
