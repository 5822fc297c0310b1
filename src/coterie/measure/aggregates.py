"""What a cluster's aggregate updates look like to whoever sees them (paper 000, Figures 2 to 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cosine_similarity

from coterie.attacks.updates import aggregates, directions
from coterie.data.federation import Federation
from coterie.learn.params import flatten, stack
from coterie.measure.witness import Witness
from coterie.rng import Rng
from coterie.wire.view import View


def consecutive_cosines(view: View, warmup: int) -> dict[str, list[float]]:
    """Figure 4: by cluster, the similarity of each aggregate update with the one before it."""
    last: dict[int, tuple[int, torch.Tensor]] = {}
    found: dict[str, list[float]] = {}
    for observed in aggregates(view, warmup):
        update = flatten(observed.update, 0)
        before = last.get(observed.slot)
        if before is not None and before[0] == observed.round - 1:
            similarity = float(cosine_similarity(before[1], update, 0))
            found.setdefault(str(observed.slot), []).append(round(similarity, 4))
        last[observed.slot] = (observed.round, update)
    return found


def pictured(view: View, witness: Witness, federation: Federation, warmup: int, rng: Rng) -> dict[str, Any]:
    """Figures 2 and 3: t-SNE of the aggregate updates, and how well neighbours tell the property without it."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    answers = witness.property_truth(federation).answers
    seen = [observed for observed in aggregates(view, warmup) if (observed.round, observed.slot) in answers]
    points = torch.cat([directions(stack([observed.update])) for observed in seen]).double().numpy()
    has = np.array([answers[observed.round, observed.slot] for observed in seen])
    flat = PCA(min(50, *points.shape), random_state=0).fit_transform(points)
    plane = TSNE(perplexity=min(30, len(points) / 4), init="pca", random_state=rng.seed() % 2**32).fit_transform(flat)
    return {
        "slots": [observed.slot for observed in seen],
        "has": has.astype(int).tolist(),
        "x": np.round(plane[:, 0], 3).tolist(),
        "y": np.round(plane[:, 1], 3).tolist(),
        "neighbour_auc": neighbour_auc(flat, has),
    }


def neighbour_auc(points: NDArray[np.float64], has: NDArray[np.bool_], neighbours: int = 10) -> float:
    """How well the share of property updates among a point's neighbours tells whether it is one."""
    from sklearn.metrics import roc_auc_score
    from sklearn.neighbors import NearestNeighbors

    if has.all() or not has.any():
        return float("nan")
    count = min(neighbours, len(points) - 1)
    near = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(return_distance=False)
    return float(roc_auc_score(has, has[near].mean(1)))
