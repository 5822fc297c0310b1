"""The public runs of FedDP-KMeans on the same mixture: 100,000 points, 10 clusters, 100 features, delta 1e-6.

The public code reaches 49.9554 at epsilon 3.133 (records) and 50.5728 at 2.556 (clients), where the optimum is 49.948.
"""

from __future__ import annotations

import pytest
import torch
from tests.references.feddp_kmeans import CLIENT, DELTA, RECORD, Mixture, Plan, anchored, published
from torch import Tensor

from coterie.learn.clusters.clipping import Unclipped
from coterie.learn.clusters.kmeans import local_kmeans, merge_local_centres
from coterie.learn.clusters.lloyd import cluster_sums, counts, moved_centres, nearest
from coterie.measure.clustering import kmeans_cost, purity
from coterie.privacy.accounting import epsilon_of
from coterie.rng import Rng

CLUSTERS = 10


def optimum(data: Mixture) -> float:
    centres: Tensor = data.means
    for _ in range(5):
        labels = nearest(data.points.x, centres)
        total = cluster_sums(data.points, labels, CLUSTERS, Unclipped(), centres).value.sum(0)
        centres = moved_centres(centres, total, counts(data.points, labels, CLUSTERS).sum(0))
    return kmeans_cost(data.points.x, centres)


@pytest.fixture(scope="module")
def records() -> tuple[Mixture, float]:
    data = Mixture.draw(100, 1000, Rng.seeded(0))
    return data, optimum(data)


@pytest.fixture(scope="module")
def clients() -> tuple[Mixture, float]:
    data = Mixture.draw(2000, 50, Rng.seeded(0))
    return data, optimum(data)


def test_published_record_level(records: tuple[Mixture, float]) -> None:
    data, best = records
    runs = [published(data, CLUSTERS, True, Rng.seeded(seed)) for seed in range(2)]
    assert epsilon_of(runs[0].events, DELTA) == pytest.approx(3.133, abs=5e-4)
    for run in runs:
        assert kmeans_cost(data.points.x, run.centres) - best < 0.0005 * best
    labels = nearest(data.points.x, runs[0].centres)
    assert purity(labels, data.labels) == pytest.approx(0.985, abs=0.005)


def test_published_client_level(clients: tuple[Mixture, float]) -> None:
    """The public run is 1.25 % above the optimum; ours must not be 1 % above that."""
    data, best = clients
    runs = [published(data, CLUSTERS, False, Rng.seeded(seed)) for seed in range(3)]
    assert epsilon_of(runs[0].events, DELTA) == pytest.approx(2.556, abs=5e-4)
    mean = sum(kmeans_cost(data.points.x, run.centres) for run in runs) / len(runs)
    assert mean < 50.5728 / 49.9483 * 1.01 * best


@pytest.mark.parametrize(
    ("plan", "epsilon", "excess"),
    [(RECORD, 3.0, 0.0005), (RECORD, 1.0, 0.003), (RECORD, 0.5, 0.008), (CLIENT, 3.0, 0.03), (CLIENT, 1.0, 0.2)],
)
def test_anchored_runs_at_smaller_budgets_beat_the_published_ones(
    plan: Plan, epsilon: float, excess: float, records: tuple[Mixture, float], clients: tuple[Mixture, float]
) -> None:
    """0.008 and 0.62 above the optimum is what the public code reaches at epsilon 3.133 and 2.556."""
    data, best = records if plan.record_level else clients
    run = anchored(data, CLUSTERS, epsilon, plan, Rng.seeded(1))
    assert epsilon_of(run.events, DELTA) <= epsilon
    assert kmeans_cost(data.points.x, run.centres) - best < excess


def test_kfed_on_the_same_mixture(records: tuple[Mixture, float]) -> None:
    """The public code reports 54.6385: it takes clients without duplicate points for clients with too few points, and
    sends their first ten records instead of their centres."""
    data, best = records
    local = local_kmeans(data.points, CLUSTERS, Rng.seeded(0))
    centres = merge_local_centres(local, CLUSTERS, Rng.seeded(0))
    assert kmeans_cost(data.points.x, centres) < best * 1.001
    assert bool(torch.isfinite(centres).all())
