"""What a benchmark gives: figures beside a baseline that was measured in the same run."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from coterie.errors import require

Facts = dict[str, Any]
"""As JSON has them."""


@dataclass(frozen=True)
class Ratio:
    """One cost (time, memory, bytes) and that of its baseline; the ratio says how many times ours is the smaller.

    The bound is the least value of the ratio, or, with ``bound_on_ratio=False``, the largest value of ours.
    """

    name: str
    ours: float
    unit: str
    baseline: float | None = None  # in the same unit; None: there is none, or it could not be run here
    bound: float | None = None
    bound_on_ratio: bool = True
    limit: float | None = None  # the ratio that bare matrix products would reach: what is left to gain
    setup: str = ""  # what the baseline is and how it was set up, or why it is missing

    def __post_init__(self) -> None:
        require(self.ours > 0, f"{self.name}: ours", self.ours, "must be positive; measure something longer")
        require(self.baseline is None or self.baseline > 0, f"{self.name}: baseline", self.baseline, "must be positive")

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.baseline / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the bound is met; None where there is no bound, or no baseline for it."""
        if self.bound is None or (self.bound_on_ratio and self.ratio is None):
            return None
        if self.bound_on_ratio:
            assert self.ratio is not None
            return self.ratio >= self.bound
        return self.ours <= self.bound

    @property
    def bound_text(self) -> str:
        if self.bound is None:
            return ""
        return f"ratio ≥ {self.bound:.3g}" if self.bound_on_ratio else f"ours ≤ {self.bound:.4g} {self.unit}"

    def as_json(self) -> Facts:
        bound = None
        if self.bound is not None:
            on, direction = ("ratio", "at least") if self.bound_on_ratio else ("ours", "at most")
            bound = {"on": on, "direction": direction, "value": self.bound}
        return {
            "name": self.name,
            "ours": self.ours,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "limit": self.limit,
            "unit": self.unit,
            "bound": bound,
            "met": self.met,
            "setup": self.setup,
        }


@dataclass(frozen=True)
class Timing:
    """Seconds that one contender took, repeat by repeat."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)


def interleaved(contenders: Mapping[str, Callable[[], object]], repeats: int = 5) -> dict[str, Timing]:
    """Time all contenders in turn, again and again, so that a busy spell of the machine hits all of them.

    Each runs once unmeasured first: caches, threads and worker processes then exist. Compare the ``best``: other
    processes can only add time.
    """
    require(repeats >= 1, "repeats", repeats, "must be at least 1")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def machine() -> Facts:
    """Where and how busy: a load above 0 before the run means that others were computing too."""
    import torch

    return {
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": [round(value, 2) if math.isfinite(value) else None for value in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
