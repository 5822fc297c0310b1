"""Robust means, by hand and against slow ways to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.learn import robust
from coterie.learn.robust import krum_scores, trimmed_mean


def test_by_hand() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1000.0]])
    even = torch.ones(5)
    assert trimmed_mean(rows, even, 0.5).item() == 3.0
    assert trimmed_mean(rows, even, 0.2).item() == 3.0  # (2 + 3 + 4) / 3
    assert trimmed_mean(rows, even, 0.1).item() == pytest.approx((0.5 * 1 + 2 + 3 + 4 + 0.5 * 1000) / 4)
    assert trimmed_mean(rows[:4], even[:4], 0.5).item() == 2.5
    heavy = torch.tensor([1.0, 1.0, 5.0, 1.0, 1.0])
    assert trimmed_mean(rows, heavy, 0.4).item() == pytest.approx(3.0)
    # Of the points 0, 1, 10 and bad=0, the nearest two of others count for Krum with n - 2 = 2 of four.
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert krum_scores(points, 0).tolist() == [1 + 4, 1 + 1, 1 + 4, 64 + 81]
    assert krum_scores(points, 1).tolist() == [1, 1, 1, 64]


@pytest.mark.parametrize("share", [0.05, 0.25, 0.4, 0.5])
def test_weights_count_like_copies(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    rows, copies = draws.normal(size=(9, 7)), draws.integers(1, 4, 9)
    monkeypatch.setattr(robust, "COLUMNS", 3)
    ours = trimmed_mean(torch.tensor(rows), torch.tensor(copies), share).numpy()
    repeated = np.sort(np.repeat(rows, copies * 20, axis=0), axis=0)  # in small steps, as if weights were divisible
    cut = round(share * len(repeated))
    slow = np.median(repeated, 0) if share == 0.5 else repeated[cut : len(repeated) - cut].mean(0)
    np.testing.assert_allclose(ours, slow, atol=1e-9)


def test_far_rows_do_not_drown_near_ones() -> None:
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    rows[0] = 1e30
    scores = krum_scores(rows, 1)
    expected = torch.cdist(rows[1:].double(), rows[1:].double()).square()
    near = expected.fill_diagonal_(torch.inf).sort(1).values[:, :3].sum(1)
    torch.testing.assert_close(scores[1:], near, rtol=1e-6, atol=0)
    assert scores.argmax() == 0
