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

from coterie.attacks.updates import Features, magnitudes
from coterie.errors import require
from coterie.learn.params import Params

SMALLEST = 1e-5  # of an update's norm: what is below counts as nothing


@dataclass(frozen=True)
class Contrast:
    """How to look at updates: features less their mean over the round's imagined aggregates, by a ridge regression.

    Every round that is scored must be imagined. ``penalty`` is in units of a feature's variance. In ``logarithms`` what
    makes one update longer than another is taken off like any other difference; features with signs have none.
    """

    features: Features = magnitudes
    logarithms: bool = True
    penalty: float = 3.0

    def __post_init__(self) -> None:
        require(self.penalty > 0, "penalty", self.penalty, "must be positive; 3 is usual")

    def __call__(self, updates: Params, most: int) -> Tensor:
        return self.scaled(self.features(updates, most))

    def scaled(self, rows: Tensor) -> Tensor:
        return rows.add(SMALLEST).log_() if self.logarithms else rows

    def reader(self, made: Tensor, has: Tensor) -> Callable[[Tensor], Tensor]:
        """Scores of rows (rows, features), learnt from differences ``made`` and whether each ``has`` the property."""
        centre, spread = made.mean(0), made.std(0) + 1e-6
        rows = (made - centre).div_(spread)
        wanted = (2.0 * has.to(rows.dtype) - 1).unsqueeze(1)
        wide = rows.shape[1] > len(rows)  # then there are fewer equations in rows than in features
        products = rows @ rows.T if wide else rows.T @ rows
        products.diagonal().add_(self.penalty * len(rows))
        found = torch.cholesky_solve(wanted if wide else rows.T @ wanted, torch.linalg.cholesky(products))
        weights = (rows.T @ found if wide else found).squeeze(1)
        return lambda seen: ((seen - centre) / spread) @ weights
