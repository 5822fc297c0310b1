from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.references import kmeans_loops as slow

from coterie.errors import InvalidInput
from coterie.learn.clusters import kmeans
from coterie.learn.clusters.kmeans import Clustering, farthest_first, local_kmeans, merge_local_centres, weighted_kmeans
from coterie.learn.clusters.lloyd import nearest
from coterie.learn.clusters.points import Points
from coterie.rng import Rng

CORNERS = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def blobs(points: int, seed: int, spread: float = 0.5) -> torch.Tensor:
    generator = Rng.seeded(seed).child("blobs").torch()
    return CORNERS[torch.arange(points) % 4] + spread * torch.randn(points, 2, generator=generator)


def matched(found: torch.Tensor, expected: torch.Tensor = CORNERS) -> torch.Tensor:
    return found[nearest(expected, found)]


def test_lloyd_equals_loops_in_a_batch_with_padding() -> None:
    x = torch.zeros(2, 30, 2)
    weights = torch.zeros(2, 30)
    for problem, points in enumerate((30, 17)):
        x[problem, :points] = blobs(points, problem, 3.0)
        weights[problem, :points] = torch.linspace(1, 3, points)
    start = x[:, :3].clone()
    found = kmeans.lloyd(x, weights, start, 50)
    for problem, points in enumerate((30, 17)):
        centres, cost = slow.lloyd(
            x[problem, :points].double().numpy(),
            weights[problem, :points].double().numpy(),
            start[problem].double().numpy(),
            50,
        )
        np.testing.assert_allclose(found.centres[problem], centres, rtol=1e-4, atol=1e-4)
        assert float(found.costs[problem]) == pytest.approx(cost, rel=1e-4)
        assert float(found.weights[problem].sum()) == pytest.approx(float(weights[problem].sum()))


def test_weighted_kmeans_finds_blobs_and_ignores_points_without_weight() -> None:
    x = torch.cat([blobs(200, 1), torch.full((5, 2), 500.0)])
    weights = torch.cat([torch.ones(200), torch.zeros(5)])
    found = weighted_kmeans(x, weights, 4, Rng.seeded(0))
    torch.testing.assert_close(matched(found.centres[0]), CORNERS, atol=0.3, rtol=0)
    assert sorted(found.weights[0].tolist()) == [50, 50, 50, 50]


def test_weights_pull_centres() -> None:
    x = torch.tensor([[0.0], [1.0], [10.0]])
    found = weighted_kmeans(x, torch.tensor([3.0, 1.0, 1.0]), 2, Rng.seeded(0)).centres[0]
    assert sorted(found[:, 0].tolist()) == pytest.approx([0.25, 10.0])


def test_seeds_follow_squared_distance() -> None:
    """First point 0 by weight, then 1 or 3 with odds 1 : 9. 4000 draws: 5 standard deviations are 0.024."""
    x = torch.tensor([[0.0], [1.0], [3.0]]).expand(4000, -1, -1)
    weights = torch.tensor([1.0, 0.0, 0.0]).expand(4000, -1)
    uniforms = torch.rand(4000, 2, 1, generator=Rng.seeded(5).child("u").torch())
    first = kmeans.seeds(x, weights, uniforms)[:, 0, 0]
    assert torch.equal(first, torch.zeros(4000))
    everyone = torch.tensor([1e-9, 1.0, 1.0]).expand(4000, -1)
    seeds = kmeans.seeds(x, everyone, torch.cat([torch.zeros(4000, 1, 1), uniforms[:, 1:]], 1))
    assert abs(float((seeds[:, 1, 0] == 3.0).float().mean()) - 0.9) < 0.024


