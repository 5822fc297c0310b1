"""Paper 000's tables and figures: which runs stand in each, beside which published values.

Also what the paper does not show: how the attack depends on the cluster's size, on the share of property data, and on
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coterie.measure.exhibits import Chart, Series
from coterie.measure.judge import stratified_auc
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import of_seeds
from coterie.recipes.property_inference import published
from coterie.recipes.property_inference.acquisition import CLUSTERS, besieged
from coterie.recipes.property_inference.entries import (
    ABSENT,
    MAIN_TASK,
    PLACEBO,
    STEADINESS,
    Entry,
    chosen,
    files_read,
    label,
    named,
    remark,
    rows,
    runs_of,
    share,
)
from coterie.recipes.property_inference.runs import FIGURES, Plan
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Job, Result

METHODS = ("FL", "CFL")
FACES, REVIEWS, ALL = "ABC", "DE", "ABCDE"
PUBLISHED_CLIENTS = (5, 10, 15, 20)
QUICK_CLIENTS = (3, 5, 10, 20)
CONTROLLED = 10  # clients up to which a quick table has controls
OUT, LEFT_IN = "taken out", "left in"


def beside(clients: int) -> int:
    """The number of clients whose published value stands beside ours: tables 4 to 8 begin at 5."""
    return max(clients, PUBLISHED_CLIENTS[0])


def many(scale: Scale, quick: Sequence[int], paper: Sequence[int]) -> Sequence[int]:
    return quick if scale is Scale.QUICK else paper


def key_of(task: str, method: str, clients: int, **more: str | float) -> Key:
    return Key.of(task=task, method=method, clients=clients, **more)


# -- tables 3 and 9 ---------------------------------------------------------------------------------------------------


def passive(
    tasks: str, quick: Sequence[int], paper: Sequence[int], scale: Scale, quick_tasks: str | None = None
) -> list[Entry]:
    """Quick: controls for the smallest federations, which cost least and of which most shows."""
    if quick_tasks is not None and scale is Scale.QUICK:
        tasks = quick_tasks
    return [
        Entry(
            key_of(task, method, clients),
            published.PASSIVE[clients][2 * ALL.index(task) + METHODS.index(method)],
            Plan(task, method, clients),
            controls=scale is Scale.PAPER or (clients <= CONTROLLED and method == "CFL"),
        )
        for clients in many(scale, quick, paper)
        for task in tasks
        for method in METHODS
    ]


# -- tables 4, 5 and 6 ------------------------------------------------------------------------------------------------


def active(scale: Scale) -> list[Entry]:
    """The passive attack stands beside the active ones, to be compared with them. A gamma of 0 is the passive one."""
    quick, entries = scale is Scale.QUICK, []
    for clients in many(scale, (3, 5, 10), PUBLISHED_CLIENTS):
        for task in "C" if quick else FACES:
            printed = published.ACTIVE[beside(clients)][3 * FACES.index(task) :]
            for number, method in enumerate(METHODS):
                controls = not quick or (clients <= CONTROLLED and method == "CFL")
                quiet = key_of(task, method, clients, attack="passive", gamma=0.0)
                entries.append(Entry(quiet, None, Plan(task, method, clients), controls))
                loud = key_of(task, method, clients, attack="active", gamma=1.0)
                entries.append(Entry(loud, printed[number], Plan(task, method, clients, gamma=1.0), controls))
            for gamma in (5.0, 10.0):
                scaled = key_of(task, "CFL", clients, attack="scaled", gamma=gamma)
                plan = Plan(task, "CFL", clients, gamma=gamma)
                controls = gamma == 5 and (not quick or clients <= CONTROLLED)
                entries.append(Entry(scaled, printed[2], plan, controls))
    return entries


def compared(scale: Scale) -> list[Entry]:
    """With the own upload taken out of the aggregate, and with it left in: the passive attack and the scaled-up one."""
    return [
        Entry(key_of("C", method, clients, attack=attack, gamma=gamma or 0.0, own=own), None, plan, controls=False)
        for clients in many(scale, (3, 5), (5, 10))
        for method, attack, gamma in (("FL", "passive", None), ("CFL", "passive", None), ("CFL", "scaled", 5.0))
        for own in (OUT, LEFT_IN)
        for plan in (Plan("C", method, clients, gamma=gamma, keep_own=own == LEFT_IN),)
    ]


def regularised(attacked: bool, scale: Scale) -> list[Entry]:
    """Under the passive attack, or under the scaled-up one."""
    source = published.ACTIVE_REGULARISED if attacked else published.PASSIVE_REGULARISED
    gamma = 5.0 if attacked else None
    entries = []
    for clients in many(scale, (3,), PUBLISHED_CLIENTS):
        for task in "C" if scale is Scale.QUICK else FACES:
            at = 3 * FACES.index(task)
            bare = key_of(task, "CFL", clients, defence="none", strength=0.0)
            printed = source["dropout"][beside(clients)][at]
            entries.append(Entry(bare, printed, Plan(task, "CFL", clients, gamma=gamma)))
            for name, strengths in (("dropout", (0.1, 0.2)), ("penalty", (0.01, 0.02))):
                for number, strength in enumerate(strengths, 1):
                    plan = Plan(task, "CFL", clients, gamma=gamma, **{name: strength})  # type: ignore[arg-type]
                    key = key_of(task, "CFL", clients, defence=name, strength=strength)
                    printed = source[name][beside(clients)][at + number]
                    entries.append(Entry(key, printed, plan, controls=scale is Scale.PAPER))
    return entries


# -- tables 7 and 8 ---------------------------------------------------------------------------------------------------


def private(scale: Scale) -> list[Entry]:
    """Every attack under DP-SGD. Quick: 3 clients; on FL the passive attack at sigma 0.5 alone, and no controls."""
    quick, entries = scale is Scale.QUICK, []
    for clients in many(scale, (3,), PUBLISHED_CLIENTS):
        for task in "C" if quick else FACES:
            for method in METHODS:
                at = 2 * FACES.index(task) + METHODS.index(method)
                entries.append(Entry(private_key(task, method, clients), None, Plan(task, method, clients), False))
                for sigma, table in published.UNDER_DP.items():
                    if quick and method == "FL" and sigma != 0.5:
                        continue
                    printed = table[beside(clients)]
                    key, plan = private_key(task, method, clients, sigma), Plan(task, method, clients, sigma=sigma)
                    entries.append(Entry(key, printed[at], plan, not quick))
                    if quick and method == "FL":
                        continue
                    for attack, gamma, value in (("active", 1.0, printed[6 + at]), ("scaled", 5.0, None)):
                        loud = key.but(attack=attack, gamma=gamma)
                        entries.append(Entry(loud, value, replace(plan, gamma=gamma), False))
    return entries


def private_key(task: str, method: str, clients: int, sigma: float = 0.0) -> Key:
    defence = "DP-SGD" if sigma else "none"
    return key_of(task, method, clients, attack="passive", gamma=0.0, defence=defence, strength=sigma)


def private_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    """Table 7, then Table 8: the main task's AUC of the same runs."""
    utility = []
    for entry in chosen(private, settings):
        plan, runs = entry.plan, runs_of(settings, results, entry.plan)
        if plan.gamma is not None or not runs:
            continue
        at = 2 * FACES.index(plan.task) + METHODS.index(plan.method)
        printed = published.UTILITY_UNDER_DP[plan.sigma][beside(plan.clients)][at] if plan.sigma else None
        key = entry.key.but(measure=MAIN_TASK)
        utility.append(Row(key, label(key), printed, share(runs, named("main_auc"))))
    return [*rows(private, settings, results), *utility]


