"""Entries of paper 000's tables: the run that stands for each, and the rows that results of all seeds give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from coterie.data.sources.celeba import Celeba
from coterie.data.sources.lfw import Lfw
from coterie.data.sources.reviews import Critics, Yelp
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.property_inference.runs import Plan, attacked
from coterie.recipes.property_inference.tasks import FACES
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Job, Result

CHANCE = 0.5
PLACEBO, ABSENT = "placebo", "absent"  # controls, as named values of a row
MAIN_TASK, STEADINESS = "main task AUC", "steadiness"
CONTRAST, PUBLISHED = "contrast", "published"  # readers
OVER_ALL, WITHIN = "over all", "within clusters"  # scorings


@dataclass(frozen=True)
class Entry:
    """A cell of a published table and the run that stands for it; with ``controls``, also placebo and absent."""

    key: Key
    published: float | None
    plan: Plan
    controls: bool = True

    @property
    def plans(self) -> dict[str, Plan]:
        """By the control, "none" being the attack itself."""
        controls = ("none", PLACEBO, ABSENT) if self.controls else ("none",)
        return {control: replace(self.plan, control=control) for control in controls}

    @property
    def label(self) -> str:
        return label(self.key)


Entries = Callable[[Scale], Sequence[Entry]]


def label(key: Key) -> str:
    """``"C CFL 3 clients active"``: under a defence, that an attack is passive goes without saying."""
    if "share" in key:
        return _beyond(key)
    words = "{task} {method} {clients} clients".format(**key)
    attack, defence = key.get("attack"), key.get("defence")
    if attack is not None and (attack != "passive" or defence is None):
        words += f" scaled {key['gamma']:g}" if attack == "scaled" else f" {attack}"
    if defence is not None:
        named = {"none": " undefended", "DP-SGD": f" sigma {key['strength']:g}"}
        words += named.get(str(defence), f" {defence} {key['strength']:g}")
    words += f", own upload {key['own']}" if "own" in key else ""
    words += ", published reader" if key.get("features") == PUBLISHED else ""
    words += ", within clusters" if key.get("scoring") == WITHIN else ""
    return words + (", main task" if key.get("measure") == MAIN_TASK else "")


def _beyond(key: Key) -> str:
    """What the paper does not vary: in words of their own."""
    words = f"property share {key['share']:g}" if key["share"] != 1.0 else f"{key['clients']} clients"
    words += f", clusters of {key['size']}" if "size" in key else ""
    return words + (f", quarter {key['quarter']} of the rounds" if "quarter" in key else "")


def chosen(entries: Entries, settings: Settings) -> list[Entry]:
    wanted = [entry for entry in entries(settings.scale) if settings.wants(entry.label)]
    return [replace(entry, plan=replace(entry.plan, as_published=settings.as_published)) for entry in wanted]


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_key(settings: Settings, plan: Plan, seed: int) -> str:
    cut = "" if settings.rounds is None else f"-{settings.rounds}rounds"
    return f"{'data' if settings.data else 'drawn'}/{plan.key}{cut}-seed{seed}"


def jobs(entries: Entries, settings: Settings) -> list[Job]:
    plans = {plan.key: plan for entry in chosen(entries, settings) for plan in entry.plans.values()}
    shared: dict[str, Any] = {"scale": settings.scale.value, "data": settings.folder}
    shared |= {} if settings.rounds is None else {"rounds": settings.rounds}
    return [
        Job(
            job_key(settings, plan, seed),
            attacked,
            {"plan": asdict(plan), "seed": seed, **shared},
            files_read(plan.task, settings),
            resumes=True,
        )
        for plan in plans.values()
        for seed in settings.seeds
    ]


def files_read(task: str, settings: Settings) -> tuple[str, ...]:
    """What may be read for a task: which of its sources is there decides which is taken."""
    if task in FACES:
        return files_of(Lfw(), settings.data, "lfw*") + files_of(
            Celeba(), settings.data, "*celeb*", "*CelebA*", "list_*"
        )
    return files_of(Yelp(), settings.data, "*yelp*") + files_of(Critics(), settings.data, "movie_reviews*", "scale*")


def runs_of(settings: Settings, results: Mapping[str, Result], plan: Plan) -> dict[int, Result]:
    return of_seeds(results, settings.seeds, partial(job_key, settings, plan))


# -- rows -------------------------------------------------------------------------------------------------------------


def share(runs: Mapping[int, Result], value: Callable[[Result], float]) -> Estimate:
    """All that stands in these tables lies between 0 and 1."""
    return Estimate.over({seed: value(run) for seed, run in runs.items()}, 0.0, 1.0)


def named(name: str) -> Callable[[Result], float]:
    return lambda run: float(run[name])


def rows(entries: Entries, settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    """Each cell by contrast and by the published reader; CFL also within clusters.

    As published, a cluster that the victim is not in counts as a negative in every round, so an attack that tells
    clusters apart scores without recognising any property. Within clusters, only rounds of the same one are compared.
    """
    return [
        scored(entry, settings, results, features, scoring)
        for entry in chosen(entries, settings)
        for features in (CONTRAST, PUBLISHED)
        for scoring in ((OVER_ALL, WITHIN) if entry.plan.method == "CFL" else (OVER_ALL,))
    ]


def scored(entry: Entry, settings: Settings, results: Mapping[str, Result], features: str, scoring: str) -> Row:
    measure = {CONTRAST: "contrast_auc", PUBLISHED: "auc"}[features]
    value = named(measure + {OVER_ALL: "", WITHIN: "_within"}[scoring])
    found = {control: runs_of(settings, results, plan) for control, plan in entry.plans.items()}
    scores = {control: share(runs, value) for control, runs in found.items()}
    ours, runs = scores.pop("none"), found["none"]
    values = {**scores, **explained(ours, scores), "chance": Estimate.exactly(CHANCE)}
    as_published = (features, scoring) == (PUBLISHED, OVER_ALL)
    if scoring == OVER_ALL and runs:
        values |= {MAIN_TASK: share(runs, named("main_auc"))}
    key = entry.key.but(features=features, scoring=scoring)
    said = remarks(list(runs.values()), measure) if scoring == OVER_ALL else ""
    return Row(key, label(key), entry.published if as_published else None, ours, values, said or remark(ours))


def remark(ours: Estimate) -> str:
    return "no round to tell apart" if math.isnan(ours.value) else ""


def explained(ours: Estimate, controls: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """How much of the score above chance its placebo accounts for."""
    if PLACEBO not in controls or not ours.value > CHANCE:
        return {}
    return {"explained by placebo": Estimate(max(0.0, (controls[PLACEBO].value - CHANCE) / (ours.value - CHANCE)))}


def remarks(runs: Sequence[Result], measure: str) -> str:
    if not runs:
        return ""
    points = [run[f"{measure}_operating"] for run in runs if run[f"{measure}_operating"]]
    parts = [str(runs[0]["task"])]
    if points:
        right, base = (float(np.mean([point[name] for point in points])) for name in ("accuracy", "base_rate"))
        holds = float(np.nanmean([point["precision"] for point in points]))
        parts.append(
            f"at its best threshold right {right:.0%} (commoner answer {base:.0%}), accusations hold {holds:.0%}"
        )
    each, most = (max(run["cost"][name] for run in runs) for name in ("a round", "peak memory, GiB"))
    parts.append(f"{each:.2g} s a round, {most:.2g} GiB")
    if runs[0]["guarantee"]:
        parts.append(runs[0]["guarantee"]["statement"])
    return "; ".join(parts)


def recipe_parts(entries: Entries) -> dict[str, Any]:
    return {"jobs": partial(jobs, entries), "rows": partial(rows, entries)}
