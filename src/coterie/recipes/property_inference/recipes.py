"""Paper 000: property inference on clustered federations (Kim et al., RAID 2023).

The paper's own tables and figures, with published values beside ours, and what it does not show: how the attack
depends on the cluster's size, on the share of property data, and on time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coterie.measure.judge import stratified_auc
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.recipes.property_inference import published as published
from coterie.recipes.property_inference.runs import Plan
from coterie.recipes.property_inference.tables import (
    MAIN_TASK,
    WITHIN,
    Row,
    above,
    at_chance,
    by_plan,
    controls_at_chance,
    found_beyond_placebo,
    in_one_sentence,
    jobs,
    line,
    lines,
    recipe_parts,
    values,
)
from coterie.run.jobs import Result

PAPER = "property-inference"
METHODS = ("FL", "CFL")
FACES, ALL = "ABC", "ABCDE"
PUBLISHED_CLIENTS = (5, 10, 15, 20)
DIFFERS = (
    "labels of the victim's two kinds of batch are matched; 2 clusters (the paper gives no number); DP-SGD clips at 1. "
    "Quick: pictures of 16x16 or texts of 30 words, 150 rounds of warm-up and 120 scored, learning rate 0.1 (reviews "
    "0.5), a property batch every 3rd round, aggregates imagined every 4th. Signed features are a stronger attack than "
    "the paper's; scores within clusters leave out what telling clusters apart gives. Tables 4 to 8 quick: 3 clients, "
    "beside the paper's 5; controls where they say most"
)
NEEDS = "CelebA or LFW (--data); without it faces are drawn"


def beside(clients: int) -> int:
    """The number of clients whose published value stands beside ours: tables 4 to 8 begin at 5."""
    return max(clients, PUBLISHED_CLIENTS[0])


def many(scale: Scale, quick: Sequence[int], paper: Sequence[int]) -> Sequence[int]:
    return quick if scale is Scale.QUICK else paper


# -- tables 3 and 9 ---------------------------------------------------------------------------------------------------


def passive_rows(
    tasks: str, quick: Sequence[int], paper: Sequence[int], scale: Scale, quick_tasks: str | None = None
) -> list[Row]:
    if quick_tasks is not None and scale is Scale.QUICK:
        tasks = quick_tasks
    return [
        Row(
            f"{task} {method} {clients} clients",
            published.PASSIVE[clients][2 * ALL.index(task) + METHODS.index(method)],
            Plan(task, method, clients),
        )
        for clients in many(scale, quick, paper)
        for task in tasks
        for method in METHODS
    ]


def passive_claims(table: Sequence[Line]) -> list[Claim]:
    compared = above(table, "CFL leaks more than FL", " CFL ", " FL ")
    within = [claim for claim in compared if WITHIN in claim.text]
    return [
        *controls_at_chance(table),
        *found_beyond_placebo(table),
        *compared,
        *in_one_sentence("CFL leaks more than FL, scored within clusters", within),
    ]


# -- tables 4, 5 and 6 ------------------------------------------------------------------------------------------------


def active_rows(scale: Scale) -> list[Row]:
    """The passive attack stands beside the active ones, to be compared with them."""
    rows = []
    for clients in many(scale, (3,), PUBLISHED_CLIENTS):
        for task in "C" if scale is Scale.QUICK else FACES:
            values_ = published.ACTIVE[beside(clients)][3 * FACES.index(task) :]
            for method in METHODS:
                rows.append(Row(f"{task} {method} {clients} clients passive", None, Plan(task, method, clients), False))
                number = METHODS.index(method)
                active = Plan(task, method, clients, gamma=1.0)
                rows.append(Row(f"{task} {method} {clients} clients active", values_[number], active))
            for gamma in (5.0, 10.0):
                scaled = Plan(task, "CFL", clients, gamma=gamma)
                rows.append(Row(f"{task} CFL {clients} clients scaled {gamma:g}", values_[2], scaled, gamma == 5))
    return rows


def active_claims(table: Sequence[Line]) -> list[Claim]:
    active = above(table, "the active attack is better than the passive one", " active", " passive")
    scaled = [
        claim
        for gamma in ("5", "10")
        for claim in above(table, "scaling up is better than not", f" scaled {gamma}", " active")
    ]
    return [
        *controls_at_chance(table),
        *active,
        *in_one_sentence("the active attack is better than the passive one", active),
        *scaled,
        *in_one_sentence("scaling up is better than not", scaled),
    ]


def regularised_rows(active: bool, scale: Scale) -> list[Row]:
    source = published.ACTIVE_REGULARISED if active else published.PASSIVE_REGULARISED
    gamma = 5.0 if active else None
    rows = []
    for clients in many(scale, (3,), PUBLISHED_CLIENTS):
        for task in "C" if scale is Scale.QUICK else FACES:
            base = f"{task} CFL {clients} clients"
            at = 3 * FACES.index(task)
            rows.append(
                Row(
                    f"{base} undefended",
                    source["dropout"][beside(clients)][at],
                    Plan(task, "CFL", clients, gamma=gamma),
                )
            )
            for name, strengths in (("dropout", (0.1, 0.2)), ("penalty", (0.01, 0.02))):
                for number, strength in enumerate(strengths, 1):
                    plan = Plan(task, "CFL", clients, gamma=gamma, **{name: strength})  # type: ignore[arg-type]
                    row = Row(f"{base} {name} {strength:g}", source[name][beside(clients)][at + number], plan)
                    rows.append(replace(row, controls=scale is Scale.PAPER))
    return rows


def regularised_claims(table: Sequence[Line]) -> list[Claim]:
    weaker = [
        above(table, f"{defence} lowers the attack", " undefended", f" {defence}")
        for defence in ("dropout 0.1", "dropout 0.2", "penalty 0.01", "penalty 0.02")
    ]
    return [*controls_at_chance(table), *(claim for claims in weaker for claim in claims)]


# -- tables 7 and 8 ---------------------------------------------------------------------------------------------------


def private_rows(scale: Scale) -> list[Row]:
    """Quick: a clustered federation at sigma 0.5 with controls and the active attack; beside it, 0.2 and FL without."""
    quick = scale is Scale.QUICK
    rows = []
    for clients in many(scale, (3,), PUBLISHED_CLIENTS):
        for task in "C" if scale is Scale.QUICK else FACES:
            for method in METHODS:
                base = f"{task} {method} {clients} clients"
                rows.append(Row(f"{base} undefended", None, Plan(task, method, clients), False))
                for sigma, table in published.UNDER_DP.items():
                    main = method == "CFL" and sigma == 0.5
                    if quick and method == "FL" and sigma != 0.5:
                        continue
                    at = 2 * FACES.index(task) + METHODS.index(method)
                    quiet = Plan(task, method, clients, sigma=sigma)
                    rows.append(Row(f"{base} sigma {sigma:g}", table[beside(clients)][at], quiet, main or not quick))
                    if quick and not main:
                        continue
                    loud = Plan(task, method, clients, gamma=1.0, sigma=sigma)
                    rows.append(Row(f"{base} active sigma {sigma:g}", table[beside(clients)][6 + at], loud, False))
    return rows


def private_lines(settings: Settings, results: Mapping[str, Result]) -> list[Line]:
    """Table 7, then Table 8: the main task's AUC of the same runs."""
    found = by_plan(results)
    utility = []
    for row in private_rows(settings.scale):
        runs = found[row.plan.key]
        if not settings.wants(row.label) or row.plan.gamma is not None or not runs:
            continue
        at = 2 * FACES.index(row.plan.task) + METHODS.index(row.plan.method)
        printed = published.UTILITY_UNDER_DP[row.plan.sigma][beside(row.plan.clients)][at] if row.plan.sigma else None
        utility.append(line(row.label + MAIN_TASK, printed, values(runs, "main_auc")))
    return [*lines(private_rows, settings, results), *utility]


