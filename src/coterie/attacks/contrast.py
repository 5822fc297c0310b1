"""Reading a property as a difference from what was imagined of the same round and cluster.

Models of different rounds and clusters move far more differently than a property makes any of them move. The published
forest has to learn around that from a thousand examples. Taken off, little but the property is left, and a linear
reader that weighs thousands of small differences finds what no single one of them shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.updates import Features, log_magnitudes
from coterie.errors import require
from coterie.learn.params import Params


@dataclass(frozen=True)
class Contrast:
    """How to look at updates: features less their mean over the round's imagined aggregates, by a ridge regression.

    Every round that is scored must be imagined. ``penalty`` is in units of a feature's variance.
    """

    features: Features = log_magnitudes
    penalty: float = 3.0

    def __post_init__(self) -> None:
        require(self.penalty > 0, "penalty", self.penalty, "must be positive; 3 is usual")

    def __call__(self, updates: Params, most: int) -> Tensor:
        return self.features(updates, most)

    def reader(self, made: Tensor, has: Tensor) -> Callable[[Tensor], Tensor]:
        """Scores of rows (rows, features), learnt from differences ``made`` and whether each ``has`` the property."""
        centre, spread = made.mean(0), made.std(0) + 1e-6
        rows = (made - centre) / spread
        wanted = 2.0 * has.to(rows.dtype) - 1
        # as many equations as there are rows: of a large model there are more features than that
        kernel = rows @ rows.T
        kernel.diagonal().add_(self.penalty * len(rows))
        weights = rows.T @ torch.linalg.solve(kernel, wanted)
        return lambda seen: ((seen - centre) / spread) @ weights
