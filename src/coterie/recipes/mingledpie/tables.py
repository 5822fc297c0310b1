"""What all tables share: entries that name their job, and one folder of results, since many use the same runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.measure.judge import t_interval
from coterie.recipes.base import Line, Recipe, Scale, Settings
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

    def key(self, seed: int) -> str:
        named = ",".join(f"{name}={_word(value)}" for name, value in self.arguments.items() if name != "data")
        return f"{self.work.__name__}/{named or 'default'}/seed{seed}"


def _word(value: Any) -> str:
    return "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in str(value))


Entries = Callable[[Settings], Sequence[Entry]]


@dataclass(frozen=True)
class SharedRecipe(Recipe):
    """Its jobs are kept with those of the paper's other tables."""

    def folder(self, settings: Settings, root: Path) -> Path:
        return root / self.paper / settings.scale.value / "jobs"


def seeds(settings: Settings) -> tuple[int, ...]:
    """At quick scale one seed: it shows the size of an effect, not its interval."""
    return settings.seeds[:1] if settings.scale is Scale.QUICK else settings.seeds


def path_of(settings: Settings) -> str | None:
    return str(settings.data.resolve()) if settings.data else None


def jobs_of(entries: Entries) -> Callable[[Settings], Sequence[Job]]:
    def jobs(settings: Settings) -> Sequence[Job]:
        wanted = {
            entry.key(seed): Job(entry.key(seed), entry.work, {**entry.arguments, "seed": seed})
            for entry in entries(settings)
            if settings.wants(entry.row)
            for seed in seeds(settings)
        }
        return list(wanted.values())

    return jobs


def lines_of(entries: Entries) -> Callable[[Settings, Mapping[str, Result]], Sequence[Line]]:
    def lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
        found = []
        for entry in entries(settings):
            if settings.wants(entry.row):
                ours = [results[entry.key(seed)] for seed in seeds(settings)]
                values = [entry.value(result) for result in ours]
                mean = sum(values) / len(values)
                found.append(Line(entry.row, entry.published, mean, *t_interval(values), entry.note(ours[0])))
        return found

    return lines
