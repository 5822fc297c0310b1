"""A party's kernels beside one line of broadcasting each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.learn.clusters.columns import (
    Labelled,
    absolute_differences,
    least_of_each,
    means_by_label,
    squared_differences,
)


def points(rows: int = 57, columns: int = 3, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=draws) + shift
    return x, torch.randn(4, columns, generator=draws) + shift


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("chunk", [1 << 20, 8])
def test_distances_are_those_of_broadcasting(monkeypatch: pytest.MonkeyPatch, shift: float, chunk: int) -> None:
    """Far from the origin too, and in chunks of a row or two."""
    monkeypatch.setattr("coterie.learn.clusters.points.CHUNK_FLOATS", chunk)
    x, centres = points(shift=shift)
    gaps = x.double()[:, None] - centres.double()[None]
    squared, absolute = torch.empty(len(x), 4), torch.empty(len(x), 4)
    squared_differences(x, centres, squared)
    absolute_differences(x, centres, absolute)
    torch.testing.assert_close(squared.double(), gaps.square().sum(2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(absolute.double(), gaps.abs().sum(2), rtol=1e-4, atol=1e-4)


def test_a_record_on_its_centre_is_not_below_zero() -> None:
    x, _ = points()
    out = torch.empty(len(x), len(x))
    squared_differences(x, x.clone(), out)
    assert float(out.min()) >= 0
    assert float(out.diagonal().max()) < 1e-5


def test_means_by_label_and_a_label_that_nobody_has() -> None:
    x, centres = points()
    labels = torch.arange(len(x)) % 3  # the fourth has none
    found = means_by_label(x, labels, centres)
    for label in range(3):
        torch.testing.assert_close(found[label], x[labels == label].mean(0))
    assert torch.equal(found[3], centres[3])


def test_columns_that_change_are_looked_at_anew() -> None:
    """What is kept of them between steps must not outlive them."""
    x, centres = points()
    before, after = torch.empty(len(x), 4), torch.empty(len(x), 4)
    squared_differences(x, centres, before)
    x.mul_(2)
    squared_differences(x, centres, after)
    torch.testing.assert_close(after, (x[:, None] - centres[None]).square().sum(2), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, after)


def test_sums_over_many_blocks_keep_their_digits() -> None:
    """Single precision within a block, doubles over them: as exact as the records themselves are."""
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(20_001, 3, generator=draws) + 1000
    labels = torch.randint(5, (len(x),), generator=draws).to(torch.uint8)
    found = Labelled(labels, 6)
    means = found.means(x, torch.zeros(6, 3))
    for label in range(5):
        exact = x[labels == label].double().mean(0)
        torch.testing.assert_close(means[label].double(), exact, rtol=2e-7, atol=0.0)
    assert found.heads[5] == 0


@pytest.mark.parametrize("moved", [0, 1, 700, 2_000, 15_000])
def test_sums_follow_from_those_before(moved: int) -> None:
    """Whether few records have changed their label or most; what was kept of other labels or columns is left alone."""
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(20_001, 3, generator=draws) + 10
    old = torch.randint(6, (len(x),), generator=draws).to(torch.uint8)
    new = old.clone()
    new[torch.randperm(len(x), generator=draws)[:moved]] = 4
    before = Labelled(old, 6).added(x, None)
    exact = torch.stack([x[new == label].double().sum(0) for label in range(6)])
    labelled = Labelled(new, 6)
    labelled.prepare([before])
    torch.testing.assert_close(labelled.added(x, before).sums, exact, rtol=3e-7, atol=0.0)
    stale = Labelled(old[:50], 6).added(x[:50], None)
    narrow = Labelled(old, 6).added(x[:, :2], None)
    for other in (stale, narrow):
        torch.testing.assert_close(labelled.added(x, other).sums, exact, rtol=3e-7, atol=0.0)


@pytest.mark.parametrize("columns", [1, 2, 10, 300])
def test_the_first_of_equal_least_numbers(columns: int) -> None:
    draws = torch.Generator().manual_seed(0)
    rows = torch.randint(4, (9_000, columns), generator=draws).double()
    assert torch.equal(least_of_each(rows), torch.tensor([row.index(min(row)) for row in rows.tolist()]))
