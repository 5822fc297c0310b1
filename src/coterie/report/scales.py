"""From values to places on the page: domains, ticks and scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Scale:
    """A straight line from ``low..high`` to ``start..end``; start may lie beyond end, as it does upward on a page."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def within(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def ticks(self, count: int = 5) -> list[float]:
        return ticks(self.low, self.high, count)


def step_for(low: float, high: float, count: int = 5) -> float:
    """The 1, 2 or 5 times a power of ten that gives about this many steps."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(factor for factor in (1, 2, 5, 10) if raw <= factor * power * (1 + 1e-9))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values within the domain."""
    step = step_for(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """As many decimals as tell neighbours apart, the same for all of an axis."""
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    if values and max(abs(value) for value in values) >= 1e5:
        return [f"{value:.3g}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:.{decimals}f}".replace("-", "−") for value in values]


def domain(values: Iterable[float], *, rounded: bool = True, air: float = 0.05) -> tuple[float, float]:
    """What an axis spans: the finite values, out to the next ticks, or with this share of air around them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value only: it goes in the middle
        reach = abs(low) / 10 or 0.5
        low, high = low - reach, high + reach
    if not rounded:
        return low - air * (high - low), high + air * (high - low)
    step = step_for(low, high)
    return round(math.floor(low / step + 1e-9) * step, 12), round(math.ceil(high / step - 1e-9) * step, 12)
