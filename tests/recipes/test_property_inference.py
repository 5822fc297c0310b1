"""The recipes of property inference: every published value has a run, and results become rows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.measure.exhibits import Chart
from coterie.measure.reproduced import Key, Rows
from coterie.recipes.base import Recipe
from coterie.recipes.property_inference import RECIPES
from coterie.recipes.property_inference import published as property_published
from coterie.recipes.property_inference.entries import CONTRAST, OVER_ALL, PUBLISHED
from coterie.recipes.property_inference.tables import by_part
from coterie.recipes.settings import Scale, Settings
from coterie.report.html import render_reproductions

OURS = {recipe.table: recipe for recipe in RECIPES}


def fake(auc: float) -> dict[str, Any]:
    point = {"accuracy": 0.8, "base_rate": 0.75, "precision": 0.6, "recall": 0.5}
    return {
        "task": "toy", "main_auc": 0.9, "auc": auc, "auc_within": auc, "signed_auc": auc, "signed_auc_within": auc,
        "auc_operating": point, "signed_auc_operating": point, "guarantee": None,
        "contrast_auc": auc, "contrast_auc_within": auc, "contrast_auc_operating": point,
        "observations": [[round, 0, 3, round % 2, round % 2, auc] for round in range(8)],
        "clusters": 3, "obtained": auc, "reached": auc,
        "cosines": {"0": [0.1, 0.3]}, "cost": {"a round": 0.1, "peak memory, GiB": 0.5},
        "pictures": {"neighbour_auc": auc, "has": [0, 1, 1], "x": [0.1, 0.2, 0.3], "y": [1.0, 2.0, 3.0]},
    }  # fmt: skip


@pytest.mark.parametrize("table", OURS)
@pytest.mark.parametrize("scale", list(Scale))
def test_every_recipe_lists_jobs_and_makes_rows_of_their_results(table: str, scale: Scale) -> None:
    recipe: Recipe = OURS[table]
    settings = Settings(scale, seeds=(0, 1, 2))
    jobs = recipe.jobs(settings)
    assert len(jobs) % 3 == 0
    found = recipe.shown(settings, {job.key: fake(0.7 + job.arguments["seed"] / 100) for job in jobs})
    assert len(found.rows) > 0  # and no key twice, or there would be no rows
    assert all(math.isfinite(row.ours.value) for row in found.rows)
    assert len({row.label for row in found.rows}) == len(found.rows)
    kinds = [chart.kind for chart in found.charts if isinstance(chart, Chart)]
    assert kinds == (["scatter", "line"] * (len(found.charts) // 2))
    assert bool(found.charts) == (table == "Fig 2-4")
    scored = [row.ours for row in found.rows if "features" in row.key]
    assert all(ours.low < ours.value < ours.high and list(ours.by_seed) == [0, 1, 2] for ours in scored)


def test_the_page_draws_figures_2_to_4_from_the_tables_own_runs() -> None:
    settings = Settings(Scale.PAPER, seeds=(0,))
    jobs = OURS["Fig 2-4"].jobs(settings)
    assert {job.key for job in jobs} < {job.key for table in ("9", "9 reviews") for job in OURS[table].jobs(settings)}
    page = render_reproductions("Figures", [OURS["Fig 2-4"].shown(settings, {job.key: fake(0.7) for job in jobs})])
    for figure in ("Figure 2: C", "Figure 3: D", "Figure 4: C", "Figure 4: D"):
        assert f"{figure} FL" in page
        assert f"{figure} CFL" in page
    assert page.count("<svg") >= 8


def test_published_values_stand_beside_their_own_rows() -> None:
    settings = Settings(Scale.PAPER, seeds=(0,))

    def published(table: str, **key: str | float) -> float | None:
        as_printed = {"features": PUBLISHED, "scoring": OVER_ALL}
        return OURS[table].shown(settings, {}).rows[Key.of(**(key | as_printed))].published

    assert published("9", task="A", method="FL", clients=3) == 0.873
    assert published("9", task="C", method="CFL", clients=20) == 0.8002
    quiet: dict[str, Any] = {"attack": "passive", "gamma": 0.0, "defence": "DP-SGD"}
    assert published("7 and 8", task="C", method="CFL", clients=5, **quiet, strength=0.5) == 0.5081
    loud: dict[str, Any] = {"attack": "active", "gamma": 1.0, "defence": "DP-SGD"}
    assert published("7 and 8", task="A", method="CFL", clients=20, **loud, strength=0.2) == 0.4952
    assert published("4", task="B", method="CFL", clients=10, attack="scaled", gamma=5.0) == 0.8644
    ours = [row.published for row in OURS["9"].shown(settings, {}).rows.where(features=CONTRAST)]
    assert set(ours) == {None}
    assert len(property_published.PASSIVE) == 18


def test_controls_stand_with_their_row() -> None:
    settings = Settings(seeds=(0, 1, 2), rows=("C CFL",))
    scores = {"none": 0.8, "placebo": 0.6, "absent": 0.5}
    results = {job.key: fake(scores[job.arguments["plan"]["control"]]) for job in OURS["9"].jobs(settings)}
    rows = OURS["9"].shown(settings, results).rows
    row = rows[Key.of(task="C", method="CFL", clients=3, features=PUBLISHED, scoring=OVER_ALL)]
    assert {name: round(value.value, 3) for name, value in row.values.items()} == {
        "placebo": 0.6,
        "absent": 0.5,
        "explained by placebo": 0.333,
        "chance": 0.5,
        "main task AUC": 0.9,
    }


def test_rows_and_seeds_can_be_chosen() -> None:
    recipe = OURS["9"]
    some = recipe.jobs(Settings(seeds=(4,), rows=("C CFL 3",)))
    assert sorted(job.key for job in some) == [
        f"drawn/C-CFL-3clients-{control}-seed4" for control in ("absent", "none", "placebo")
    ]


def test_scores_by_size_and_time() -> None:
    key = Key.of(clients=8, share=0.5)
    rows = Rows.of(by_part(key, {0: fake(0.5)}))
    by_size, by_time = rows[key.but(size=3)], rows[key.but(quarter=1)]
    assert (by_size.ours.value, by_time.ours.value) == (1.0, 1.0)  # the toy's contrast is the answer
    assert by_size.label == "property share 0.5, clusters of 3"
    assert by_time.label == "property share 0.5, quarter 1 of the rounds"