# -- figures 2 to 4 ---------------------------------------------------------------------------------------------------


def pictured(scale: Scale) -> list[Entry]:
    shown = [("C", 5)] if scale is Scale.QUICK else list(FIGURES)
    return [
        Entry(key_of(task, method, clients), None, Plan(task, method, clients), controls=False)
        for task, clients in shown
        for method in METHODS
    ]


def figure_charts(settings: Settings, results: Mapping[str, Result]) -> list[Chart]:
    """Figures 2 to 4, of the first seed that was run."""
    found = []
    for entry in chosen(pictured, settings):
        runs = runs_of(settings, results, entry.plan)
        if not runs:
            continue
        run = runs[min(runs)]
        plane, number = run["pictures"], FIGURES[entry.plan.task, entry.plan.clients]
        found.append(
            Chart(
                f"Figure {number}: {entry.label}",
                "Aggregate updates by t-SNE, one point a round and cluster.",
                "first coordinate",
                "second coordinate",
                [
                    Series(name, *(_where(plane[axis], plane["has"], wanted) for axis in "xy"))
                    for name, wanted in (("without the property", 0), ("with the property", 1))
                ],
                kind="scatter",
            )
        )
        found.append(
            Chart(
                f"Figure 4: {entry.label}",
                "The cosine of each aggregate with the one before it.",
                "aggregate",
                "cosine",
                [Series(f"cluster {slot}", list(range(len(of))), of) for slot, of in run["cosines"].items()],
                reference=("unrelated", 0.0),
            )
        )
    return found


