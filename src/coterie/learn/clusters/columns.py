"""What a party that holds some columns of all records computes: how far each record is from each centre, and means."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learn.clusters.clipping import Unclipped
from coterie.learn.clusters.lloyd import cluster_sums, counts
from coterie.learn.clusters.points import Points, chunk_rows, chunks_about


def squared_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of (x - c)^2. Sums over parties are squared Euclidean distances.

    Products are taken about the mean of the centres, so that data far from the origin keep their digits.
    """
    middle = centres.mean(0)
    shifted = centres - middle
    lengths = shifted.square().sum(1)
    for rows, about in chunks_about(x, middle, extra=2 * len(centres)):
        here = out[rows]
        torch.addmm(lengths, about, shifted.T, alpha=-2, out=here)
        here.add_(about.square_().sum(1, keepdim=True)).clamp_min_(0)


def absolute_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of |x - c|, each column's own Euclidean distance."""
    size = chunk_rows(x.shape[1] * (len(centres) + 1))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        out[rows] = torch.cdist(x[rows], centres, p=1.0)


def means_by_label(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(centres, columns): the mean of the records of each label. One that no record has keeps its centre."""
    points = Points(x, torch.tensor([0, len(x)]), finite=True)
    heads = counts(points, labels, len(centres))[0].unsqueeze(1)
    moved = cluster_sums(points, labels, len(centres), Unclipped(), centres).value[0] / heads.clamp_min(1)
    return torch.where(heads > 0, centres + moved, centres)
