from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.references import kmeans_loops as slow
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.clusters.clipping import Bounded, ClientClip, Clip, RecordClip, Unclipped, clip_clients
from coterie.learn.clusters.lloyd import (
    ExactProducts,
    cluster_sums,
    counts,
    leading_subspace,
    moved_centres,
    nearest,
    packed_outer_products,
    project,
    row_norms,
    squared_distances,
    unpack_symmetric,
)
from coterie.learn.clusters.points import CHUNK_FLOATS, Points
from coterie.rng import Rng


def ragged(seed: int = 0, sizes: tuple[int, ...] = (7, 1, 0, 23, 4), features: int = 5) -> Points:
    generator = Rng.seeded(seed).child("points").torch()
    return Points.of([2 * torch.randn(n, features, generator=generator) + 1 for n in sizes])


def some_centres(clusters: int = 3, features: int = 5) -> Tensor:
    return 2 * torch.randn(clusters, features, generator=Rng.seeded(1).child("centres").torch())


LIKE = (6, 6, 6, 0, 0, 23, 23, 1)
"""Neighbours of one size are computed together; those of 23 points take several of the small chunks."""


@pytest.fixture(params=[CHUNK_FLOATS, 200, 40], ids=["one chunk", "several chunks", "many chunks"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("points", "lloyd"):
        monkeypatch.setattr(f"coterie.learn.clusters.{module}.CHUNK_FLOATS", request.param)


@pytest.mark.usefixtures("chunked")
class TestAgainstLoops:
    @pytest.mark.parametrize("clusters", [1, 3, 8, 11])
    def test_nearest_and_distances(self, clusters: int) -> None:
        points, centres = ragged(), some_centres(clusters)
        labels = nearest(points.x, centres)
        expected = slow.nearest(points.x.double().numpy(), centres.double().numpy())
        assert labels.tolist() == expected.tolist()
        distances = ((points.x.double() - centres.double()[labels]) ** 2).sum(1)
        torch.testing.assert_close(squared_distances(points.x, centres, labels), distances.float())

    @pytest.mark.parametrize("bound", [None, 2.5])
    @pytest.mark.parametrize("anchored", [False, True])
    @pytest.mark.parametrize("sizes", [(7, 1, 0, 23, 4), LIKE])
    def test_sums_and_counts(self, bound: float | None, anchored: bool, sizes: tuple[int, ...]) -> None:
        points, centres = ragged(sizes=sizes), some_centres()
        anchors = centres if anchored else None
        labels = nearest(points.x, centres)
        clip: Clip = Unclipped() if bound is None else RecordClip(bound)
        sums = cluster_sums(points, labels, 3, clip, anchors)
        heads = counts(points, labels, 3)
        for client in range(points.clients):
            mine = slice(int(points.offsets[client]), int(points.offsets[client + 1]))
            expected = slow.sums_and_counts(
                points.x[mine].double().numpy(),
                labels[mine].numpy(),
                3,
                bound,
                None if anchors is None else anchors.double().numpy(),
            )
            np.testing.assert_allclose(sums.value[client], expected[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(heads[client], expected[1])

    @pytest.mark.parametrize("bound", [None, 2.5])
    @pytest.mark.parametrize("sizes", [(7, 1, 0, 23, 4), LIKE])
    @pytest.mark.parametrize("anchor", [None, torch.full((5,), 0.5)])
    def test_outer_products(self, bound: float | None, sizes: tuple[int, ...], anchor: Tensor | None) -> None:
        points = ragged(sizes=sizes)
        before = points.x.clone()
        packed = packed_outer_products(points, Unclipped() if bound is None else RecordClip(bound), anchor)
        assert torch.equal(points.x, before)
        for client in range(points.clients):
            mine = points.x[int(points.offsets[client]) : int(points.offsets[client + 1])].double().numpy()
            expected = slow.outer_product(mine, bound, None if anchor is None else anchor.double().numpy())
            np.testing.assert_allclose(unpack_symmetric(packed.value[client], 5), expected, rtol=1e-5, atol=1e-5)
            assert float(packed.value[client].norm()) == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_raw_data_far_from_the_origin_keep_their_labels() -> None:
    """At an offset of 1e6 the plain expansion of the square in float32 has no digits left."""
    generator = Rng.seeded(2).child("far").torch()
    centres = torch.tensor([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]]) + 1e6
    truth = torch.randint(3, (500,), generator=generator)
    x = centres[truth] + torch.randn(500, 2, generator=generator)
    assert torch.equal(nearest(x, centres), truth)


def test_clients_together_equal_clients_one_by_one() -> None:
    points, centres = ragged(sizes=(40, 3, 17)), some_centres()
    labels = nearest(points.x, centres)
    together = cluster_sums(points, labels, 3, RecordClip(2.0), centres).value
    outer = packed_outer_products(points, RecordClip(2.0)).value
    for client in range(3):
        alone = Points.of([points.x[int(points.offsets[client]) : int(points.offsets[client + 1])]])
        own = nearest(alone.x, centres)
        assert torch.equal(cluster_sums(alone, own, 3, RecordClip(2.0), centres).value[0], together[client])
        assert torch.equal(packed_outer_products(alone, RecordClip(2.0)).value[0], outer[client])


def statistics(points: Points, clip: Clip) -> dict[str, Bounded]:
    centres = some_centres()
    labels = nearest(points.x, centres)
    return {
        "sums": cluster_sums(points, labels, 3, clip),
        "anchored sums": cluster_sums(points, labels, 3, clip, centres),
        "outer products": packed_outer_products(points, clip),
    }


def test_a_removed_record_moves_each_sum_by_at_most_its_sensitivity_and_sometimes_by_all_of_it() -> None:
    points = ragged(sizes=(12, 9))
    whole = statistics(points, RecordClip(1.5))
    reached = dict.fromkeys(whole, 0.0)
    for row in range(len(points.x)):
        offsets = points.offsets - (points.offsets > row).long()
        keep = torch.arange(len(points.x)) != row
        for name, part in statistics(Points(points.x[keep], offsets), RecordClip(1.5)).items():
            change = whole[name].value.double().sum(0) - part.value.double().sum(0)
            assert float(change.norm()) <= whole[name].l2 * (1 + 1e-5)
            assert float(change.abs().sum()) <= whole[name].l1 * (1 + 1e-5)
            reached[name] = max(reached[name], float(change.norm()) / whole[name].l2)
    assert all(share > 0.999 for share in reached.values()), reached


def test_a_removed_client_moves_each_sum_by_at_most_the_bound() -> None:
    for found in statistics(ragged(), ClientClip(0.7)).values():
        norms = found.value.flatten(1).norm(dim=1)
        assert found.l2 == 0.7
        assert float(norms.max()) == pytest.approx(0.7, rel=1e-5)
        assert float(norms[2]) == 0  # the client without points says nothing


def test_clipping_leaves_short_statistics_alone_and_keeps_directions() -> None:
    value = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip_clients(value, ClientClip(1.0)).value
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_unclipped_statistics_have_no_finite_sensitivity() -> None:
    assert all(math.isinf(found.l2) for found in statistics(ragged(), Unclipped()).values())
    assert all(math.isfinite(found.l2) for found in statistics(ragged(), RecordClip(1.0)).values())


def test_outer_products_are_as_sensitive_as_the_square_of_the_norm() -> None:
    assert packed_outer_products(ragged(), RecordClip(11.0)).l2 == 121.0


def test_norms_about_anchors() -> None:
    x = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    assert row_norms(x).tolist() == [5.0, 10.0]
    assert row_norms(x, torch.tensor([3.0, 4.0])).tolist() == [0.0, 5.0]
    assert row_norms(x, torch.tensor([[3.0, 0.0], [0.0, 8.0]]), torch.tensor([0, 1])).tolist() == [4.0, 6.0]
    assert row_norms(x * 1e25).tolist() == pytest.approx([5e25, 1e26], rel=1e-6)  # whose squares single cannot hold


def test_leading_subspace_and_projection() -> None:
    basis = torch.linalg.qr(torch.randn(6, 6, generator=Rng.seeded(4).child("basis").torch())).Q
    matrix = (basis * torch.tensor([9.0, 1.0, 5.0, 0.1, 0.2, 0.3])) @ basis.T
    found = leading_subspace(matrix, 2)
    assert float((found[0] @ basis[:, 0]).abs()) == pytest.approx(1, abs=1e-5)
    assert float((found[1] @ basis[:, 2]).abs()) == pytest.approx(1, abs=1e-5)
    x = basis.T[:3] * 2
    torch.testing.assert_close(project(x, found).norm(dim=1), torch.tensor([2.0, 0.0, 2.0]), atol=1e-4, rtol=0)


def test_centres_move_to_the_means_and_empty_ones_stay() -> None:
    points = ragged(sizes=(30, 20))
    centres = torch.cat([some_centres(), torch.full((1, 5), 99.0)])
    labels = nearest(points.x, centres)
    sums = cluster_sums(points, labels, 4, Unclipped(), centres).value.sum(0)
    moved = moved_centres(centres, sums, counts(points, labels, 4).sum(0))
    for cluster in range(3):
        torch.testing.assert_close(moved[cluster], points.x[labels == cluster].mean(0), rtol=1e-4, atol=1e-5)
    assert torch.equal(moved[3], centres[3])


@pytest.mark.parametrize(
    ("x", "offsets", "said"),
    [
        (torch.zeros(3), [0, 3], "must be a matrix"),
        (torch.zeros(3, 2), [0, 2], "must run from 0 to the number of points, 3"),
        (torch.zeros(3, 2), [0, 4, 3], "must not decrease"),
        (torch.zeros(3, 2, dtype=torch.int64), [0, 3], "must be floating"),
        (torch.tensor([[0.0], [math.nan]]), [0, 2], r"points\[1\] has NaN"),
    ],
)
def test_bad_points_are_named(x: Tensor, offsets: list[int], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Points(x, torch.tensor(offsets))


def test_other_bad_input_is_named() -> None:
    with pytest.raises(InvalidInput, match="must have 2 features"):
        nearest(torch.zeros(3, 2), torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="clipping bound=0"):
        RecordClip(0)
    with pytest.raises(InvalidInput, match="pass Unclipped"):
        ClientClip(math.inf)
    with pytest.raises(InvalidInput, match="must have the same features"):
        Points.of([torch.zeros(1, 2), torch.zeros(1, 3)])
    with pytest.raises(InvalidInput, match="dimensions=7"):
        leading_subspace(torch.eye(3), 7)


@pytest.mark.parametrize("features", [1, 3, 100, 784])
def test_exact_products_are_a_row_s_own_and_right(features: int) -> None:
    """To 2^-23 of the largest entry of a row, whose entries are cut there; the same bits alone and in any company."""
    draws = Rng.seeded(features).torch()
    x = torch.randn(300, features, generator=draws) * torch.logspace(-30, 30, 300).unsqueeze(1)
    vectors = torch.randn(7, features, generator=draws)
    found = ExactProducts(vectors)(x)
    expected = x.double() @ vectors.double().T
    room = x.double().abs().amax(1, keepdim=True) * vectors.double().abs().sum(1) * 2.0**-23
    assert bool(((found - expected).abs() <= room).all())
    for row in (0, 150, 299):
        assert torch.equal(ExactProducts(vectors)(x[row : row + 1])[0], found[row])
    order = torch.randperm(300, generator=draws)
    assert torch.equal(ExactProducts(vectors)(x[order]), found[order])


@pytest.mark.parametrize("features", [2, 5, 64, 300])
def test_labels_alone_are_labels_and_hang_on_nothing_else(features: int) -> None:
    """Points on the plane between two centres, where rounding decides; those that are clear are labelled as before."""
    draws = Rng.seeded(features).torch()
    centres = torch.randn(5, features, generator=draws)
    x = torch.randn(4000, features, generator=draws)
    half, along = (centres[0] + centres[1]) / 2, centres[1] - centres[0]
    ties = half + x - ((x - 0.0) @ along / along.square().sum()).unsqueeze(1) * along
    both = torch.cat([ties, x])
    whole = nearest(both, centres, alone=True)
    for kept in (torch.arange(1, 8000), torch.randperm(8000, generator=draws), torch.tensor([17])):
        assert torch.equal(nearest(both[kept], centres, alone=True), whole[kept])
    distances = torch.cdist(both.double(), centres.double(), compute_mode="donot_use_mm_for_euclid_dist")
    gap = distances.gather(1, whole.unsqueeze(1))[:, 0] - distances.min(1).values
    assert float(gap.max()) < 1e-5 * float(distances.max())


def test_labels_alone_where_single_precision_overflows() -> None:
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 30.0]])
    x = torch.tensor([[3e38, 0.0], [0.0, 3e38], [0.9, 0.0], [-3e38, -1.0]])
    assert nearest(x, centres, alone=True).tolist() == [1, 2, 1, 0]
