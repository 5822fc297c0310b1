"""Federated k-means client by client and point by point, in float64: slow, and obviously right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest(x: Array, centres: Array) -> NDArray[np.int64]:
    return np.array([np.argmin([np.sum((point - centre) ** 2) for centre in centres]) for point in x], dtype=np.int64)


def clip(vector: Array, bound: float | None) -> Array:
    norm = float(np.linalg.norm(vector))
    return vector if bound is None or norm <= bound else vector * (bound / norm)


def sums_and_counts(
    x: Array, labels: NDArray[np.int64], clusters: int, bound: float | None = None, anchors: Array | None = None
) -> tuple[Array, Array]:
    """One client's statistics, each record clipped about its anchor."""
    sums, counts = np.zeros((clusters, x.shape[1])), np.zeros(clusters)
    for point, label in zip(x, labels, strict=True):
        sums[label] += clip(point if anchors is None else point - anchors[label], bound)
        counts[label] += 1
    return sums, counts


def outer_product(x: Array, bound: float | None = None, anchor: Array | None = None) -> Array:
    total = np.zeros((x.shape[1], x.shape[1]))
    for point in x:
        record = clip(point if anchor is None else point - anchor, bound)
        total += np.outer(record, record)
    return total


def lloyd(x: Array, weights: Array, centres: Array, steps: int) -> tuple[Array, float]:
    """Weighted Lloyd; an empty cluster keeps its centre. Returns centres and weighted cost."""
    for _ in range(steps):
        labels = nearest(x, centres)
        moved = centres.copy()
        for cluster in range(len(centres)):
            mine = labels == cluster
            if weights[mine].sum() > 0:
                moved[cluster] = (weights[mine, None] * x[mine]).sum(0) / weights[mine].sum()
        if np.array_equal(moved, centres):
            break
        centres = moved
    labels = nearest(x, centres)
    return centres, float((weights * ((x - centres[labels]) ** 2).sum(1)).sum())