def test_every_client_gets_its_own_answer_whatever_the_company(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [blobs(n, n) for n in (40, 9, 60, 12)]
    rng = Rng.seeded(7)
    together = local_kmeans(Points.of(parts), 4, rng)
    alone = [local_kmeans(Points.of([part]), 4, rng, torch.tensor([i])) for i, part in enumerate(parts)]
    monkeypatch.setattr(kmeans, "BATCH_FLOATS", 1)
    one_by_one = local_kmeans(Points.of(parts), 4, rng)
    for client, own in enumerate(alone):
        torch.testing.assert_close(together.centres[client], own.centres[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one_by_one.centres[client], own.centres[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(matched(own.centres[0]), CORNERS, atol=1.0, rtol=0)
        assert own.weights.sum() == len(parts[client])


def test_more_features_than_points_and_the_other_way_round_agree_with_the_full_projection() -> None:
    for points, features in ((12, 30), (60, 8)):
        x = torch.randn(1, points, features, generator=Rng.seeded(9).child(points).torch())
        right = torch.linalg.svd(x[0]).Vh[:3]
        torch.testing.assert_close(kmeans._projected(x, 3)[0], x[0] @ right.T @ right, rtol=1e-3, atol=1e-4)


def test_fewer_points_than_clusters_leaves_weightless_centres() -> None:
    found = local_kmeans(Points.of([torch.tensor([[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]])]), 5, Rng.seeded(0))
    real = found.weights[0] > 0
    assert int(real.sum()) == 2
    assert sorted(found.centres[0][real].tolist()) == [[1.0, 2.0], [3.0, 4.0]]
    assert float(found.costs[0]) == pytest.approx(0, abs=1e-6)


def test_a_strict_margin_still_gives_centres() -> None:
    found = local_kmeans(Points.of([blobs(80, 3)]), 4, Rng.seeded(1), margin=1e-6)
    assert bool(torch.isfinite(found.centres).all())
    torch.testing.assert_close(matched(found.centres[0]), CORNERS, atol=0.5, rtol=0)


def test_farthest_first_by_hand() -> None:
    line = torch.tensor([[0.0], [1.0], [4.0], [10.0]])
    assert farthest_first(line, line[:1], 3)[:, 0].tolist() == [0.0, 10.0, 4.0]


def test_kfed_merges_clients_that_hold_different_clusters() -> None:
    """Each client has two of four blobs; no client alone could know them all."""
    everything = blobs(400, 11)
    owner = torch.arange(400) % 4
    parts = [everything[(owner == a) | (owner == b)] for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))]
    local = local_kmeans(Points.of(parts), 2, Rng.seeded(2))
    merged = merge_local_centres(local, 4, Rng.seeded(3))
    torch.testing.assert_close(matched(merged), CORNERS, atol=0.3, rtol=0)


def test_whoever_has_nothing_has_centres_of_weight_0() -> None:
    """Neither points, nor points that count; and nobody else's answer depends on it."""
    x = torch.randn(9, 2, generator=Rng.seeded(0).child("points").torch())
    weights = torch.cat([torch.ones(9), torch.zeros(9), torch.full((9,), 0.5)])
    mixed = Points(torch.cat([x, x, x]), torch.tensor([0, 9, 9, 18, 27]), weights=weights)
    found = local_kmeans(mixed, 2, Rng.seeded(0))
    assert found.weights.sum(1).tolist() == [9, 0, 0, 4.5]
    alone = local_kmeans(Points.of([x]), 2, Rng.seeded(0))
    torch.testing.assert_close(found.centres[0], alone.centres[0])
    merged = merge_local_centres(found, 2, Rng.seeded(1))
    assert torch.isfinite(merged).all()


def test_fewer_distinct_points_than_clusters_make_some_coincide() -> None:
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).repeat(3, 1)
    merged = merge_local_centres(local_kmeans(Points.of([points]), 5, Rng.seeded(0)), 5, Rng.seeded(0))
    assert merged.shape == (5, 2)
    assert {tuple(row) for row in merged.tolist()} == {(1.0, 2.0), (3.0, 4.0)}


def test_bad_input_is_named() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(InvalidInput, match=r"clusters=4 must lie in 1\.\.3"):
        weighted_kmeans(x, torch.ones(3), 4, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="must not be negative"):
        weighted_kmeans(x, torch.tensor([1.0, -1.0, 1.0]), 1, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="must equal len"):
        weighted_kmeans(x, torch.ones(2), 1, Rng.seeded(0))
    empty = Clustering(torch.zeros(2, 3, 2), torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InvalidInput, match="the local centres there are"):
        merge_local_centres(empty, 1, Rng.seeded(0))


def test_data_with_many_equal_directions_have_a_subspace() -> None:
    """One-hot columns: hundreds of equal eigenvalues, and repeated points."""
    codes = torch.randint(40, (400, 3), generator=Rng.seeded(0).child("codes").torch())
    x = torch.cat([torch.nn.functional.one_hot(codes[:, column], 40) for column in range(3)], 1).float()
    found = local_kmeans(Points.of([x, x[:50], x[:1].repeat(90, 1)]), 5, Rng.seeded(0))
    assert bool(torch.isfinite(found.centres).all())
    assert found.weights.sum(1).tolist() == [400, 50, 90]
