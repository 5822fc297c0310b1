"""The baseline does the same clustering, and the memory row measures a process."""

from __future__ import annotations

import pytest
import torch

from coterie.data.partition.gaussians import GaussianClients
from coterie.flow.guarantee import Level
from coterie.flow.rng import Rng
from coterie.measure.bench_kmeans import plain_loop, run, ten_million_points
from coterie.measure.clustering import kmeans_cost


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
