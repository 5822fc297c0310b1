"""What each adversary sees of a release, as the scores of its best test.

The guarantee is towards somebody, and so is the audit. Under local noise the server sees every client's message, not
only their sum. Under distributed noise a participant knows the share that it added itself. Whoever sees several
releases uses all of them. Each case is a ``Seen``: what was released in many trials, what it would be on average
without the audited unit, what the unit adds, and the noise that this adversary does *not* know. Noise is independent
from one ``Seen`` to the next, so their log-likelihood ratios add up, and no test does better (Neyman and Pearson).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from coterie.errors import require
from coterie.measure.epsilon import Scores
from coterie.measure.intervals import Floats


class Noise(ABC):
    """Independent noise on every coordinate, of a scale that the adversary knows."""

    @abstractmethod
    def log_ratio(self, residual: Floats, change: Floats) -> Floats:
        """(trials,): of ``residual`` (trials, length) being change plus noise to its being noise alone."""


@dataclass(frozen=True)
class Gaussian(Noise):
    """Continuous or on a grid: the ratio is the same."""

    deviation: float

    def __post_init__(self) -> None:
        require(self.deviation > 0, "deviation", self.deviation, "must be positive: without noise the sum itself tells")

    def log_ratio(self, residual: Floats, change: Floats) -> Floats:
        ratio: Floats = (residual - change / 2) @ change / self.deviation**2
        return ratio


@dataclass(frozen=True)
class Laplace(Noise):
    """The ratio has atoms at its ends. |r| - |r - c| would smear them by rounding, differently with the unit and
    without it: then the audit finds the bits of its own floats and not the mechanism's noise."""

    scale: float

    def __post_init__(self) -> None:
        require(self.scale > 0, "scale", self.scale, "must be positive: without noise the sum itself tells")

    def log_ratio(self, residual: Floats, change: Floats) -> Floats:
        ends = np.abs(change)
        ratio: Floats = (np.sign(change) * np.clip(2 * residual - change, -ends, ends)).sum(1) / self.scale
        return ratio


@dataclass(frozen=True)
class Seen:
    """One release, in as many trials as it has rows. ``rate`` is the probability that the unit was sampled for it."""

    released: Floats = field(repr=False)  # (trials, ...)
    outside: Floats = field(repr=False)  # (...)
    change: Floats = field(repr=False)  # (...)
    noise: Noise
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("released", "outside", "change"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        for name in ("outside", "change"):
            shape = getattr(self, name).shape
            require(shape == self.released.shape[1:], name, shape, f"must have the shape {self.released.shape[1:]}")
        require(0 < self.rate <= 1, "rate", self.rate, "must lie in (0, 1]; 1 is without sampling")

    def log_ratios(self) -> Floats:
        """(trials,): of the unit's being in to its being out; under sampling, of the mixture."""
        residual = (self.released - self.outside).reshape(len(self.released), -1)
        found = self.noise.log_ratio(residual, self.change.ravel())
        if self.rate == 1:
            return found
        return np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + found)


def by_server(messages: ArrayLike, client: int, outside: ArrayLike, change: ArrayLike, noise: Noise) -> Seen:
    """Local noise: of all messages (trials, clients, ...) that of the unit's own client tells, and no other does."""
    every = np.asarray(messages, dtype=np.float64)
    require(0 <= client < every.shape[1], "client", client, f"must be one of the {every.shape[1]} that sent messages")
    return Seen(every[:, client], np.asarray(outside), np.asarray(change), noise)


def by_participants(
    released: ArrayLike, known_noise: ArrayLike, outside: ArrayLike, change: ArrayLike, left: Noise
) -> Seen:
    """Distributed noise: whoever knows shares of the noise subtracts them, and is kept from knowing by what is left.

    ``known_noise`` (trials, ...) is the sum of the coalition's own shares. With shares of equal deviation s from n
    clients, c of which collude, ``left`` is ``Gaussian(s * sqrt(n - c))``.
    """
    remaining = np.asarray(released, dtype=np.float64) - np.asarray(known_noise, dtype=np.float64)
    return Seen(remaining, np.asarray(outside), np.asarray(change), left)


def jointly(seen: Sequence[Seen]) -> Floats:
    """(trials,): the score of whoever sees all of these releases, which are of the same trials."""
    require(len(seen) > 0, "releases", 0, "must be at least one")
    trials = {len(one.released) for one in seen}
    require(len(trials) == 1, "trials", sorted(trials), "must be the same in all releases")
    total: Floats = np.sum([one.log_ratios() for one in seen], axis=0)
    return total


def scores_of(inside: Sequence[Seen], outside: Sequence[Seen]) -> Scores:
    """Trials with the unit and without it, each seen in full."""
    return Scores(jointly(inside), jointly(outside))
