"""Lloyd's sums in whole numbers: the same in any order, moved by a record by its own row, and no attack on rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.references.squares import squared_norms
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.clusters import exact_sums, lloyd
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.exact_sums import (
    OUTER_UNITS,
    exact_cluster_sums,
    exact_counts,
    exact_outer_products,
    unpacked_products,
)
from coterie.learn.clusters.lloyd import cluster_sums, nearest
from coterie.learn.clusters.points import Points
from coterie.learn.whole import step_of
from coterie.rng import Rng

CLUSTERS, BOUND, UNITS = 4, 1.5, 60_000


def scene(features: int, count: int = 3000) -> tuple[Tensor, Tensor, Tensor]:
    draws = Rng.seeded(features).torch()
    x = torch.randn(count, features, generator=draws) * torch.logspace(-3, 2, count).unsqueeze(1)
    centres = torch.randn(CLUSTERS, features, generator=draws)
    return x, centres, nearest(x, centres)


def total(x: Tensor, labels: Tensor, anchors: Tensor | None, clients: int = 1) -> Tensor:
    points = Points(x, torch.linspace(0, len(x), clients + 1).long())
    return exact_cluster_sums(points, labels, CLUSTERS, BOUND, UNITS, anchors).sum(0)


@pytest.mark.parametrize("features", [1, 2, 7, 32, 100])
def test_every_order_and_chunking_gives_the_same_bits(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, centres, labels = scene(features)
    expected = total(x, labels, centres)
    order = torch.randperm(len(x), generator=Rng.seeded(0).torch())
    assert torch.equal(total(x[order], labels[order], centres), expected)
    for clients in (2, 7, 100):
        assert torch.equal(total(x, labels, centres, clients), expected)
    for floats in (1 << 10, 1 << 13):
        for module in ("points", "lloyd", "exact_sums"):
            monkeypatch.setattr(f"coterie.learn.clusters.{module}.CHUNK_FLOATS", floats)
        assert torch.equal(total(x, labels, centres), expected)


def test_it_is_the_clipped_sum_and_counts_are_counts() -> None:
    x, centres, labels = scene(7)
    points = Points(x, torch.tensor([0, 1, 1, 1200, 3000]))
    found = exact_cluster_sums(points, labels, CLUSTERS, BOUND, UNITS, centres)
    step = step_of(BOUND, UNITS, 7, torch.float32)
    expected = cluster_sums(points, labels, CLUSTERS, RecordClip(BOUND), centres).value
    rounding = math.sqrt(3000) * 6 * 0.29 * step  # six deviations of 3,000 roundings
    assert float((found * step - expected).abs().max()) < rounding + 1e-4
    assert torch.equal(exact_counts(points, labels, CLUSTERS).float(), lloyd.counts(points, labels, CLUSTERS))
    without = exact_cluster_sums(points, labels, CLUSTERS, BOUND, UNITS, None)
    plain = cluster_sums(points, labels, CLUSTERS, RecordClip(BOUND)).value
    assert float((without * step - plain).abs().max()) < rounding + 1e-4


@pytest.mark.parametrize("gone", [0, 1500, 2999])
def test_a_record_moves_the_sum_by_its_own_row(gone: int) -> None:
    x, centres, labels = scene(32)
    kept = torch.arange(len(x)) != gone
    moved = total(x, labels, centres) - total(x[kept], labels[kept], centres)
    assert torch.equal(moved, total(x[gone : gone + 1], labels[gone : gone + 1], centres))
    assert squared_norms(moved.view(1, -1).numpy())[0] <= UNITS**2


def test_the_attack_on_float_sums_moves_nothing_here() -> None:
    """65,536 ones and a little more take float32 where 60,000 small records vanish; with a -1 they all count double.

    Every record has norm 1 at most.
    """
    small = torch.full((60_000, 1), -(2.0**-9) * 1.001)
    base = torch.cat([torch.ones(65_536, 1), torch.full((1, 1), 2.0**-7), small])
    more = torch.cat([base[:65_537], -torch.ones(1, 1), small])
    unit = RecordClip(1.0)

    def of(x: Tensor) -> tuple[float, int]:
        points, labels = Points(x, torch.tensor([0, len(x)])), torch.zeros(len(x), dtype=torch.int64)
        floats = cluster_sums(points, labels, 1, unit).value
        return float(floats), int(exact_cluster_sums(points, labels, 1, 1.0, 1 << 16, None))

    (float_base, exact_base), (float_more, exact_more) = of(base), of(more)
    assert abs(float_more - float_base) > 200
    assert 0 < exact_base - exact_more <= 1 << 16


def test_the_longest_chunk_does_not_overflow() -> None:
    """A hundred thousand records, each with the largest entry that there is, in one slot."""
    x = torch.full((100_000, 1), 9.0)
    points, labels = Points(x, torch.tensor([0, len(x)])), torch.zeros(len(x), dtype=torch.int64)
    found = int(exact_cluster_sums(points, labels, 1, 1.0, 1 << 16, None))
    one = int(exact_cluster_sums(Points(x[:1], torch.tensor([0, 1])), labels[:1], 1, 1.0, 1 << 16, None))
    assert found == 100_000 * one
    assert one >= (1 << 16) - 2


@pytest.mark.parametrize("sizes", [[1000], [1, 0, 300, 300, 256, 143]])
def test_outer_products_are_exact(sizes: list[int]) -> None:
    x, middle = scene(9, 1000)[0], torch.full((9,), 0.25)
    points = Points(x, torch.tensor([0, *np.cumsum(sizes).tolist()]))
    packed, step = exact_outer_products(points, 2.0**-40, middle)
    order = torch.randperm(1000, generator=Rng.seeded(0).torch())
    again, _ = exact_outer_products(Points(x[order], torch.tensor([0, 1000])), 2.0**-40, middle)
    assert torch.equal(packed.sum(0), again[0])
    directions = (x - middle) / (x - middle).norm(dim=1, keepdim=True)
    found = unpacked_products(packed.sum(0) * step, 9) * 2.0**80
    expected = directions.double().T @ directions.double()
    assert float((found - expected).norm() / expected.norm()) < 3e-3
    for record in (0, 17, 999):
        one, _ = exact_outer_products(Points(x[record : record + 1], torch.tensor([0, 1])), 2.0**-40, middle)
        assert 0.95 * OUTER_UNITS**2 < squared_norms(one.numpy())[0] <= OUTER_UNITS**2


def test_the_weights_of_the_packed_are_below_the_root_of_two() -> None:
    assert exact_sums.OFF_DIAGONAL**2 <= 2 * exact_sums.DIAGONAL**2
    assert pytest.approx(math.sqrt(2), rel=4e-4) == exact_sums.OFF_DIAGONAL / exact_sums.DIAGONAL
    assert exact_sums.OUTER_ROWS * exact_sums.OUTER_SIDE**2 <= 2**24


def test_too_fine_a_grid_is_refused() -> None:
    x, centres, labels = scene(2)
    with pytest.raises(InvalidInput, match=r"units=70000 must lie in 1..65536"):
        exact_cluster_sums(Points(x, torch.tensor([0, len(x)])), labels, CLUSTERS, 1.0, 70_000, centres)
