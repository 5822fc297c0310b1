"""Paper 002's recipes: every figure is there, jobs run, and claims can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import DataMissing
from coterie.measure.reproduced import Line
from coterie.recipes import all_recipes
from coterie.recipes.base import Scale, Settings, find
from coterie.recipes.federated_kmeans import recipes
from coterie.recipes.federated_kmeans import runs as kmeans_runs
from coterie.recipes.federated_kmeans.costs import BASELINE, KFED, PRIVATE, PUBLIC, Figure, Point
from coterie.recipes.federated_kmeans.recipes import Histogram

ONE_SEED = Settings(seeds=(0, 1))


def test_every_figure_is_there_and_its_jobs_have_names() -> None:
    found = {recipe.table: recipe for recipe in find(all_recipes(), recipes.PAPER, None)}
    assert {*(f"Fig {number}" for number in range(1, 8)), "Sec 5.3", "best"} <= found.keys()
    for scale in Scale:
        for recipe in found.values():
            keys = [job.key for job in recipe.jobs(Settings(scale))]
            assert len(set(keys)) == len(keys) > 0


def test_a_small_figure_from_jobs_to_claims(tmp_path: Path) -> None:
    """The mixture of Figure 1 with fewer points."""
    points = (
        *(Point(method, "record", 3.0, 50.0) for method in (PRIVATE, BASELINE)),
        Point(PUBLIC, "record", math.inf),
    )
    figure = Figure("gaussians", {"record": (20, 500)}, points)
    recipe = replace(recipes.RECIPES[0], jobs=figure.jobs, lines=figure.lines)
    lines, claims = recipe.run(ONE_SEED, tmp_path, processes=1)
    assert [line.row for line in lines] == [
        f"record level, {method}: {what}"
        for method in (f"{PRIVATE}, epsilon 3", f"{BASELINE}, epsilon 3", PUBLIC)
        for what in ("cost", "accuracy, %")
    ]
    assert lines[0].published == 50.0
    assert lines[0].low < lines[0].ours < lines[0].high
    assert lines[1].ours > 90
    assert [claim.text.split("costs less than ")[1] for claim in claims] == [
        "k-FED with a noisy step",
        "a clustering of the server's points alone",
    ]
    assert claims[1].holds  # 300 points are not 10,000


def test_a_small_histogram_from_jobs_to_claims(tmp_path: Path) -> None:
    histogram = Histogram("gaussians", "record", 4, 40)
    recipe = replace(recipes.RECIPES[5], jobs=histogram.jobs, lines=histogram.lines)
    settings = Settings(seeds=(0,), rows=("no noise", "trusted", "local"))
    lines, claims = recipe.run(settings, tmp_path, processes=1)
    assert [line.row for line in lines] == ["no noise", "trusted aggregator", "local noise"]
    assert lines[0].ours == pytest.approx(1, abs=1e-4)
    assert lines[1].ours == pytest.approx(1, abs=1e-4)
    assert "must be trusted" in lines[1].note
    assert abs(lines[2].ours) < 0.2
    assert [claim.holds for claim in claims[:2]] == [True, True]


def test_client_reconstruction_and_membership_jobs_run() -> None:
    found = kmeans_runs.reconstructions("gaussians", 12, 20, "client", "trusted aggregator", 1.0, 2, 0, None)
    assert min(found["cosines"]) > 0.999
    tests = kmeans_runs.member_tests(4.0, 6, 4, 0)
    assert tests["claim"] == pytest.approx(4.0)
    assert {"cost", "shadow", "sums"} < tests.keys()
    assert tests["sums"]["epsilon"] <= 4.0


def test_census_jobs_say_what_they_need() -> None:
    with pytest.raises(DataMissing, match="--data"):
        kmeans_runs.clustering("census", 51, 0, PRIVATE, "record", 1.0, 0, None)


def test_claims_can_fail() -> None:
    def lines(private: float) -> list[Line]:
        rows = ((PRIVATE, private), (BASELINE, 50.0))
        return [Line(f"record level, {name}, epsilon 1: cost", None, at, at - 0.1, at + 0.1) for name, at in rows]

    holds = [recipes.RECIPES[0].claims(lines(value))[0].holds for value in (49.0, 49.84, 49.87, 51.0)]
    assert holds == [True, True, None, False]  # the difference has an interval of 0.1 times the root of 2
    alone = [*lines(49.0)[:1], Line(f"record level, {KFED}: cost", None, 48.0, 47.9, 48.1)]
    assert [claim.holds for claim in recipes.RECIPES[0].claims(alone)] == [False]
    one_seed = [Line(line.row, None, line.ours) for line in lines(49.0)]
    assert recipes.RECIPES[0].claims(one_seed)[0].holds is None
    audit = recipes.RECIPES[-1]
    note = "claimed: 1; lower bound at 95 % confidence"
    for proven, outcome in ((0.3, [True, False]), (0.7, [True, True]), (1.2, [False, True])):
        row = f"{recipes.ONE}, the optimal test on the sums: epsilon at least"
        assert [claim.holds for claim in audit.claims([Line(row, None, proven, note=note)])] == outcome
    broken = f"{recipes.HALF}, the optimal test on the sums: epsilon at least"
    assert not audit.claims([Line(broken, None, 0.9, note=note)])[0].holds
    assert math.isnan(Line("row", None, 1.0).low)
