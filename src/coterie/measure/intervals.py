"""Estimates that say how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from coterie.errors import require

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate, and the range that holds the truth with this confidence."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.confidence < 1, "confidence", self.confidence, "must lie in (0, 1); 0.95 is usual")
        require(
            self.low <= self.estimate <= self.high, "interval", (self.low, self.estimate, self.high), "is not in order"
        )

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def lower_limit(successes: Any, trials: int, error: float) -> Floats:
    """One-sided Clopper-Pearson: a proportion below this gives so many successes with at most this probability."""
    successes = np.asarray(successes, dtype=np.float64)
    found = beta.ppf(error, np.maximum(successes, 1), trials - successes + 1)
    return np.where(successes == 0, 0.0, found)


def upper_limit(successes: Any, trials: int, error: float) -> Floats:
    """One-sided Clopper-Pearson from above."""
    return 1 - lower_limit(trials - np.asarray(successes, dtype=np.float64), trials, error)


def proportion(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Clopper-Pearson: exact, and never too narrow."""
    require(trials > 0, "trials", trials, "must be at least 1")
    require(0 <= successes <= trials, "successes", successes, f"must lie in 0..{trials}")
    error = (1 - confidence) / 2
    low, high = float(lower_limit(successes, trials, error)), float(upper_limit(successes, trials, error))
    return Interval(successes / trials, low, high, confidence)
