from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from tests.data.toys import rows_once, toy

from coterie.data.federation import Shards
from coterie.data.partition.dealing import apportion, hold_out, mirror, pool, rank_within, shards
from coterie.data.partition.labels import top_up
from coterie.rng import Rng

RNG = Rng.seeded(3)


def test_rank_within_by_hand() -> None:
    assert rank_within(np.array([5, 7, 5, 5, 7])).tolist() == [0, 0, 1, 2, 1]
    assert rank_within(np.array([], np.int64)).tolist() == []


@given(some.integers(0, 500), some.lists(some.floats(0.01, 10), min_size=1, max_size=20))
def test_apportion_adds_up_and_is_within_one_of_exact(total: int, weights: list[float]) -> None:
    exact = total * np.array(weights) / sum(weights)
    counts = apportion(total, np.array(weights))
    assert counts.sum() == total
    assert (np.abs(counts - exact) < 1).all()


def test_apportion_gives_remainders_to_the_largest_fractions() -> None:
    # 10 x (0.15, 0.25, 0.6) = 1.5, 2.5, 6.0: floors 1, 2, 6; one is left and the first of equal fractions has it.
    assert apportion(10, np.array([0.15, 0.25, 0.6])).tolist() == [2, 2, 6]


def test_shards_keep_order_and_leave_empty_clients_empty() -> None:
    dealt = shards(np.array([40, 10, 30, 20]), np.array([2, 0, 2, 0]), 4)
    assert [dealt[client].tolist() for client in range(4)] == [[10, 20], [], [40, 30], []]


@given(some.lists(some.integers(0, 7), min_size=24, max_size=80), some.integers(0, 3))
def test_top_up_takes_only_from_the_largest(owner: list[int], minimum: int) -> None:
    before = np.bincount(owner, minlength=8)
    after = np.bincount(top_up(np.array(owner), 8, minimum), minlength=8)
    assert after.min() >= minimum
    assert after.sum() == before.sum()
    # Slow oracle: one row at a time from whoever holds most gives the same sizes.
    slow = before.copy()
    while slow.min() < minimum:
        slow[slow.argmax()] -= 1
        slow[slow.argmin()] += 1
    assert sorted(after) == sorted(slow)


def test_pool_keeps_the_published_split() -> None:
    train, test = pool(toy(100, test=30), 0.5, RNG)
    assert sorted(train) == list(range(70))
    assert sorted(test) == list(range(70, 100))


def test_pool_holds_out_the_same_share_of_every_label() -> None:
    examples = toy(1000)
    train, test = pool(examples, 0.2, RNG)
    assert np.bincount(examples.y.numpy()[test]).tolist() == [20] * 10
    assert sorted([*train, *test]) == list(range(1000))


def test_hold_out_leaves_every_client_something_to_train_on() -> None:
    parts = Shards.of([torch.arange(10), torch.tensor([10]), torch.empty(0, dtype=torch.int64), torch.arange(11, 13)])
    train, test = hold_out(parts, 0.2, RNG)
    assert train.sizes.tolist() == [8, 1, 0, 1]
    assert test.sizes.tolist() == [2, 0, 0, 1]
    assert sorted([*train.rows.tolist(), *test.rows.tolist()]) == list(range(13))
    assert set(test[0].tolist()) <= set(range(10))


def test_hold_out_of_nothing_is_nothing() -> None:
    train, test = hold_out(Shards.of([torch.arange(5)]), 0.0, RNG)
    assert (train.sizes.tolist(), test.sizes.tolist()) == ([5], [0])


def test_mirror_follows_each_clients_labels() -> None:
    y = np.r_[np.zeros(300), np.ones(300), np.zeros(60), np.ones(60)].astype(np.int64)
    train = Shards.of([torch.arange(300), torch.arange(300, 600)])
    test = mirror(train, y, np.arange(600, 720), RNG)
    assert rows_once(test)
    assert sorted(test[0].tolist()) == list(range(600, 660))
    assert sorted(test[1].tolist()) == list(range(660, 720))


@pytest.mark.parametrize("test_rows", [np.arange(3, 4), np.empty(0, np.int64)])
def test_mirror_uses_rows_again_or_none(test_rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    test = mirror(Shards.of([torch.tensor([0]), torch.tensor([1, 2])]), np.zeros(4, np.int64), test_rows, RNG)
    assert test.sizes.tolist() == ([1, 1] if len(test_rows) else [0, 0])