def private_claims(table: Sequence[Line]) -> list[Claim]:
    utility = [one for one in table if one.row.endswith(MAIN_TASK)]
    return [
        *controls_at_chance(table),
        *at_chance(table, "DP-SGD brings the attack to 0.5", " sigma "),
        *above(utility, "CFL keeps more utility than FL", " CFL ", " FL "),
    ]


# -- figures 2 to 4 ---------------------------------------------------------------------------------------------------


def figure_rows(scale: Scale) -> list[Row]:
    shown = [("C", 5)] if scale is Scale.QUICK else [("C", 5), ("D", 13)]
    return [
        Row(f"{task} {method} {clients} clients", None, Plan(task, method, clients), False)
        for task, clients in shown
        for method in METHODS
    ]


def figure_lines(settings: Settings, results: Mapping[str, Result]) -> list[Line]:
    """The coordinates for Figures 2 and 3 are in the stored results; here is what can be said in numbers."""
    found = by_plan(results)
    table = []
    for row in figure_rows(settings.scale):
        runs = found[row.plan.key]
        if not settings.wants(row.label) or not runs:
            continue
        separated = [run["pictures"]["neighbour_auc"] for run in runs]
        table.append(line(f"{row.label}, neighbours tell the property", None, separated, "Figures 2 and 3 as an AUC"))
        slots = sorted({slot for run in runs for slot in run["cosines"]})
        for slot in slots:
            name = row.plan.method if row.plan.method == "FL" else f"CFL cluster {slot}"
            printed = published.COSINES.get(name, (None, None)) if row.plan.task == "C" else (None, None)
            series = [run["cosines"][slot] for run in runs if slot in run["cosines"]]
            means = [float(np.mean(one)) for one in series]
            spreads = [float(np.std(one)) for one in series]
            which = "" if row.plan.method == "FL" else f", cluster {slot}"
            table.append(
                line(f"{row.label}{which}, cosine of consecutive aggregates", printed[0], means, "Figure 4, mean")
            )
            table.append(line(f"{row.label}{which}, its deviation", printed[1], spreads, "Figure 4"))
    return table


