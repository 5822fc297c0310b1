"""The baselines do the same clustering, parts are told apart, and the memory row measures a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from coterie.bench import kmeans as bench_kmeans
from coterie.bench.kmeans import plain_loop, run, ten_million_points
from coterie.bench.registry import Options
from coterie.data.partition.gaussians import GaussianClients
from coterie.errors import InvalidInput
from coterie.measure.clustering import kmeans_cost
from coterie.privacy.guarantee import Level
from coterie.rng import Rng


@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
def test_both_contenders_cluster_alike(level: Level) -> None:
    maker, rng = GaussianClients(120, 20, dimensions=30, variance=0.05), Rng.seeded(0)
    federation, server = maker.make(rng), maker.server(rng).whole().x
    parts = [federation.examples.x[federation.train[client]] for client in range(federation.clients)]
    ours = run(federation, server, level, 30.0, 0).known["centres"][0]
    theirs = plain_loop(parts, server, level, Rng.seeded(0))
    assert bool(torch.isfinite(theirs).all())
    costs = [kmeans_cost(federation.examples.x, centres) for centres in (ours, theirs)]
    assert costs[0] == pytest.approx(costs[1], rel=0.05)


def test_memory_is_that_of_a_process() -> None:
    row = ten_million_points(clients=50, points=20, dimensions=5)
    assert row.unit == "GiB"
    assert 0.05 < row.ours < 3
    assert row.met


def test_ours_is_timed_part_by_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_kmeans, "SIZES", {Level.RECORD: (20, 100)})
    found = bench_kmeans.phases(Level.RECORD)
    assert list(found) == ["data", "rounds", "figures"]
    assert all(seconds > 0 for seconds in found.values())
    cost, accuracy = map(float, capsys.readouterr().out.split())
    assert 45 < cost < 60
    assert 0.5 < accuracy <= 1


QUICK = """print('{"data": 3, "rounds": 2, "figures": 1}')"""


def test_without_the_public_code_the_rows_say_how_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kmeans, "OURS", QUICK)
    rows = list(bench_kmeans.beside_the_public_code(Level.RECORD, Options(repeats=1)))
    assert [row.met for row in rows] == [None, None, None]
    assert [row.ours for row in rows] == [6, 2, 2]
    assert all("--pfl-python" in row.setup and "--feddp-kmeans" in row.setup for row in rows)


PUBLIC_CODE = """
import time
class Algorithm:
    def run(self):
        spend(0.2)
class FederatedOuterProduct(Algorithm): pass
class FederatedServerPointWeighting(Algorithm): pass
class FederatedInitFromProjectedCenters(Algorithm): pass
class FederatedLloyds(Algorithm): pass
def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
def make_data(): spend(0.4)
def get_mechanism(): spend(0.1)
def post_evaluation(): pass
def main():
    make_data()
    for algorithm in (FederatedOuterProduct(), FederatedLloyds()):
        get_mechanism()
        algorithm.run()
    post_evaluation()
    spend(0.3)
"""


def test_the_parts_of_the_public_code_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with its names: 0.4 s of data, twice 0.1 s of planning, twice 0.2 s of rounds, and an optimum."""
    monkeypatch.setattr(bench_kmeans, "OURS", QUICK)
    (tmp_path / "run.py").write_text(PUBLIC_CODE)
    (tmp_path / "pfl" / "callback").mkdir(parents=True)
    (tmp_path / "pfl" / "callback" / "__init__.py").touch()
    options = Options(repeats=1, pfl_python=Path(sys.executable), feddp_kmeans=tmp_path)
    figures, algorithm, rounds = bench_kmeans.beside_the_public_code(Level.RECORD, options)
    assert figures.baseline == pytest.approx(1.0, abs=0.1)
    assert algorithm.baseline == pytest.approx(0.6, abs=0.1)
    assert rounds.baseline == pytest.approx(0.4, abs=0.1)


def test_a_folder_without_the_public_code_is_named(tmp_path: Path) -> None:
    options = Options(repeats=1, pfl_python=Path(sys.executable), feddp_kmeans=tmp_path)
    with pytest.raises(InvalidInput, match=r"--feddp-kmeans=.* must hold the public code"):
        list(bench_kmeans.beside_the_public_code(Level.CLIENT, options))
