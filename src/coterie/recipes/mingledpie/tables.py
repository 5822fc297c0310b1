"""What all tables share: entries that name their job, and one folder of results, since many use the same runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Line
from coterie.recipes.base import Settings
from coterie.run.jobs import Job, Result


@dataclass(frozen=True)
class Entry:
    """One value of a table: how it is called, what the paper has, and which value of which job is ours."""

    row: str
    published: float | None
    work: Callable[..., Result]
    arguments: Mapping[str, Any]
    value: Callable[[Result], float]
    note: Callable[[Result], str] = field(default=lambda result: "")
    pooled: Callable[[Sequence[Result]], tuple[float, float]] = field(default=lambda results: (math.nan, math.nan))
    """The interval of a share of clients, over all of them. The wider of this and the one over seeds is shown: a few
    seeds may agree by accident, and clients of one seed may be alike."""

    most: float = 100.0  # per cent, unless said otherwise

    def line(self, results: Sequence[Result]) -> Line:
        """Over the results of all seeds."""
        values = [self.value(result) for result in results]
        known = [ends for ends in (t_interval(values), self.pooled(results)) if not math.isnan(ends[0])]
        low, high = max(known, key=lambda ends: ends[1] - ends[0], default=(math.nan, math.nan))
        low, high = float(np.clip(low, 0.0, self.most)), float(np.clip(high, 0.0, self.most))  # as Student does not
        note = self.note(results[0])
        return Line(self.row, self.published, sum(values) / len(values), low, high, note, len(values))

    def key(self, seed: int) -> str:
        named = ",".join(f"{name}={_word(value)}" for name, value in self.arguments.items() if name != "data")
        return f"{self.work.__name__}/{named or 'default'}/seed{seed}"


def _word(value: Any) -> str:
    return "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in str(value))


SHARED = "jobs"  # where all tables keep their runs

Entries = Callable[[Settings], Sequence[Entry]]


def path_of(settings: Settings) -> str | None:
    return str(settings.data.resolve()) if settings.data else None


def jobs_of(entries: Entries) -> Callable[[Settings], Sequence[Job]]:
    def jobs(settings: Settings) -> Sequence[Job]:
        wanted = {
            entry.key(seed): Job(entry.key(seed), entry.work, {**entry.arguments, "seed": seed})
            for entry in entries(settings)
            if settings.wants(entry.row)
            for seed in settings.seeds
        }
        return list(wanted.values())

    return jobs


def lines_of(entries: Entries) -> Callable[[Settings, Mapping[str, Result]], Sequence[Line]]:
    def lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
        return [
            entry.line([results[entry.key(seed)] for seed in settings.seeds])
            for entry in entries(settings)
            if settings.wants(entry.row)
        ]

    return lines
