"""A party's kernels beside one line of broadcasting each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.learn.clusters.columns import absolute_differences, means_by_label, squared_differences


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
