"""Paper 003's tables: every job has a name, a small one runs from jobs to claims, and the attack's rows are ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.measure.reproduced import Decision, Estimate, Key, Row, Rows
from coterie.recipes.settings import Settings
from coterie.recipes.vertical_kmeans import RECIPES, published, tables
from coterie.recipes.vertical_kmeans.claims import recovery_claims, total_claims
from coterie.recipes.vertical_kmeans.runs import BLINDED, MASKED, NONE, ONCE, recovery

OURS = {recipe.table: recipe for recipe in RECIPES}


def test_every_job_has_a_name_of_its_own() -> None:
    for recipe in RECIPES:
        jobs = recipe.jobs(Settings(seeds=(0, 1)))
        assert len({job.key for job in jobs}) == len(jobs) > 0


def test_every_published_value_stands_beside_one_of_ours() -> None:
    keys = tables.TABLE_1.keys(Settings())
    printed = [value for key in keys if (value := tables.TABLE_1.printed(key)) is not None]
    assert sorted(printed) == sorted(value for row in published.TABLE_1.values() for value in row.values())


def test_a_small_table_from_jobs_to_claims(tmp_path: Path) -> None:
    found = OURS["Table 1"].run(Settings(seeds=(0, 1), rows=("wave",)), tmp_path, processes=1)
    assert len(found.rows) == 5
    plain = found.rows[Key.of(data="wave", mechanism=NONE)]
    assert plain.published == 0.9603
    assert 0.5 < plain.ours.value <= 1.0
    assert len(found.claims) == 2


def test_totals_are_what_they_say(tmp_path: Path) -> None:
    settings = Settings(seeds=(0,), rows=("iris, piecewise, total 60", "iris, perturb_once, total 60"))
    found = OURS["totals"].run(settings, tmp_path, processes=1)
    totals = {row.key["mechanism"]: row.values["total"] for row in found.rows}
    assert totals[ONCE].value == pytest.approx(60)
    assert not totals["piecewise"].is_known  # the sum of what is told of the record itself, and no price


def test_recovery_of_a_small_set() -> None:
    exact = recovery("iris", "totals over the parties", 8, 0, clusters=4, steps=6, records=150)
    assert exact["least"] > 0.99
    assert (exact["rank"], exact["columns"], exact["undecided"]) == (4, 4, 0)
    assert exact["told"] == exact["least"]
    blinded = recovery(
        "iris", "the shapes of blinded totals", 8, 0, BLINDED, clusters=4, steps=3, parties=4, records=150
    )
    assert blinded["mean"] < exact["mean"]


def test_records_that_moved(tmp_path: Path) -> None:
    found = OURS["successive"].run(Settings(seeds=(0, 1), rows=("breast_cancer",)), tmp_path, processes=1)
    assert len(found.rows) == 3
    assert all(row.values["right"].value >= 0.9 for row in found.rows)
    assert len(found.claims) == 6


def test_both_halves_of_table_2(tmp_path: Path) -> None:
    rows = Settings(seeds=(0,), rows=("collusion, monitor alone", "profiling, ZKP"))
    left = OURS["Table 2"].run(rows, tmp_path, processes=1).rows
    assert [row.published for row in left] == [pytest.approx(0.8638), None]
    assert [row.ours.value > 0.9 for row in left] == [False, True]  # proofs hide no column; a lie is flagged
    strong = replace(rows, rows=("collusion, monitor alone, strength 0.5",))
    caught = OURS["Table 2, F"].run(strong, tmp_path, processes=1).rows
    assert [row.values["kind"].value for row in caught] == [1.0]


def row(value: float, **key: str | float | int) -> Row:
    estimate = Estimate.over({0: value, 1: value + 1e-4, 2: value - 1e-4})
    return Row(Key.of(**key), "row", None, estimate, {"least": estimate, "told": estimate})


def test_claims_can_fail() -> None:
    there: dict[str, str | int] = {"data": "acs_income", "known": 13}
    good, bad = (
        recovery_claims(Rows.of([row(value, **there, seen="totals over the parties", mechanism=MASKED)]))
        for value in (0.999, 0.5)
    )
    assert [claim.decision for claim in good] == [Decision.HOLDS] * 2
    assert [claim.decision for claim in bad] == [Decision.FAILS] * 2
    both = Rows.of(
        [row(0.4, data="iris", mechanism=ONCE, total=60.0), row(0.9, data="iris", mechanism="laplace", total=60.0)]
    )
    assert [claim.decision for claim in total_claims(both)] == [Decision.FAILS]
    assert replace(OURS["Fig 5"]).claims(both) == ()
