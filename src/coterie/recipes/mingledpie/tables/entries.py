"""What all tables share: entries that name their job, and one folder of results, since many use the same runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.mingledpie.setups import SETUPS
from coterie.recipes.settings import Settings
from coterie.run.jobs import Arguments, Job, Result

SHARED = "jobs"  # where all tables keep their runs
FORMS = {
    "p": ", p={:g}",
    "T": ", T={}",
    "k": ", k={}",
    "N": ", N={}",
    "round": ", round {}",
    "cluster": ", cluster {}",
    "iid_rate": ", IID rate {:.0%}",
    "newcomers_iid_rate": ", newcomers' IID rate {:.0%}",
    "what": ": {}",
}


def label(key: Key) -> str:
    return key.words(FORMS)


def files_read(name: str, data: Path | None) -> tuple[str, ...]:
    setup = SETUPS[name]
    names = [*setup.probe.split(), *setup.beside.split(), f"{setup.source.name}.npz"]
    return files_of(setup.source(), data, *names) if setup.probe else ()


def field_of(name: str) -> Callable[[Result], float]:
    return lambda result: float(result[name])


@dataclass(frozen=True)
class Entry:
    """One value of a table: its key, what the paper has, and which value of which job is ours."""

    key: Key
    published: float | None
    work: Callable[..., Result]
    arguments: Arguments
    value: Callable[[Result], float]
    note: Callable[[Result], str] = field(default=lambda result: "")
    pooled: Callable[[Sequence[Result]], tuple[float, float]] = field(default=lambda results: (math.nan, math.nan))
    """The interval of a share of clients, over all of them. The wider of this and the one over seeds is shown: a few
    seeds may agree by accident, and clients of one seed may be alike."""

    apart: bool = False  # whether each client's share is its own coins', so that the former alone is right

    most: float = 100.0  # per cent, unless said otherwise
    values: Mapping[str, Callable[[Result], float]] = field(default_factory=dict)  # further ones, by name
    known: Mapping[str, float] = field(default_factory=dict)  # and those that need no run
    files: tuple[str, ...] = ()  # data that the job reads

    @property
    def label(self) -> str:
        return label(self.key)

    def row(self, results: Mapping[int, Result]) -> Row:
        """Over the results of all seeds."""
        further = {
            name: Estimate.over({seed: value(result) for seed, result in results.items()}, 0.0)
            for name, value in self.values.items()
        }
        further |= {name: Estimate.exactly(value) for name, value in self.known.items()}
        note = self.note(next(iter(results.values())))
        return Row(self.key, self.label, self.published, self.ours(results), further, note)

    def ours(self, results: Mapping[int, Result]) -> Estimate:
        over_seeds = Estimate.over({seed: self.value(result) for seed, result in results.items()}, 0.0, self.most)
        low, high = self.pooled(list(results.values()))
        wider = over_seeds.is_known and over_seeds.high - over_seeds.low > high - low
        if math.isnan(low) or (wider and not self.apart):
            return over_seeds
        value = (
            over_seeds.value
        )  # every client of every seed may be named right, and then rounding could put it outside
        return Estimate(value, min(low, value), max(high, value), by_seed=over_seeds.by_seed)

    def job_key(self, seed: int) -> str:
        named = ",".join(f"{name}={_word(value)}" for name, value in self.arguments.items() if name != "data")
        return f"{self.work.__name__}/{named or 'default'}/seed{seed}"


def _word(value: object) -> str:
    return "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in str(value))


Entries = Callable[[Settings], Sequence[Entry]]


def chosen(entries: Entries, settings: Settings) -> list[Entry]:
    return [entry for entry in entries(settings) if settings.wants(entry.label)]


def jobs_of(entries: Entries) -> Callable[[Settings], Sequence[Job]]:
    def jobs(settings: Settings) -> Sequence[Job]:
        wanted = {
            entry.job_key(seed): Job(entry.job_key(seed), entry.work, {**entry.arguments, "seed": seed}, entry.files)
            for entry in chosen(entries, settings)
            for seed in settings.seeds
        }
        return list(wanted.values())

    return jobs


def rows_of(entries: Entries) -> Callable[[Settings, Mapping[str, Result]], Sequence[Row]]:
    def rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
        return [entry.row(of_seeds(results, settings.seeds, entry.job_key)) for entry in chosen(entries, settings)]

    return rows
