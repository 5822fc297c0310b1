"""The recipes: every published value has a run, results become lines and claims, and a cell runs end to end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from coterie.data.federation import Examples
from coterie.errors import InvalidInput
from coterie.learn.sgd import Local
from coterie.measure.reproduced import Line
from coterie.recipes import all_recipes
from coterie.recipes.base import Recipe, Scale, Settings
from coterie.recipes.property_inference import published as property_published
from coterie.recipes.property_inference.acquisition import Siege
from coterie.recipes.property_inference.recipes import PAPER, by_part, private_claims
from coterie.recipes.property_inference.runs import Cell, Plan, Size, size
from coterie.recipes.property_inference.tables import (
    ABSENT,
    PLACEBO,
    SIGNED,
    WITHIN,
    above,
    at_chance,
    controls_at_chance,
    found_beyond_placebo,
    in_one_sentence,
)
from coterie.recipes.property_inference.tasks import Detail, by_hair, task
from coterie.rng import Rng

OURS = {recipe.table: recipe for recipe in all_recipes() if recipe.paper == PAPER}
TINY = Size(Detail(8, tokens=5, vocabulary=50, drawn=600), 4, 8, 2, Local(1, None, 8, 0.1), 2, 4, 1)


def fake(auc: float) -> dict[str, Any]:
    point = {"accuracy": 0.8, "base_rate": 0.75, "precision": 0.6, "recall": 0.5}
    return {
        "task": "toy", "main_auc": 0.9, "auc": auc, "auc_within": auc, "signed_auc": auc, "signed_auc_within": auc,
        "auc_operating": point, "signed_auc_operating": point, "guarantee": None,
        "observations": [[round, 0, 3, round % 2, auc, round % 2] for round in range(8)],
        "clusters": 3, "obtained": auc, "reached": auc,
        "cosines": {"0": [0.1, 0.3]}, "pictures": {"neighbour_auc": auc},
    }  # fmt: skip


@pytest.mark.parametrize("table", OURS)
@pytest.mark.parametrize("scale", list(Scale))
def test_every_recipe_lists_jobs_and_makes_lines_of_their_results(table: str, scale: Scale) -> None:
    recipe: Recipe = OURS[table]
    settings = Settings(scale, seeds=(0, 1, 2))
    jobs = recipe.jobs(settings)
    assert len(jobs) % 3 == 0
    results = {job.key: fake(0.7 + job.arguments["seed"] / 100) for job in jobs}
    lines = recipe.lines(settings, results)
    assert lines
    assert all(math.isfinite(line.ours) for line in lines)
    assert all(line.low < line.ours < line.high for line in lines if line.row.endswith("clients"))
    recipe.claims(lines)


def test_published_values_stand_beside_their_own_rows() -> None:
    settings = Settings(Scale.PAPER, seeds=(0,))
    recipe = OURS["9"]
    lines = {line.row: line for line in recipe.lines(settings, {})}
    assert lines["A FL 3 clients"].published == 0.873
    assert lines["C CFL 20 clients"].published == 0.8002
    assert lines["C CFL 20 clients" + PLACEBO].published is None
    private = {line.row: line for line in OURS["7 and 8"].lines(settings, {})}
    assert private["C CFL 5 clients sigma 0.5"].published == 0.5081
    assert private["A CFL 20 clients active sigma 0.2"].published == 0.4952
    scaled = {line.row: line for line in OURS["4"].lines(settings, {})}
    assert scaled["B CFL 10 clients scaled 5"].published == 0.8644
    assert len(property_published.PASSIVE) == 18


def test_rows_and_seeds_can_be_chosen() -> None:
    recipe = OURS["9"]
    some = recipe.jobs(Settings(seeds=(4,), rows=("C FL",)))
    assert sorted(job.key for job in some) == [
        f"drawn/C-FL-3clients-{control}-seed4" for control in ("absent", "none", "placebo")
    ]


def rows(**values: tuple[float, float]) -> list[Line]:
    """A line of each name, with its interval and its middle."""
    return [Line(name.replace("_", " "), None, sum(ends) / 2, *ends, seeds=3) for name, ends in values.items()]


def test_claims_follow_the_intervals() -> None:
    table = [
        *rows(C_CFL_3=(0.8, 0.9), C_FL_3=(0.6, 0.7), D_CFL_3=(0.5, 0.6), D_FL_3=(0.55, 0.65)),
        Line("C CFL 3" + PLACEBO, None, 0.5, 0.45, 0.55, seeds=3),
        Line("C CFL 3" + ABSENT, None, 0.5, 0.4, 0.6, seeds=3),
    ]
    assert [claim.holds for claim in controls_at_chance(table)] == [True]
    assert found_beyond_placebo(table)[0].holds
    holds = {claim.text: claim.holds for claim in above(table, "more", " CFL ", " FL ")}
    assert holds == {"more (C CFL 3)": True, "more (D CFL 3)": None}
    compared = above(table, "more", " CFL ", " FL ")
    assert [claim.holds for claim in in_one_sentence("in all", compared)] == [None]
    assert [claim.holds for claim in in_one_sentence("in all", compared[:1] * 2)] == [True]
    assert [claim.holds for claim in in_one_sentence("in all", [replace(compared[0], holds=False), *compared])] == [
        False
    ]
    off = [*table[:-2], *(replace(one, low=0.55, high=0.7) for one in table[-2:])]
    assert controls_at_chance(off)[0].holds is False
    assert "absent" in controls_at_chance(off)[0].evidence
    # Of twenty true intervals, more than two miss in 8 % of tables and more than three in 2 %: three are allowed.
    many = [replace(table[-1], low=0.55 if number < 4 else 0.4, high=0.7) for number in range(20)]
    assert [controls_at_chance(many[left:])[0].holds for left in (0, 1)] == [False, True]
    # One of four misses by so much that no multiplicity excuses it: 0.2 where 0.05 times 4.6 / 2.8 would be.
    fine = replace(table[-1], seeds=5)
    far = replace(fine, ours=0.7, low=0.65, high=0.75)
    assert [controls_at_chance([one, *[fine] * 3])[0].holds for one in (far, fine)] == [False, True]
    # A control that only tells clusters apart is off as published and at chance within clusters.
    told = [Line("C CFL 3" + WITHIN + PLACEBO, None, 0.5, 0.4, 0.6), Line("C CFL 3" + PLACEBO, None, 0.7, 0.65, 0.75)]
    told = [replace(one, seeds=3) for one in told]
    assert [claim.holds for claim in controls_at_chance(told * 2)] == [True, False]
    within = [Line("C CFL 3" + WITHIN, None, 0.75, 0.71, 0.79), *rows(C_FL_3=(0.6, 0.7))]
    assert [claim.holds for claim in above(within, "more", " CFL ", " FL ")] == [True]
    near = [*table[:4], Line("C CFL 3" + PLACEBO, None, 0.8, 0.75, 0.85)]
    assert found_beyond_placebo(near)[0].holds is False


def test_a_defence_is_judged_at_chance_by_the_attack_alone() -> None:
    table = [
        Line("C CFL 5 sigma 0.5", None, 0.52, 0.45, 0.6),
        Line("C CFL 5 sigma 0.5" + SIGNED, None, 0.7, 0.6, 0.8),
        Line("C CFL 5 sigma 0.5, main task", None, 0.9, 0.8, 1.0),
        Line("C FL 5 sigma 0.5, main task", None, 0.6, 0.5, 0.7),
    ]
    assert [claim.holds for claim in at_chance(table, "at 0.5", " sigma ")] == [True, False]
    assert [claim.holds for claim in private_claims(table)] == [True, False, True]


def test_scores_by_size_and_time() -> None:
    lines = {line.row: line for line in by_part("x", [fake(0.5)])}
    assert lines["x, clusters of 3"].ours == 1.0  # the toy's signed score is the answer
    assert lines["x, quarter 1 of the rounds"].ours == 1.0


# -- cells, end to end on drawn faces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        Plan("A", "FL", 3),
        Plan("C", "CFL", 3, control="placebo", gamma=5.0),
        Plan("B", "CFL", 4, control="absent", dropout=0.1),
        Plan("C", "FL", 3, sigma=4.0, purity=0.5),
    ],
)
def test_a_cell_is_trained_attacked_and_judged(plan: Plan) -> None:
    result = Cell(plan, TINY, Rng.seeded(0)).run(None, pictures=plan.task == "A")
    assert 0 <= result["auc"] <= 1
    assert 0 <= result["main_auc"] <= 1
    rounds = {row[0] for row in result["observations"]}
    assert rounds == set(range(4, 12))
    used = sum(row[3] for row in result["observations"])
    assert used == 4  # a property batch in every second of eight rounds, in the victim's cluster alone
    assert (result["guarantee"] is not None) == (plan.sigma > 0)
    assert ("pictures" in result) == (plan.task == "A")


def test_newcomers_besiege_a_server() -> None:
    result = Siege(2, "none", replace(TINY, warmup=8), Rng.seeded(0)).run(None)
    assert result["clusters"] >= 1
    assert 1 / 3 <= result["obtained"] <= 1
    assert 0 <= result["reached"] <= 1
    settings = Settings(seeds=(0,))
    jobs = OURS["App A"].jobs(settings)
    lines = OURS["App A"].lines(settings, {job.key: result for job in jobs})
    assert [line.row for line in lines if "obtained" in line.row] == [
        f"{count} newcomers: share of models obtained" for count in (1, 2, 3, 4)
    ]


def test_the_paper_scale_is_the_papers() -> None:
    whole = size(Scale.PAPER, "A")
    assert whole.warmup + whole.scored == 5000
    assert (whole.local.steps, whole.local.batch_size, whole.local.lr, whole.every) == (1, 32, 0.01, 5)
    assert size(Scale.PAPER, "D").local.lr == 0.05


def test_keys_tell_plans_apart_and_defences_come_one_at_a_time() -> None:
    plans = [
        Plan("A", "FL", 3),
        Plan("A", "FL", 3, gamma=1.0),
        Plan("A", "FL", 3, sigma=0.2),
        Plan("A", "FL", 3, purity=0.5),
    ]
    assert len({plan.key for plan in plans}) == 4
    with pytest.raises(InvalidInput, match="one at a time"):
        _ = Plan("A", "FL", 3, sigma=0.2, dropout=0.1).defence


def test_reviews_need_data_and_hair_has_one_colour() -> None:
    with pytest.raises(InvalidInput, match="--data"):
        task("D", None, TINY.detail, Rng.seeded(0))
    import torch

    colours = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
    names = ("Black_Hair", "Blond_Hair", "Brown_Hair")
    examples = Examples(
        torch.zeros(5, 2),
        torch.zeros(5, dtype=torch.int64),
        2,
        "toy",
        {name: colours[:, at] for at, name in enumerate(names)},
    )
    assert by_hair(examples).y.tolist() == [0, 1, 2]
