"""How cells of paper 000's tables become jobs, and their results lines and claims."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binom, t

from coterie.measure.intervals import CONFIDENCE
from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Scale, Settings
from coterie.recipes.property_inference.runs import Plan, attacked
from coterie.run.jobs import Job, Result

PLACEBO, ABSENT, SIGNED, WITHIN = ", placebo", ", absent", ", signed features", ", within clusters"
MAIN_TASK = ", main task"
CHANCE = 0.5


@dataclass(frozen=True)
class Row:
    """A cell of a published table and the run that stands for it; with ``controls``, also placebo and absent."""

    label: str
    published: float | None
    plan: Plan
    controls: bool = True

    @property
    def plans(self) -> dict[str, Plan]:
        """By what is added to the label."""
        found = {"": self.plan}
        if self.controls:
            found |= {
                PLACEBO: replace(self.plan, control="placebo"),
                ABSENT: replace(self.plan, control="absent"),
            }
        return found


Rows = Callable[[Scale], Sequence[Row]]


def jobs(rows: Rows, settings: Settings, pictures: bool = False) -> list[Job]:
    data = str(settings.data.resolve()) if settings.data else None
    plans = {plan.key: plan for row in chosen(rows, settings) for plan in row.plans.values()}
    return [
        Job(
            f"{'data' if data else 'drawn'}{'-pictured' if pictures else ''}/{key}-seed{seed}",
            attacked,
            {"plan": asdict(plan), "seed": seed, "scale": settings.scale.value, "data": data, "pictures": pictures},
        )
        for key, plan in plans.items()
        for seed in settings.seeds
    ]


def chosen(rows: Rows, settings: Settings) -> list[Row]:
    return [row for row in rows(settings.scale) if settings.wants(row.label)]


def by_plan(results: Mapping[str, Result]) -> defaultdict[str, list[Result]]:
    """The results of all seeds, by the key of their plan."""
    found = defaultdict(list)
    for key, result in results.items():
        found[key.rpartition("/")[2].rpartition("-seed")[0]].append(result)
    return found


def line(label: str, published: float | None, values: Iterable[float], note: str = "") -> Line:
    found = [value for value in values if not math.isnan(value)]
    if not found:
        return Line(label, published, math.nan, note=note or "no round to tell apart")
    low, high = np.clip(t_interval(found), 0.0, 1.0)  # all that stands in these tables lies there
    return Line(label, published, float(np.mean(found)), float(low), float(high), note, len(found))


def lines(rows: Rows, settings: Settings, results: Mapping[str, Result]) -> list[Line]:
    """Each cell by the published features and by signed ones, with its controls; CFL also within clusters.

    As published, a cluster that the victim is not in counts as a negative in every round, so an attack that tells
    clusters apart scores without recognising any property. Within clusters, only rounds of the same one are compared.
    """
    found = by_plan(results)
    table = []
    for row in chosen(rows, settings):
        scorings = (("", ""), ("_within", WITHIN)) if row.plan.method == "CFL" else (("", ""),)
        for measure, features in (("auc", ""), ("signed_auc", SIGNED)):
            for scoring, words in scorings:
                for control, plan in row.plans.items():
                    runs = found[plan.key]
                    label = row.label + features + words + control
                    published = row.published if label == row.label else None
                    note = "" if words or control else notes(runs, measure)
                    table.append(line(label, published, values(runs, measure + scoring), note))
    return explained(table)


def values(runs: Sequence[Result], name: str) -> list[float]:
    return [run[name] for run in runs]


def notes(runs: Sequence[Result], measure: str) -> str:
    if not runs:
        return ""
    points = [run[f"{measure}_operating"] for run in runs if run[f"{measure}_operating"]]
    parts = [runs[0]["task"], f"main task AUC {np.mean(values(runs, 'main_auc')):.3f}"]
    if points:
        right, base = (float(np.mean([point[name] for point in points])) for name in ("accuracy", "base_rate"))
        holds = float(np.nanmean([point["precision"] for point in points]))
        parts.append(
            f"at its best threshold right {right:.0%} (commoner answer {base:.0%}), accusations hold {holds:.0%}"
        )
    if runs[0]["guarantee"]:
        parts.append(runs[0]["guarantee"]["statement"])
    return "; ".join(parts)


def explained(table: Sequence[Line]) -> list[Line]:
    """Say in each placebo's line how much of the score above chance it accounts for."""
    by_label = {one.row: one for one in table}
    told = []
    for one in table:
        real = by_label.get(one.row.removesuffix(PLACEBO))
        if one.row.endswith(PLACEBO) and real is not None and real.ours > CHANCE:
            share = max(0.0, (one.ours - CHANCE) / (real.ours - CHANCE))
            one = replace(one, note=f"explains {share:.0%} of the score above chance")
        told.append(one)
    return told