def _where(values: Sequence[float], has: Sequence[int], wanted: int) -> list[float]:
    return [value for value, one in zip(values, has, strict=True) if one == wanted]


def figure_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    """What can be said of the figures in numbers."""
    table = []
    for entry in chosen(pictured, settings):
        runs = runs_of(settings, results, entry.plan)
        if not runs:
            continue
        told = share(runs, lambda run: float(run["pictures"]["neighbour_auc"]))
        key, words = entry.key.but(measure="neighbours"), f"{entry.label}, neighbours tell the property"
        table.append(Row(key, words, None, told, note="Figures 2 and 3 as an AUC"))
        table.append(_steadiness(entry, runs))
        for slot in sorted({slot for run in runs.values() for slot in run["cosines"]}):
            here = {seed: run for seed, run in runs.items() if slot in run["cosines"]}
            table += _cosines(entry, slot, here)
    return table


def _steadiness(entry: Entry, runs: Mapping[int, Result]) -> Row:
    """Over all clusters, so that FL and CFL can be compared: which cluster has which number is chance."""
    means = {seed: float(np.mean([one for of in run["cosines"].values() for one in of])) for seed, run in runs.items()}
    key, words = entry.key.but(measure=STEADINESS), f"{entry.label}, cosine of consecutive aggregates"
    return Row(key, words, None, Estimate.over(means, -1.0, 1.0), note="Section 4.4, mean over clusters")


def _cosines(entry: Entry, slot: str, runs: Mapping[int, Result]) -> list[Row]:
    """Figure 4: how alike the consecutive aggregates of a cluster are."""
    alone = entry.plan.method == "FL"
    name = "FL" if alone else f"CFL cluster {slot}"
    mean, spread = published.COSINES.get(name, (None, None)) if entry.plan.task == "C" else (None, None)
    words = entry.label + ("" if alone else f", cluster {slot}")
    key = entry.key.but(cluster=slot)

    def over(summary: Callable[[Sequence[float]], np.floating]) -> Estimate:
        return Estimate.over({seed: float(summary(run["cosines"][slot])) for seed, run in runs.items()}, -1.0, 1.0)

    return [
        Row(
            key.but(measure="cosine"),
            f"{words}, cosine in Figure 4",
            mean,
            over(np.mean),
            note="Figure 4, mean",
        ),
        Row(key.but(measure="its deviation"), f"{words}, its deviation", spread, over(np.std), note="Figure 4"),
    ]


# -- what the paper does not show -------------------------------------------------------------------------------------


def beyond(scale: Scale) -> list[Entry]:
    clients = many(scale, (3, 5, 8), (3, 5, 8, 12, 20))
    cells = [(number, 1.0) for number in clients] + [(3, part) for part in (0.75, 0.5, 0.25)]
    return [
        Entry(Key.of(clients=number, share=part), None, Plan("C", "CFL", number, purity=part), controls=False)
        for number, part in cells
    ]


