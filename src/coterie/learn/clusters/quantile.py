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
from torch import Tensor

from coterie.errors import require
from coterie.learn.clusters.clipping import Bounded
from coterie.learn.whole import STEP, UNITS


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

    def histogram(self, norms: Tensor, owners: Tensor, clients: int, weights: Tensor | None = None) -> Bounded:
        """How many norms of each client fall into each bin, (clients, bins).

        One unit is one norm: a record's at record level, or the client's only one at client level. It lies in one
        bin, so it moves the sum by 1, or by its weight, which is at most 1 and rounded down to whole steps.
        """
        bins = torch.bucketize(norms.double(), self.upper_edges()).clamp_max(len(self) - 1)
        slots = owners.long() * len(self) + bins
        mass = None if weights is None else weights.double().clamp(0, 1).mul_(UNITS).floor_().mul_(STEP)
        found = torch.bincount(slots, mass, minlength=clients * len(self)).view(clients, -1).double()
        return Bounded(found, l2=1.0, l1=1.0)


LEAST_GAIN = 7.0
"""By how many deviations the norms must stand out. Noise alone has such a run in under one histogram in a thousand."""


def standing_out(noisy: Tensor, bins: NormBins, noise: float) -> tuple[Tensor, Tensor] | None:
    """The norms that stand out of the noise: their bins' upper edges and counts; None: the noise hides them all.

    Only the run of bins that stands out most is looked at: of all runs, the one with the largest sum after one
    deviation of noise has been taken off each bin. The norms sit together, and over hundreds of empty bins the noise
    would otherwise add up, or put a bin of its own in the far tail.
    """
    require(len(noisy) == len(bins), "len(noisy)", len(noisy), f"must be the number of bins, {len(bins)}")
    first, last, gain = _best_run(noisy.double() - noise)
    if gain <= LEAST_GAIN * noise:
        return None
    return bins.upper_edges()[first : last + 1], noisy[first : last + 1].double().clamp_min(0)


def quantile(edges: Tensor, counts: Tensor, level: float) -> float:
    """The upper edge of the bin in which the cumulated histogram reaches the level."""
    require(0 < level <= 1, "level", level, "must lie in (0, 1]; 0.95 clips one unit in twenty")
    reached = counts.cumsum(0) >= level * counts.sum() * (1 - 1e-12)
    return float(edges[int(reached.nonzero()[0])])


def best_bound(edges: Tensor, counts: Tensor, price: float) -> float:
    """The bound that errs least: noise grows with it, and what is cut off of longer vectors is a bias.

    Both are squared errors of the sums over all units, n of them. Noise: ``price`` * bound^2 / n, where the price is
    what noise of deviation bound adds up to over all coordinates and clusters. Bias: at worst all that is cut off
    points the same way, as in a skewed cluster, and moves the sum by the sum of (norm - bound). Without noise (price 0)
    nothing is cut off. The histogram has been released, so choosing costs no privacy.
    """
    middles = edges * (edges[0] / edges[1]).sqrt() if len(edges) > 1 else edges
    cut = (middles - edges.unsqueeze(1)).clamp_min(0) @ counts
    return float(edges[int((cut.square() + price * edges.square()).argmin())])


def rms(edges: Tensor, counts: Tensor) -> float:
    """The root of the mean squared norm."""
    return float((edges.square() @ counts / counts.sum()).sqrt())


def _best_run(values: Tensor) -> tuple[int, int, float]:
    """The run of values with the largest sum: its first and last place, and the sum."""
    sums = torch.cat([torch.zeros(1, dtype=values.dtype), values.cumsum(0)])
    lowest, starts = sums[:-1].cummin(0)
    gains = sums[1:] - lowest
    last = int(gains.argmax())
    return int(starts[last]), last, float(gains[last])