# -- what the lines say -----------------------------------------------------------------------------------------------


def controls_at_chance(table: Sequence[Line]) -> list[Claim]:
    """Of many 95 % intervals some miss 0.5 although it is true; the claim allows for as many as chance makes likely.

    It allows for none that misses still when all are widened to hold together.
    """
    controls = [one for one in table if one.row.endswith((PLACEBO, ABSENT))]
    clean = [one for one in controls if WITHIN in one.row or " CFL " not in one.row]
    pooled = [one for one in controls if one not in clean]
    claims = []
    for which, part in (("within a cluster", clean), ("over all clusters, as published", pooled)):
        if part:
            off = [one for one in part if not one.low <= CHANCE <= one.high]
            by_chance = int(binom.ppf(CONFIDENCE, len(part), 1 - CONFIDENCE))
            far = [one for one in off if abs(one.ours - CHANCE) > together(one, len(part))]
            evidence = f"{len(off)} of {len(part)} intervals miss 0.5, where up to {by_chance} would by chance"
            evidence += "".join(f"; {shown(one)}{', by far' if one in far else ''}" for one in off)
            claims.append(Claim(f"the controls score 0.5, {which}", len(off) <= by_chance and not far, evidence))
    return claims


def together(one: Line, count: int) -> float:
    """How far the line's interval reaches if ``count`` of its kind are to hold together (Bonferroni)."""
    alone, all_ = (t.ppf(1 - (1 - CONFIDENCE) / 2 / number, one.seeds - 1) for number in (1, count))
    return float(max(one.high - one.ours, one.ours - one.low) * all_ / alone)


def found_beyond_placebo(table: Sequence[Line]) -> list[Claim]:
    by_label = {one.row: one for one in table}
    pairs = [(one, by_label[one.row + PLACEBO]) for one in table if one.row + PLACEBO in by_label]
    if not pairs:
        return []
    apart = [(real, control) for real, control in pairs if real.low > control.high]
    evidence = "; ".join(f"{shown(real)} against placebo {shown(control, '')}" for real, control in apart)
    return [
        Claim(
            "the attack is above its placebo, with intervals apart, for at least one combination",
            bool(apart),
            evidence or "no pair of intervals is apart",
        )
    ]


def above(table: Sequence[Line], claim: str, higher: str, lower: str) -> list[Claim]:
    """Whether every row with ``higher`` in its label beats the same row with ``lower`` in its place."""
    by_label = {one.row: one for one in table}
    claims = []
    for one in table:
        twin = one.row.replace(higher, lower)
        other = by_label.get(twin) or by_label.get(twin.replace(WITHIN, ""))  # FL has one cluster
        if higher in one.row and other is not None and other is not one and not one.row.endswith((PLACEBO, ABSENT)):
            holds = True if one.low > other.high else False if one.high < other.low else None
            decided = {True: "holds", False: "is the other way round", None: "is not decided by these intervals"}[holds]
            claims.append(Claim(f"{claim} ({one.row})", holds, f"{shown(one)} against {shown(other)}: {decided}"))
    return claims


def in_one_sentence(text: str, claims: Sequence[Claim]) -> list[Claim]:
    """A claim over all comparisons of a table: it holds if each does, and fails if any is the other way round."""
    if len(claims) < 2:
        return []
    found = [claim.holds for claim in claims]
    holds = True if all(found) else False if False in found else None
    counts = f"holds in {found.count(True)} of {len(found)} comparisons, {found.count(False)} are the other way round"
    return [Claim(text, holds, f"{counts}, {found.count(None)} undecided")]


def at_chance(table: Sequence[Line], claim: str, mark: str) -> list[Claim]:
    skipped = (PLACEBO, ABSENT, MAIN_TASK)
    return [
        Claim(f"{claim} ({one.row})", one.low <= CHANCE <= one.high, shown(one))
        for one in table
        if mark in one.row and not one.row.endswith(skipped)
    ]


def shown(one: Line, label: str | None = None) -> str:
    name = one.row if label is None else label
    return f"{name} {one.ours:.3f} [{one.low:.3f}, {one.high:.3f}]".strip()


def recipe_parts(rows: Rows, **more: Any) -> dict[str, Any]:
    return {"jobs": partial(jobs, rows, **more), "lines": partial(lines, rows)}
