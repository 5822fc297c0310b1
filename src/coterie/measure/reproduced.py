"""A paper's values beside ours, as plain values that a page or a terminal shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.measure.intervals import Interval


@dataclass(frozen=True)
class Line:
    """One value of a table: the paper's beside ours."""

    row: str
    published: float | None
    ours: float
    low: float = math.nan  # a 95 % interval over seeds; NaN where there is one seed only
    high: float = math.nan
    note: str = ""
    seeds: int = 1  # behind the interval

    @property
    def interval(self) -> Interval:
        """Our value with its ends; those that rounding put on the wrong side of it are put right."""
        if math.isnan(self.low) or math.isnan(self.high):
            return Interval.unknown(self.ours)
        return Interval(self.ours, min(self.ours, self.low), max(self.ours, self.high))


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of its own table, and whether it holds in ours."""

    text: str
    holds: bool | None  # None: our intervals do not decide it
    evidence: str


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper: its published values, ours, and which of its claims hold."""

    paper: str
    table: str
    title: str
    lines: Sequence[Line]
    claims: Sequence[Claim] = ()
    scale: str = ""
    differs: str = ""
    unit: str = ""
