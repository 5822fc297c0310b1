"""Means that a few bad rows cannot move far: numeric kernels of robust aggregation."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 1 << 16  # that are looked at together: sorting takes several times their memory


def trimmed_mean(rows: Tensor, weights: Tensor, share: float) -> Tensor:
    """(columns,) of rows (rows, columns): in every column the mean without this share of the weight at either end.

    A row on the edge counts by the part of its weight that lies inside. At a share of one half nothing is left but the
    middle, which is the weighted median: halfway between the two rows next to it where it falls between them.
    """
    return torch.cat([_trimmed(part, weights.double(), share) for part in rows.split(COLUMNS, dim=1)])


def _trimmed(rows: Tensor, weights: Tensor, share: float) -> Tensor:
    values, order = rows.double().sort(0)
    own = weights[order]  # (rows, columns)
    upto = own.cumsum(0)
    total = weights.sum()
    if share >= 0.5:
        slack = 1e-9 * total
        low = (upto >= total / 2 - slack).int().argmax(0, keepdim=True)
        high = (upto > total / 2 + slack).int().argmax(0, keepdim=True)
        return (values.gather(0, low) / 2 + values.gather(0, high) / 2)[0]
    inside = (upto.clamp_max((1 - share) * total) - (upto - own).clamp_min(share * total)).clamp_min(0)
    return (inside * values).sum(0) / inside.sum(0)


def krum_scores(rows: Tensor, bad: int) -> Tensor:
    """(rows,): the sum of squared distances to the nearest of the others, as many as are good if ``bad`` are not.

    Krum (Blanchard et al. 2017), Section 4: of n rows, the n - bad - 2 nearest.
    """
    distances = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in rows.split(COLUMNS, dim=1):
        # Not by products: far rows would drown the distances of near ones.
        distances += torch.cdist(part.double(), part.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = distances.fill_diagonal_(torch.inf).sort(1).values
    return nearest[:, : max(1, len(rows) - bad - 2)].sum(1)
