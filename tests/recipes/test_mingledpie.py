"""MingledPie's recipes: nothing of the paper left out, jobs that run, and claims that can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.learn.models.bundled import fcnn
from coterie.measure.judge import t_interval, wilson
from coterie.measure.reproduced import Line
from coterie.recipes import all_recipes
from coterie.recipes.base import Scale, Settings, find
from coterie.recipes.mingledpie import cost, privacy, utility
from coterie.recipes.mingledpie.published import TABLE_2, TABLE_3, TABLE_5
from coterie.recipes.mingledpie.work import SETUPS, present, profiled, trained
from coterie.wire.codec import encode
from coterie.wire.messages import TRAIN, Contributions, Up

EMBEDDED = "MNIST, 5,000 embedded"
ALONE = Settings(seeds=(0,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where every data set seems to be: jobs are made from names alone."""
    for path in (
        "mnist/train-images-idx3-ubyte.gz",
        "fashion_mnist/train-images-idx3-ubyte.gz",
        "cifar-10-python.tar.gz",
        "cifar-100-python.tar.gz",
        "texas/100/feats",
        "dataset_purchase",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


def test_every_table_and_figure_is_there(folder: Path) -> None:
    found = {recipe.table: recipe for recipe in find(all_recipes(), "mingledpie", None)}
    assert {"II", "III", "IV", "V", "VI", "VII", "VIII", "IX", *(f"Fig {n}" for n in range(3, 10))} <= found.keys()
    for scale in Scale:
        everything = Settings(scale, data=folder)
        assert all(recipe.jobs(everything) for recipe in found.values())


def test_every_published_value_stands_beside_one_of_ours(folder: Path) -> None:
    paper = Settings(Scale.PAPER, data=folder)
    shown = {entry.row: entry.published for entry in privacy.table_2_entries(paper)}
    for (data, method), values in TABLE_2.items():
        assert [shown[f"{data}, {method}: epoch {epoch}"] for epoch in (1, 3, 5)] == list(values)
    shown = {entry.row: entry.published for entry in utility.table_3(paper)}
    for (data, method), (even, uneven) in TABLE_3.items():
        assert shown[f"{data}, homogeneous, {method}"] == even
        assert shown.get(f"{data}, heterogeneous, {method}", uneven) == uneven
    shown = {entry.row: entry.published for entry in utility.table_5(paper)}
    for (data, method), (on_training, tested) in TABLE_5.items():
        assert shown[f"{data}, {method}, training"] == on_training
        assert shown[f"{data}, {method}, test"] == tested
    published = [entry.published for entry in (*utility.table_6(paper), *utility.table_7(paper), *cost.table_4(paper))]
    assert None not in published


def test_paper_scale_has_the_papers_settings(folder: Path) -> None:
    runs = {entry.row: entry.arguments for entry in utility.table_3(Settings(Scale.PAPER, data=folder))}
    assert {**runs["MNIST, homogeneous, MingledPie"], "data": None} == {
        "name": "MNIST",
        "method": "MingledPie",
        "split": "homogeneous",
        "clusters": 5,
        "clients": 120,
        "rounds": 100,
        "data": None,
        "rate": 0.5,
        "threshold": 2,
        "iid_rate": 0.0,
    }
    assert runs["Texas100, heterogeneous, IFCA"]["clusters"] == 10
    assert [runs[f"{name}, homogeneous, IFCA"]["rounds"] for name in ("CIFAR-10", "Texas100")] == [240, 300]
    assert SETUPS["CIFAR-10"].lr == 0.1


def test_only_data_that_are_there_are_asked_for(tmp_path: Path) -> None:
    assert [name for name in SETUPS if present(name, None)] == [EMBEDDED]
    assert not any(present(name, tmp_path) for name in SETUPS)
    assert utility.table_6(ALONE) == []


def test_tables_share_their_runs() -> None:
    three, five, four = (
        {job.key for job in r.jobs(ALONE)} for r in utility.RECIPES if r.table in ("III", "V", "Fig 4")
    )
    assert len(three & five) == 2  # IFCA and MingledPie
    assert len(four - three) == 1  # FedEM
    folders = {recipe.folder(ALONE, Path("x")) for recipe in utility.RECIPES}
    assert len(folders) == 1


def test_figure_3_runs_is_kept_and_agrees_with_the_closed_form(tmp_path: Path) -> None:
    recipe = next(recipe for recipe in privacy.RECIPES if recipe.table == "Fig 3")
    settings = Settings(rows=("p=0.5, k=5, T=2", "p=0.25, k=5, T=2,"))
    lines, claims = recipe.run(settings, tmp_path, processes=1)
    assert [line.published for line in lines if line.row.startswith("p=0.5")] == [30.6] * 4
    assert any("real group" in line.row for line in lines)
    assert claims[0].holds
    assert claims[1].holds is False  # 34.7 %, and the paper has 30.6
    assert recipe.state(settings, tmp_path) == (len(lines), len(lines))
    kept = sorted(tmp_path.rglob("*.json"))[0]
    kept.write_text(kept.read_text().replace('"right": ', '"right": 1'))  # a second run reads what was kept
    again, claims = recipe.run(settings, tmp_path, processes=1)
    assert again != lines


RUN = {"name": EMBEDDED, "split": "homogeneous", "clusters": 5, "clients": 10, "rounds": 3, "data": None, "seed": 0}


def test_training_jobs_run_and_exact_mingling_is_ifca() -> None:
    ifca, exact, bare = (trained(method=method, **RUN) for method in ("IFCA", "exact", "no rebuilding"))  # type: ignore[arg-type]
    assert exact["accuracy"] == pytest.approx(ifca["accuracy"], abs=0.2)
    assert bare["accuracy"] < ifca["accuracy"] - 5
    assert [round for round, _ in ifca["curve"]] == [1, 2, 3]
    assert len(ifca["clusters"]) == 5
    assert ifca["training"] > 50


def test_newcomers_join_every_ten_rounds() -> None:
    result = trained(
        EMBEDDED, "MingledPie", "homogeneous", 5, 10, 11, iid_rate=0.4, newcomers=5, data=None, seed=0
    )  # five more from round 10 on
    assert sum(result["sizes"]) == 15


@pytest.mark.parametrize("method", ["IFCA", "exact"])
def test_profiling_jobs_run(method: str) -> None:
    found = profiled(EMBEDDED, method, 15, data=None, seed=0)
    assert found["A2 with a client, top-1"][0] > 90
    assert (found["A2, top-1"][0] > 90) == (method == "IFCA")
    assert (found["epoch 5"][0] == 100) == (method == "IFCA")
    assert found["with a client"][0] == 100


def test_cost_jobs_run() -> None:
    fast = cost.mingled("CNN", 0.5, 2, 5, 40, seed=0)
    assert all(0 < seconds < 60 for seconds in fast.values())
    one = cost.encrypted("CNN", seed=0)
    assert one["bytes"] / cost.parameters("CNN") < 9
    plain, exact = cost.variant("IFCA", 6, 2, seed=0), cost.variant("CKKS, exact", 6, 2, seed=0)
    leaves = {name: leaf.expand(1, 1, *leaf.shape) for name, leaf in fcnn().init(0).items()}
    answer = Up(TRAIN, 0, Contributions(torch.tensor([0]), leaves, torch.ones(1), torch.ones(1, 5)))
    assert plain["MB sent"] == pytest.approx(len(encode(answer)) / 1e6)
    assert plain["MB sent"] == pytest.approx(0.63604, rel=0.001)  # 159,010 parameters of four bytes, and their names
    assert plain["MB received"] == pytest.approx(5 * 0.63604, rel=0.001)
    assert plain["largest difference from IFCA"] == 0
    assert 0 < exact["largest difference from IFCA"] < 1e-5
    assert exact["MB sent"] > 4 * plain["MB sent"]


def test_claims_can_fail() -> None:
    def lines(mingled: float, exact: float) -> list[Line]:
        values = {"IFCA": 97.0, "MingledPie": mingled, "exact": exact, "FedProx": 80.0}
        return [Line(f"MNIST, homogeneous, {method}", None, value) for method, value in values.items()]

    assert [claim.holds for claim in utility.table_3_claims(lines(96.6, 97.0))] == [True, True, True]
    assert [claim.holds for claim in utility.table_3_claims(lines(96.4, 96.9))] == [False, False, True]

    untrained = [replace(line, ours=51.0) for line in lines(50.0, 51.0)]
    assert next(claim.holds for claim in utility.table_3_claims(untrained)) is None

    def ablation(bare: float, counted: float) -> list[Line]:
        values = {"IFCA": 97.0, "no rebuilding": bare, "ideal matrix": 40.0, "MingledPie": counted}
        return [Line(f"MNIST, {method}, test", None, value) for method, value in values.items()]

    assert [claim.holds for claim in utility.table_5_claims(ablation(60, 96.8))] == [True]
    assert [claim.holds for claim in utility.table_5_claims(ablation(95, 96.8))] == [False]
    assert [claim.holds for claim in utility.table_5_claims(ablation(60, 90.0))] == [False]
    assert utility.table_5_claims(ablation(60, 90)[:3]) == []

    found = [Line("MNIST, IFCA: epoch 5", None, 99.0), Line("MNIST, MingledPie: epoch 5", None, 35.0, 25.0, 45.0)]
    assert [claim.holds for claim in privacy.table_2_claims(found)] == [False, True]
    off = replace(found[1], low=50.0, high=60.0)
    assert [claim.holds for claim in privacy.table_2_claims([off])] == [False]


def test_an_interval_is_never_narrower_than_the_clients_allow() -> None:
    entry = privacy._entry("A1", None, {"clients": 100}, "epoch 5")
    agreeing = [{"epoch 5": [30.0]}] * 3
    line = entry.line(agreeing)
    assert line.low == pytest.approx(100 * wilson(90, 300)[0])  # three seeds agree by accident
    apart = entry.line([{"epoch 5": [value]} for value in (25.0, 30.0, 35.0)])
    assert (apart.low, apart.high) == pytest.approx(t_interval([25, 30, 35]))
    assert entry.line([{"epoch 5": [value]} for value in (1.0, 50.0, 99.0)]).low == 0.0  # Student says less
    assert not math.isnan(entry.line(agreeing[:1]).low)


def test_figures_6_to_8_give_the_difference(tmp_path: Path) -> None:
    recipe = next(recipe for recipe in utility.RECIPES if recipe.table == "Fig 7")
    jobs = recipe.jobs(ALONE)
    assert sorted({job.arguments["rate"] for job in jobs}) == [0.25, 0.5]
    two = Settings(seeds=(0, 1))
    results = {
        job.key: {"accuracy": 90 + (10 + job.arguments["seed"]) * job.arguments["rate"], "sizes": [1]}
        for job in recipe.jobs(two)
    }
    lines = {line.row: line for line in recipe.lines(two, results)}
    difference = lines[f"{EMBEDDED}, homogeneous, changed minus defaults"]
    assert difference.ours == pytest.approx(-(2.5 + 2.75) / 2)
    assert difference.low < -2.75 < -2.5 < difference.high  # of the differences, not of the runs
    assert difference.published == 0.03