# -- what the paper does not show -------------------------------------------------------------------------------------


def beyond_rows(scale: Scale) -> list[Row]:
    clients = many(scale, (3, 5, 8), (3, 5, 8, 12, 20))
    rows = [Row(f"{number} clients", None, Plan("C", "CFL", number), False) for number in clients]
    shares = (0.75, 0.5, 0.25)
    return rows + [Row(f"property share {share:g}", None, Plan("C", "CFL", 3, purity=share), False) for share in shares]


def beyond_lines(settings: Settings, results: Mapping[str, Result]) -> list[Line]:
    found = by_plan(results)
    table = []
    for row in beyond_rows(settings.scale):
        runs = found[row.plan.key]
        if not settings.wants(row.label) or not runs:
            continue
        table.append(line(row.label, None, values(runs, "signed_auc")))
        table += by_part(row.label, runs)
    return table


def by_part(label: str, runs: Sequence[Result]) -> list[Line]:
    """The signed attack's AUC by the cluster's size and over time, within clusters."""
    seen = [np.array(run["observations"], float) for run in runs]  # (observations, round cluster size has score signed)
    sizes = sorted({int(size) for one in seen for size in one[:, 2]})
    table = [
        line(f"{label}, clusters of {size}", None, [_auc(one[one[:, 2] == size]) for one in seen]) for size in sizes
    ]
    for quarter in range(4):
        parts = []
        for one in seen:
            ends = np.quantile(one[:, 0], [quarter / 4, (quarter + 1) / 4])
            parts.append(_auc(one[(one[:, 0] >= ends[0]) & (one[:, 0] <= ends[1])]))
        table.append(line(f"{label}, quarter {quarter + 1} of the rounds", None, parts))
    return table


def _auc(seen: np.ndarray) -> float:
    return stratified_auc(seen[:, 5], seen[:, 3].astype(bool), seen[:, 1].tolist())[0] if len(seen) else float("nan")


def recipe(table: str, title: str, **parts: Any) -> Recipe:
    return Recipe(PAPER, table, title, shares="jobs", **({"needs": NEEDS, "differs": DIFFERS} | parts))


RECIPES = (
    recipe(
        "3", "Passive attack, FL against CFL, faces (quick: C, 5 clients)",
        **recipe_parts(partial(passive_rows, FACES, (5,), PUBLISHED_CLIENTS, quick_tasks="C")), claims=passive_claims,
    ),
    recipe(
        "9", "Passive attack for 3 to 20 clients (quick: 3), faces",
        **recipe_parts(partial(passive_rows, FACES, (3,), tuple(published.PASSIVE))), claims=passive_claims,
    ),
    recipe(
        "9 reviews", "Passive attack for 3 to 20 clients (quick: 3), reviews",
        **recipe_parts(partial(passive_rows, "DE", (3,), tuple(published.PASSIVE))), claims=passive_claims,
        needs="the four critics or Yelp (--data)",
    ),
    recipe("4", "Active and scaled-up attacks", **recipe_parts(active_rows), claims=active_claims),
    recipe(
        "5", "Passive attack on CFL under dropout and L2",
        **recipe_parts(partial(regularised_rows, False)), claims=regularised_claims,
    ),
    recipe(
        "6", "Scaled-up attack on CFL under dropout and L2",
        **recipe_parts(partial(regularised_rows, True)), claims=regularised_claims,
    ),
    recipe(
        "7 and 8", "Attack and utility under DP-SGD",
        jobs=partial(jobs, private_rows), lines=private_lines, claims=private_claims,
    ),
    recipe(
        "Fig 2-4", "t-SNE of aggregate updates, and their similarity from round to round",
        jobs=partial(jobs, figure_rows, pictures=True), lines=figure_lines,
    ),
    recipe(
        "beyond", "By cluster size, share of property data, and time: not in the paper",
        jobs=partial(jobs, beyond_rows), lines=beyond_lines,
    ),
)  # fmt: skip
