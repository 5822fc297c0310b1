from __future__ import annotations

import itertools

import pytest
import torch

from coterie.errors import InvalidInput
from coterie.measure.clustering import accuracy, adjusted_rand, kmeans_cost, mutual_information, purity, weighted_f
from coterie.rng import Rng


def test_cost_by_hand() -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0]])
    assert kmeans_cost(x, torch.tensor([[0.0, 1.0], [10.0, 1.0]])) == pytest.approx(1.0)
    assert kmeans_cost(x, x) == 0


def test_accuracy_is_the_best_of_all_namings() -> None:
    generator = Rng.seeded(0).child("labels").torch()
    for _ in range(20):
        predicted, truth = torch.randint(4, (2, 30), generator=generator)
        best = max(
            float((torch.tensor(naming)[predicted] == truth).float().mean())
            for naming in itertools.permutations(range(4))
        )
        assert accuracy(predicted, truth) == pytest.approx(best)
        assert purity(predicted, truth) >= accuracy(predicted, truth)


def test_names_do_not_matter() -> None:
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    renamed = torch.tensor([7, 7, -3, -3, 0, 0])
    for measure in (accuracy, purity, adjusted_rand, mutual_information):
        assert measure(renamed, truth) == pytest.approx(1.0)


def test_purity_favours_many_clusters_and_accuracy_does_not() -> None:
    truth = torch.tensor([0, 0, 0, 0, 1, 1])
    every_point_alone = torch.arange(6)
    assert purity(every_point_alone, truth) == 1.0
    assert accuracy(every_point_alone, truth) == pytest.approx(2 / 6)
    assert adjusted_rand(every_point_alone, truth) == pytest.approx(0.0)


def test_a_single_cluster_says_nothing() -> None:
    truth = torch.tensor([0, 0, 0, 1])
    assert accuracy(torch.zeros(4), truth) == 0.75
    assert mutual_information(torch.zeros(4), truth) == pytest.approx(0.0)


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidInput, match="must equal len"):
        accuracy(torch.zeros(2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="points=0"):
        kmeans_cost(torch.zeros(0, 2), torch.zeros(1, 2))


def test_weighted_f_by_hand() -> None:
    """Six and four records; a cluster of five of the first, and one of the sixth and all of the second.

    F of the first: P 5/5, R 5/6, so 10/11; of the second: P 4/5, R 4/4, so 8/9.
    """
    predicted = torch.tensor([0] * 5 + [1] * 5)
    truth = torch.tensor([0] * 6 + [1] * 4)
    assert weighted_f(predicted, truth) == pytest.approx(0.6 * 10 / 11 + 0.4 * 8 / 9)
    assert weighted_f(1 - predicted, truth) == weighted_f(predicted, truth)
    assert weighted_f(truth, truth) == 1
    assert weighted_f(torch.zeros(10, dtype=torch.int64), truth) == pytest.approx(0.6 * 12 / 16)  # one has no cluster
