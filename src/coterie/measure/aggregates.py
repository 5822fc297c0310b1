"""What a cluster's aggregate updates look like to whoever sees them (paper 000, Figures 2 to 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from coterie.attacks.updates import aggregates, directions
from coterie.learn.params import flatten, stack
from coterie.measure.judge import YesNo
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.view import View

NEIGHBOURS = 10  # of a point, by whose share of property updates it is told
MOST_PICTURED = 2000  # aggregates: the paper's own figure shows those of the first 1,000 rounds


@register
@dataclass
class Steadiness:
    """How a run's aggregate updates look as the rounds go by: what Figures 2 to 4 are drawn from."""

    warmup: int
    pictured: bool = False  # whether points for Figures 2 and 3 are kept
    following: int = 0  # the next round to look at
    cosines: dict[str, list[float]] = field(default_factory=dict)  # by cluster: of each aggregate with the one before
    last: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    keys: list[tuple[int, int]] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)

    def look(self, view: View) -> None:
        """At all rounds whose outcome has been published since the last time."""
        for observed in aggregates(view, max(self.warmup, self.following)):
            update = flatten(observed.update, 0)
            before = self.last.get(observed.slot)
            if before is not None and before[0] == observed.round - 1:
                similarity = float(cosine_similarity(before[1], update, 0))
                self.cosines.setdefault(str(observed.slot), []).append(round(similarity, 4))
            self.last[observed.slot] = (observed.round, update)
            if self.pictured and len(self.keys) < MOST_PICTURED:
                self.keys.append((observed.round, observed.slot))
                self.points.append(directions(stack([observed.update])))
        self.following = max(self.following, *(seen + 1 for seen, _ in self.last.values()), 0)

    def picture(self, truth: YesNo, rng: Rng) -> dict[str, Any]:
        """Figures 2 and 3: t-SNE of the aggregates, and how well neighbours tell the property without it."""
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE

        places = [place for place, key in enumerate(self.keys) if key in truth.answers]
        points = torch.cat([self.points[place] for place in places]).double().numpy()
        has = np.array([truth.answers[self.keys[place]] for place in places])
        flat = PCA(min(50, *points.shape), random_state=0).fit_transform(points)
        seed = rng.seed() % 2**32
        plane = TSNE(perplexity=min(30, len(points) / 4), init="pca", random_state=seed).fit_transform(flat)
        return {
            "slots": [self.keys[place][1] for place in places],
            "has": has.astype(int).tolist(),
            "x": np.round(plane[:, 0], 3).tolist(),
            "y": np.round(plane[:, 1], 3).tolist(),
            "neighbour_auc": neighbour_auc(flat, has),
        }


def neighbour_auc(points: NDArray[np.float64], has: NDArray[np.bool_]) -> float:
    """How well the share of property updates among a point's neighbours tells whether it is one."""
    from sklearn.metrics import roc_auc_score
    from sklearn.neighbors import NearestNeighbors

    if has.all() or not has.any():
        return float("nan")
    count = min(NEIGHBOURS, len(points) - 1)
    near = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(return_distance=False)
    return float(roc_auc_score(has, has[near].mean(1)))
