"""The trainers beside their originals: jobs run, and claims can fail."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.errors import InvalidInput
from coterie.measure.reproduced import Decision, Estimate, Key, Row, Rows
from coterie.recipes.originals import RECIPES, malice, runs
from coterie.recipes.originals.claims import ifca_claims, malice_claims, sattler_claims, start_claims
from coterie.recipes.originals.tables import STARTS
from coterie.recipes.settings import Scale, Settings

VALUES = ("accuracy", "recovered", "right", "clusters", "starved", "ari", "two halves", "settled")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.table)
def test_jobs_have_names_and_rows_have_keys(recipe: Any) -> None:
    for scale in Scale:
        settings = Settings(scale, seeds=(0, 1))
        jobs = recipe.jobs(settings)
        assert len({job.key for job in jobs}) == len(jobs) > 0
        made = {job.key: dict.fromkeys(VALUES, 50.0) for job in jobs}
        assert len(Rows.of(recipe.rows(settings, made))) > 0


@pytest.mark.parametrize("start", STARTS)
def test_ifca_runs(start: str) -> None:
    found = runs.ifca(start, clients=8, samples=10, rounds=2, data=None, seed=0)
    assert 0 <= found["accuracy"] <= 100
    assert sum(found["sizes"]) == 8


@pytest.mark.parametrize("baseline", ["global", "local", "fine-tuned"])
def test_baselines_run(baseline: str) -> None:
    assert runs.beside_ifca(baseline, clients=8, samples=10, rounds=1, data=None, seed=0)["accuracy"] > 0


@pytest.mark.parametrize("rule", runs.RULES)
def test_sattler_runs(rule: str) -> None:
    found = runs.sattler("labels", "5 steps of 20", rule, "MNIST", clients=8, rounds=1, data=None, seed=0)
    assert found["clusters"] == 1
    assert found["right"] == 0


def test_the_others_run() -> None:
    assert runs.mixture("FedEM", clients=4, rounds=1, data=None, seed=0)["starved"] >= 0
    assert runs.paper_004(6, "parameters", rounds=2, data=None, seed=0)["two halves"] in (0.0, 100.0)
    with pytest.raises(InvalidInput, match="clients=7 is none of paper 004's settings"):
        runs.paper_004(7, "parameters", rounds=2, data=None, seed=0)


def row(value: float, **key: Any) -> Row:
    by_seed = {seed: value + seed / 1000 * (value < 100) for seed in range(4)}
    return Row(Key.of(**key), "", None, Estimate.over(by_seed))


def test_sattler_s_claims_count_runs() -> None:
    def decided(alike: float, groups: float) -> list[Decision]:
        made = [
            row(alike, rule="separation", groups="none", local="a"),
            row(100.0, rule="separation", groups="none", local="b"),
            row(groups, rule="separation", groups="labels", local="a"),
            row(0.0, rule="no test", groups="none", local="a"),
        ]
        return [claim.decision for claim in sattler_claims(Rows.of(made))]

    assert decided(100.0, 100.0) == [Decision.HOLDS, Decision.HOLDS]
    assert decided(0.0, 0.0) == [Decision.FAILS, Decision.FAILS]


def test_ifca_s_claims_can_fail() -> None:
    made = [row(90.0, trainer="IFCA"), row(95.0, trainer="global"), row(80.0, trainer="local")]
    assert [claim.decision for claim in ifca_claims(Rows.of(made))] == [Decision.FAILS, Decision.HOLDS]


def test_starts_are_counted_and_compared() -> None:
    def recovered(start: str, lost: int) -> Row:
        by_seed = {seed: 100.0 if seed >= lost else 0.0 for seed in range(20)}
        return Row(Key.of(start=start), "", None, Estimate.share(by_seed))

    made = Rows.of([recovered("random", 8), recovered("vote", 2), recovered("best of 4", 1)])
    found = [(claim.evidence, claim.decision) for claim in start_claims(made)]
    assert found == [
        ("12 of 20 runs", Decision.FAILS),
        ("18 of 20 runs", Decision.FAILS),
        ("18 of 20 runs", Decision.HOLDS),
        ("19 of 20 runs", Decision.HOLDS),
        ("19 of 20 runs", Decision.HOLDS),
    ]


def test_a_share_has_the_interval_of_a_count() -> None:
    """20 of 20: Clopper and Pearson's lower end is 0.025 ** (1 / 20)."""
    found = Estimate.share(dict.fromkeys(range(20), 100.0))
    assert (found.value, found.high) == (100.0, 100.0)
    assert found.low == pytest.approx(100 * 0.025 ** (1 / 20))
    assert math.isnan(Estimate.share({}).value)


def test_one_malicious_client() -> None:
    """A weight below zero is left out; without a defence a reversed update is not."""
    fine, ruined = (malice.malice(sends, "none", 12, data=None, seed=0)["accuracy"] for sends in ("weight", "reversed"))
    assert fine > 70
    assert ruined < fine - 20

    def decided(shielded: float) -> list[Decision]:
        keys = [("honest", "none", 94.0), ("reversed", "none", 10.0), ("reversed", "median", shielded)]
        made = [row(value, sends=sends, defence=defence) for sends, defence, value in keys]
        return [claim.decision for claim in malice_claims(Rows.of(made))]

    assert decided(93.9) == [Decision.HOLDS, Decision.HOLDS]
    assert decided(80.0) == [Decision.HOLDS, Decision.FAILS]
    assert decided(20.0) == [Decision.FAILS, Decision.FAILS]
