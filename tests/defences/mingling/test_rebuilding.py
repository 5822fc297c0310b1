"""Solving for cluster models: hand-computed systems, and what happens to those that cannot be solved."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.defences.mingling.rebuilding import Counted, IdealMatrix, IllConditioned, NoRebuilding
from coterie.errors import InvalidInput


def never() -> Tensor:
    raise AssertionError("the previous models are opened only where they are needed")


def test_two_clusters_by_hand() -> None:
    """Three clients at 10 and two at 1; one of each is a decoy in the other cluster."""
    counts = torch.tensor([[3.0, 1.0], [1.0, 2.0]]).double()
    sums = torch.tensor([[31.0], [12.0]]).double()
    assert torch.allclose(Counted().rebuild(sums, counts, never), torch.tensor([[10.0], [1.0]]).double(), atol=1e-12)
    assert NoRebuilding().rebuild(sums, counts, never).tolist() == [[31 / 4], [12 / 3]]


@pytest.mark.parametrize("seed", range(5))
def test_the_solution_is_numpys(seed: int) -> None:
    draws = np.random.default_rng(seed)
    sizes = draws.integers(20, 60, 6)
    counts = draws.binomial(sizes, 0.5, (6, 6)).astype(float)
    np.fill_diagonal(counts, sizes)
    models = draws.normal(size=(6, 9))
    found = Counted().rebuild(torch.from_numpy(counts @ models), torch.from_numpy(counts), never)
    np.testing.assert_allclose(found, models, atol=1e-9)
    np.testing.assert_allclose(found, np.linalg.solve(counts, counts @ models), atol=1e-9)


def test_unequal_sizes_are_no_bad_condition() -> None:
    """Exact mingling with 1 and 100,000 members: a diagonal matrix is divided by, whatever is on it."""
    counts = torch.diag(torch.tensor([1.0, 1e5])).double()
    sums = torch.tensor([[3.0], [2e5]]).double()
    assert Counted().rebuild(sums, counts, never).tolist() == [[3.0], [2.0]]


def test_an_empty_cluster_keeps_its_model_without_a_warning() -> None:
    counts = torch.tensor([[3.0, 0.0, 1.0], [2.0, 0.0, 1.0], [1.0, 0.0, 2.0]]).double()  # nobody is truly in cluster 1
    models = torch.tensor([[5.0], [7.0], [-2.0]]).double()
    before = torch.tensor([[1.0], [7.0], [1.0]]).double()
    assert torch.allclose(Counted().rebuild(counts @ models, counts, lambda: before), models, atol=1e-12)


def test_what_the_counts_leave_open_stays_as_it_was() -> None:
    """Two clusters of one client each with the same identity set: only the sum of their models is known."""
    counts = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 3.0]]).double()
    models = torch.tensor([[4.0], [6.0], [1.0]]).double()
    before = torch.tensor([[1.0], [2.0], [0.0]]).double()
    with pytest.warns(IllConditioned, match=r"1 of 3 combinations"):
        found = Counted().rebuild(counts @ models, counts, lambda: before)
    # 4 + 6 = 10 is known; the difference was -1 and stays so.
    assert torch.allclose(found, torch.tensor([[4.5], [5.5], [1.0]]).double(), atol=1e-12)
    warnings.simplefilter("error", IllConditioned)  # pytest puts the filters back
    with pytest.raises(IllConditioned):
        Counted().rebuild(counts @ models, counts, lambda: before)


def test_the_condition_limit_decides() -> None:
    counts = torch.tensor([[10.0, 9.0], [9.0, 10.0]]).double()  # condition 19
    models = torch.tensor([[1.0], [2.0]]).double()
    assert torch.allclose(Counted(20).rebuild(counts @ models, counts, never), models, atol=1e-12)
    with pytest.warns(IllConditioned, match="condition=19"):
        found = Counted(18).rebuild(counts @ models, counts, lambda: torch.zeros(2, 1).double())
    assert torch.allclose(found, torch.full((2, 1), 1.5).double(), atol=1e-12)
    with pytest.raises(InvalidInput, match="largest_condition"):
        Counted(1.0)


def test_the_ideal_matrix_is_right_only_where_the_counts_are_ideal() -> None:
    models = torch.tensor([[1.0], [2.0], [4.0]]).double()
    ideal = torch.tensor([[8.0, 2.0, 3.0], [4.0, 4.0, 3.0], [4.0, 2.0, 6.0]]).double()
    assert torch.allclose(IdealMatrix(0.5).rebuild(ideal @ models, ideal, never), models, atol=1e-12)
    drawn = ideal + torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]).double()
    assert not torch.allclose(IdealMatrix(0.5).rebuild(drawn @ models, drawn, never), models, atol=0.1)
