"""What a party that holds some columns of all records computes: how far each record is from each centre, and means."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learn.clusters.lloyd import added
from coterie.learn.clusters.points import chunk_rows

ROWS = 1 << 15  # records looked at together: what is computed of them stays in the cache


def squared_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of (x - c)^2. Sums over parties are squared Euclidean distances.

    Products are taken about the mean of the centres, so that data far from the origin keep their digits, and with
    records as the long axis, which is what products of so few columns and centres are fastest in.
    """
    middle = centres.mean(0).unsqueeze(1)
    shifted = centres - middle.T
    lengths = shifted.square().sum(1, keepdim=True)
    size = min(ROWS, len(x))
    about, found = x.new_empty(x.shape[1], size), x.new_empty(len(centres), size)
    for start in range(0, len(x), ROWS):
        rows = slice(start, start + ROWS)
        count = len(x[rows])
        torch.sub(x[rows].T, middle, out=about[:, :count])
        torch.addmm(lengths, shifted, about[:, :count], alpha=-2, out=found[:, :count])
        squares = about[:, :count].square_().sum(0)
        out[rows] = found[:, :count].add_(squares).clamp_min_(0).T


def absolute_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of |x - c|, each column's own Euclidean distance."""
    size = chunk_rows(x.shape[1] * (len(centres) + 1))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        out[rows] = torch.cdist(x[rows], centres, p=1.0)


def means_by_label(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(centres, columns): the mean of the records of each label. One that no record has keeps its centre."""
    sums = added_by_label(x, labels, len(centres))
    heads = torch.bincount(labels, minlength=len(centres)).unsqueeze(1)
    return torch.where(heads > 0, (sums / heads.clamp_min(1)).to(centres.dtype), centres)


def added_by_label(x: Tensor, labels: Tensor, count: int) -> Tensor:
    """(labels, columns): the sum of the records of each label, in doubles."""
    sums = torch.zeros(count, x.shape[1], dtype=torch.float64)
    ones = torch.ones(min(ROWS, len(x)), dtype=torch.float64)
    for part, mine in zip(x.split(ROWS), labels.int().split(ROWS), strict=True):
        sums += added(part.double(), mine, count, ones[: len(part)])
    return sums
