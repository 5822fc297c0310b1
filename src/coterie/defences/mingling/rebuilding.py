"""From mingled sums back to cluster models (MingledPie, Zhang et al., NDSS 2025, Eq. 7-8 and Algorithm 2).

A mingled sum is a mixture of cluster models, and the counts say of how many clients of which cluster:

    sum over b of H[a, b] theta[b] = sums[a].

Algorithm 2 divides the sums by |G_a| and solves with H as counted; the two do not belong together, so here the sums
stay as they are. Theorem 3, which says that H is invertible, asks for |G*| >= (N - |G*|) p, which the paper's own
defaults do not meet; so rank and condition are looked at each time.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require


class IllConditioned(UserWarning):
    """The counts did not determine all cluster models; what they left open stayed as it was."""


class Rebuilding(ABC):
    """How clients make cluster models of what they opened."""

    @abstractmethod
    def rebuild(self, sums: Tensor, counts: Tensor, previous: Callable[[], Tensor]) -> Tensor:
        """Models (clusters, length) from sums (clusters, length), all float64.

        ``counts[a, b]`` is how many clients of cluster b are in mingled cluster a, or what they weigh.
        ``previous`` opens the models of the round before, and is called only where they are needed.
        """


@dataclass(frozen=True)
class Counted(Rebuilding):
    """Solves with the matrix as counted. Exact mingling gives a diagonal one, and plain division.

    What the counts leave open stays as it was: the solution is the change from the previous models that fits the sums,
    and has no part in directions whose singular value is below 1 / ``largest_condition`` of the largest. A cluster that
    nobody chose is such a direction, and keeps its model; any other is told by a warning, ``IllConditioned``, which
    ``warnings.simplefilter("error", IllConditioned)`` turns into an error. Columns are taken in units of the cluster's
    own size first, so that small clusters do not count as bad condition.
    """

    largest_condition: float = 1000.0

    def __post_init__(self) -> None:
        require(
            self.largest_condition > 1,
            "largest_condition",
            self.largest_condition,
            "must be above 1, a perfect matrix's",
        )

    def rebuild(self, sums: Tensor, counts: Tensor, previous: Callable[[], Tensor]) -> Tensor:
        own = counts.diagonal().clone()
        own[own == 0] = 1
        left, scales, right = torch.linalg.svd(counts / own)
        kept = scales > scales[0] / self.largest_condition
        inverse = right[kept].T @ (left[:, kept] / scales[kept]).T / own.unsqueeze(1)  # (clusters, mingled clusters)
        if bool(kept.all()):
            return torch.matmul(inverse, sums)
        open_directions, empty = int((~kept).sum()), int((counts == 0).all(0).sum())
        if open_directions > empty:
            warnings.warn(
                f"condition={float(scales[0] / scales[-1].clamp_min(1e-300)):.3g} of the counted matrix exceeds "
                f"{self.largest_condition:g}; {open_directions - empty} of {len(counts)} combinations of models stay "
                "as they were. Mingle less, take more clients, or use exact=True",
                IllConditioned,
                stacklevel=2,
            )
        before = previous()
        return torch.addmm(before, inverse, sums - counts @ before)


@dataclass(frozen=True)
class IdealMatrix(Rebuilding):
    """Solves with the matrix of Eq. 11, which has the expected number of decoys: Table V's third row, to compare."""

    rate: float = 0.5

    def rebuild(self, sums: Tensor, counts: Tensor, previous: Callable[[], Tensor]) -> Tensor:
        shares = torch.full_like(counts, self.rate).fill_diagonal_(1.0)
        return Counted().rebuild(sums, shares * counts.diagonal(), previous)


@dataclass(frozen=True)
class NoRebuilding(Rebuilding):
    """Takes the mingled means as they are: Table V's second row, to compare."""

    def rebuild(self, sums: Tensor, counts: Tensor, previous: Callable[[], Tensor]) -> Tensor:
        means = sums / counts.sum(1).clamp_min(1e-300).unsqueeze(1)
        empty = counts.sum(1) == 0
        return torch.where(empty.unsqueeze(1), previous(), means) if bool(empty.any()) else means