def beyond_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    table = []
    for entry in chosen(beyond, settings):
        runs = runs_of(settings, results, entry.plan)
        if runs:
            table.append(Row(entry.key, entry.label, None, share(runs, named("contrast_auc"))))
            table += by_part(entry.key, runs)
    return table


def by_part(key: Key, runs: Mapping[int, Result]) -> list[Row]:
    """The AUC by the cluster's size and over time, within clusters."""
    # (observations, round cluster size has, a score by each reader): the first is the contrast
    seen = {seed: np.array(run["observations"], float) for seed, run in runs.items()}
    sizes = sorted({int(size) for one in seen.values() for size in one[:, 2]})
    parts = {key.but(size=size): {seed: one[one[:, 2] == size] for seed, one in seen.items()} for size in sizes}
    for quarter in range(4):
        parts[key.but(quarter=quarter + 1)] = {seed: _quarter(one, quarter) for seed, one in seen.items()}
    found = {part: Estimate.over({seed: _auc(one) for seed, one in of.items()}, 0.0, 1.0) for part, of in parts.items()}
    return [Row(part, label(part), None, ours, note=remark(ours)) for part, ours in found.items()]


def _quarter(seen: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    first, last = np.quantile(seen[:, 0], [number / 4, (number + 1) / 4])
    inside: NDArray[np.float64] = seen[(seen[:, 0] >= first) & (seen[:, 0] <= last)]
    return inside


def _auc(seen: NDArray[np.float64]) -> float:
    return stratified_auc(seen[:, 4], seen[:, 3].astype(bool), seen[:, 1].tolist())[0] if len(seen) else float("nan")


# -- appendix A -------------------------------------------------------------------------------------------------------

NEWCOMERS = (1, 2, 3, 4)
MEASURES = {
    "obtained": "share of models obtained",
    "reached": "property rounds within reach",
    "auc": "property AUC",
    "signed_auc": "property AUC, signed features",
}


def sieges(settings: Settings) -> list[tuple[int, str]]:
    """Numbers of newcomers with their control; controls where every cluster can be reached."""
    cells = [(newcomers, "none") for newcomers in NEWCOMERS] + [(CLUSTERS, PLACEBO), (CLUSTERS, ABSENT)]
    return [(newcomers, control) for newcomers, control in cells if settings.wants(f"{newcomers} newcomers")]


def siege_key(settings: Settings, newcomers: int, control: str, seed: int) -> str:
    return f"{'data' if settings.data else 'drawn'}/{newcomers}-{control}-seed{seed}"


def siege_jobs(settings: Settings) -> list[Job]:
    shared = {"scale": settings.scale.value, "data": settings.folder}
    return [
        Job(
            siege_key(settings, newcomers, control, seed),
            besieged,
            {"newcomers": newcomers, "control": control, "seed": seed, **shared},
            files_read("C", settings),
        )
        for newcomers, control in sieges(settings)
        for seed in settings.seeds
    ]


def siege_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    cells = sieges(settings)
    found = {
        cell: runs for cell in cells if (runs := of_seeds(results, settings.seeds, partial(siege_key, settings, *cell)))
    }
    table = []
    for (newcomers, control), runs in found.items():
        if control != "none":
            continue
        for measure, words in MEASURES.items():
            beside = (PLACEBO, ABSENT) if measure.endswith("auc") else ()
            values = {
                name: share(found[newcomers, name], named(measure)) for name in beside if (newcomers, name) in found
            }
            if measure == "obtained":
                values["clusters"] = Estimate.over({seed: float(run["clusters"]) for seed, run in runs.items()}, 1.0)
            ours = share(runs, named(measure))
            key = Key.of(newcomers=newcomers, measure=measure)
            table.append(Row(key, f"{newcomers} newcomers: {words}", None, ours, values, remark(ours)))
    return table
