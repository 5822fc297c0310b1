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

from coterie.errors import InvalidInput, require
from coterie.learn.clusters.clipping import Bounded


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


LEAST_GAIN = 7.0
"""By how many deviations the norms must stand out. Noise alone has such a run in under one histogram in a thousand."""


def quantile(noisy: Tensor, bins: NormBins, level: float, noise: float) -> float:
    """The upper edge of the bin in which the cumulated noisy histogram (bins,) reaches the level.

    Only the run of bins that stands out most is looked at: of all runs, the one with the largest sum after one
    deviation of noise has been taken off each bin. The norms sit together, and over hundreds of empty bins the noise
    would otherwise add up, or put a bin of its own in the far tail.
    """
    require(0 < level <= 1, "level", level, "must lie in (0, 1]; 0.95 clips one unit in twenty")
    require(len(noisy) == len(bins), "len(noisy)", len(noisy), f"must be the number of bins, {len(bins)}")
    first, last, gain = _standing_out(noisy.double() - noise)
    if gain <= LEAST_GAIN * noise:
        raise InvalidInput(
            f"norms of {max(gain, 0.0):.3g} units stand out of noise of deviation {noise:.3g}: too few for a bound; "
            "spend more epsilon on it, bring more units, or set the clipping bound by hand"
        )
    run = noisy[first : last + 1].double().clamp_min(0).cumsum(0)
    reached = int((run >= level * run[-1] * (1 - 1e-12)).nonzero()[0])
    return float(bins.upper_edges()[first + reached])


def _standing_out(values: Tensor) -> tuple[int, int, float]:
    """The run of values with the largest sum: its first and last place, and the sum."""
    sums = torch.cat([torch.zeros(1, dtype=values.dtype), values.cumsum(0)])
    lowest, starts = sums[:-1].cummin(0)
    gains = sums[1:] - lowest
    last = int(gains.argmax())
    return int(starts[last]), last, float(gains[last])
