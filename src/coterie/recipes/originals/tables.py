"""Which runs stand in each table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.attacks.poisoning import HOW
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.originals import runs
from coterie.recipes.originals.malice import HONEST, SHIELDS, malice
from coterie.recipes.originals.published import ROTATED_MNIST
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Arguments, Job, Result

STARTS = ("random", "vote", "best of 4", "best of 8")
BASELINES = ("global", "local", "fine-tuned")
FILES = ("train-*", "t10k-*")
COUNTED = ("recovered", "right", "two halves")  # a run is right, 100, or not, 0


@dataclass(frozen=True)
class Entry:
    """One row: its key, the job that gives it, which of its values is shown, and which besides."""

    key: Key
    work: Callable[..., Result]
    arguments: Arguments
    value: str
    published: float | None = None
    besides: tuple[str, ...] = field(default=())
    source: str = "MNIST"

    @property
    def label(self) -> str:
        return self.key.words({})

    def job_key(self, seed: int) -> str:
        named = ",".join(f"{name}={str(value).replace(' ', '_')}" for name, value in self.arguments.items())
        return f"{self.work.__name__}/{named}/seed{seed}"

    def job(self, settings: Settings, seed: int) -> Job:
        files = files_of(runs.SOURCES[self.source](), settings.data, *FILES)
        arguments = {**self.arguments, "data": settings.folder, "seed": seed}
        return Job(self.job_key(seed), self.work, arguments, files)

    def row(self, results: Mapping[int, Result]) -> Row:
        def over(name: str, most: float) -> Estimate:
            return Estimate.over({seed: float(result[name]) for seed, result in results.items()}, 0.0, most)

        ours = over(self.value, 100.0)
        if self.value in COUNTED:
            ours = Estimate.share(ours.by_seed)
        further = {name: over(name, float("inf")) for name in self.besides}
        return Row(self.key, self.label, self.published, ours, further)


Entries = Callable[[Settings], Sequence[Entry]]


def parts(entries: Entries) -> dict[str, Any]:
    """The jobs and the rows of a recipe."""

    def chosen(settings: Settings) -> list[Entry]:
        return [entry for entry in entries(settings) if settings.wants(entry.label)]

    def jobs(settings: Settings) -> list[Job]:
        every = [entry.job(settings, seed) for entry in chosen(settings) for seed in settings.seeds]
        return list({job.key: job for job in every}.values())

    def rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
        return [entry.row(of_seeds(results, settings.seeds, entry.job_key)) for entry in chosen(settings)]

    return {"jobs": jobs, "rows": rows}


def starts(settings: Settings) -> list[Entry]:
    """Whether groups merge is settled in the first rounds: fifteen show it."""
    paper = settings.scale is Scale.PAPER
    size = {"clients": 1200 if paper else 40, "samples": 200 if paper else 100 if settings.data else 50}
    return [
        Entry(
            Key.of(start=start),
            runs.ifca,
            {"start": start, **size, "rounds": 300 if paper else 15},
            "recovered",
            besides=("ari", "accuracy"),
        )
        for start in STARTS
    ]


def ifca(settings: Settings) -> list[Entry]:
    paper = settings.scale is Scale.PAPER
    size = {"clients": 1200 if paper else 80 if settings.data else 40, "samples": 200 if settings.data else 50}
    rounds = 300 if paper else 65 if settings.data else 40
    ours = {"start": "best of 4", **size, "rounds": rounds}
    return [
        Entry(Key.of(trainer="IFCA"), runs.ifca, ours, "accuracy", ROTATED_MNIST, besides=("ari",)),
        *(
            Entry(
                Key.of(trainer=baseline),
                runs.beside_ifca,
                {"baseline": baseline, **size, "rounds": rounds},
                "accuracy",
            )
            for baseline in BASELINES
        ),
    ]


def sattler(settings: Settings) -> list[Entry]:
    """The paper has no such table; a run is right or not."""
    names = ("MNIST", "Fashion-MNIST") if settings.data else ("MNIST",)
    return [
        Entry(
            Key.of(rule=rule, groups=groups, local=local, data=name),
            runs.sattler,
            {"groups": groups, "local": local, "rule": rule, "name": name, "clients": 20, "rounds": 50},
            "right",
            besides=("clusters", "accuracy"),
            source=name,
        )
        for rule in runs.RULES
        for name in names
        for groups in ("none", "labels", "rotations")
        for local in runs.LOCALS
    ]


def fedem(settings: Settings) -> list[Entry]:
    return [
        Entry(
            Key.of(trainer=trainer),
            runs.mixture,
            {"trainer": trainer, "clients": 20, "rounds": 120},
            "accuracy",
            besides=("starved",) if trainer == "FedEM" else (),
        )
        for trainer in ("FedEM", "FedAvg", "local")
    ]


def paper_004(settings: Settings) -> list[Entry]:
    rounds = 100 if settings.scale is Scale.PAPER else 10
    return [
        Entry(
            Key.of(clients=clients, compare=compare),
            runs.paper_004,
            {"clients": clients, "compare": compare, "rounds": rounds},
            "two halves",
            besides=("accuracy", "settled"),
        )
        for clients in runs.ANGLES
        for compare in ("parameters", "updates")
    ]


def malicious(settings: Settings) -> list[Entry]:
    return [
        Entry(
            Key.of(sends=sends, defence=defence),
            malice,
            {"sends": sends, "defence": defence, "rounds": 25},
            "accuracy",
        )
        for sends in (HONEST, *HOW)
        for defence in SHIELDS
    ]
