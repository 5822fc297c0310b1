"""A private estimate of how long contributions are, to clip them by.

One noisy histogram of norms over geometric bins. It is a sum over clients, so it runs under a trusted aggregator,
under secure aggregation with distributed noise, and with local noise alike, which an exponential mechanism does not;
and it needs no guess about the scale of the data. FedDP-KMeans sets its bounds by hand and fails on census data at
client level because of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from coterie.errors import InvalidInput, require
from coterie.learn.clipping import Bounded


@dataclass(frozen=True)
class NormBins:
    """Bins that grow by a factor of 2^(1 / per_octave). What lies outside falls into the first or the last bin."""

    smallest: float = 2.0**-20
    octaves: int = 60
    per_octave: int = 4

    def __post_init__(self) -> None:
        require(0 < self.smallest < math.inf, "smallest", self.smallest, "must be positive and finite")
        require(self.octaves >= 1, "octaves", self.octaves, "must be at least 1")
        require(self.per_octave >= 1, "per_octave", self.per_octave, "must be at least 1")

    def __len__(self) -> int:
        return self.octaves * self.per_octave

    def upper_edges(self) -> Tensor:
        """(bins,) float64"""
        steps = torch.arange(1, len(self) + 1, dtype=torch.float64) / self.per_octave
        return self.smallest * torch.exp2(steps)

    def histogram(self, norms: Tensor, owners: Tensor, clients: int) -> Bounded:
        """How many norms of each client fall into each bin, (clients, bins).

        One unit is one norm: a record's at record level, or the client's only one at client level. It lies in one
        bin, so it moves the sum by 1.
        """
        bins = torch.bucketize(norms.double(), self.upper_edges()).clamp_max(len(self) - 1)
        slots = owners.long() * len(self) + bins
        return Bounded(torch.bincount(slots, minlength=clients * len(self)).view(clients, -1).float(), l2=1.0, l1=1.0)


def quantile_event(noise: float) -> DpEvent:
    """What releasing the histogram with this noise (standard deviation of each bin) costs."""
    return GaussianDpEvent(noise)


def quantile(noisy: Tensor, bins: NormBins, level: float, noise: float) -> float:
    """The upper edge of the bin in which the cumulated noisy histogram (bins,) reaches the level.

    Bins below the largest value that noise alone is expected to reach, noise * sqrt(2 ln bins), count as empty: the
    norms sit in a few bins, and the noise of the empty ones would otherwise add up.
    """
    require(0 < level <= 1, "level", level, "must lie in (0, 1]; 0.95 clips one unit in twenty")
    require(len(noisy) == len(bins), "len(noisy)", len(noisy), f"must be the number of bins, {len(bins)}")
    floor = noise * math.sqrt(2 * math.log(len(bins)))
    kept = torch.where(noisy > floor, noisy.double(), 0.0)
    total = float(kept.sum())
    if total <= 0:
        raise InvalidInput(
            f"no bin of the norm histogram rises above the noise ({floor:.3g} units); "
            "spend more epsilon on it, use fewer bins, or set the clipping bound by hand"
        )
    reached = int((kept.cumsum(0) >= level * total * (1 - 1e-12)).nonzero()[0])
    return float(bins.upper_edges()[reached])
