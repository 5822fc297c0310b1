"""How good a clustering is: its cost, and its agreement with the truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from coterie.errors import require
from coterie.learn.clusters.lloyd import nearest, squared_distances

Counts = NDArray[np.int64]


def kmeans_cost(x: Tensor, centres: Tensor) -> float:
    """The mean squared distance of a point to its nearest centre, as in the paper's figures."""
    require(len(x) > 0, "points", len(x), "must be at least 1")
    return float(squared_distances(x, centres, nearest(x, centres)).double().mean())


def contingency(predicted: Tensor, truth: Tensor) -> Counts:
    """How many points are in each predicted cluster (row) and each true one (column)."""
    require(len(predicted) == len(truth), "len(predicted)", len(predicted), f"must equal len(truth)={len(truth)}")
    require(len(truth) > 0, "labels", 0, "must be at least 1")
    rows, row_of = np.unique(predicted.numpy(), return_inverse=True)
    columns, column_of = np.unique(truth.numpy(), return_inverse=True)
    table = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(table, (row_of, column_of), 1)
    return table


def accuracy(predicted: Tensor, truth: Tensor) -> float:
    """The share of points that agree under the best one-to-one naming of clusters (Hungarian method)."""
    table = contingency(predicted, truth)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


def weighted_f(predicted: Tensor, truth: Tensor) -> float:
    """The F value of each class weighed by its size (paper 003, Eq. 11 to 15), clusters matched to classes one to one.

    The paper does not say how they are matched; here by the Hungarian method on the F values themselves.
    """
    table = contingency(predicted, truth)
    scores = 2 * table / (table.sum(1, keepdims=True) + table.sum(0, keepdims=True))
    rows, columns = linear_sum_assignment(scores * table.sum(0), maximize=True)
    return float((scores[rows, columns] * table.sum(0)[columns]).sum() / table.sum())


def purity(predicted: Tensor, truth: Tensor) -> float:
    """The share of points in the majority of their predicted cluster: what the paper calls accuracy.

    Never below ``accuracy``, because several clusters may carry one name; it favours many clusters.
    """
    table = contingency(predicted, truth)
    return float(table.max(1).sum() / table.sum())


def adjusted_rand(predicted: Tensor, truth: Tensor) -> float:
    """1 for the same partition, 0 on average for a random one."""
    return float(adjusted_rand_score(truth.numpy(), predicted.numpy()))


def mutual_information(predicted: Tensor, truth: Tensor) -> float:
    """Normalised mutual information, in [0, 1]."""
    return float(normalized_mutual_info_score(truth.numpy(), predicted.numpy()))
