"""Scores of imagined pictures: by hand, with exact chance, and beside what else would score."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch
from torch import Tensor

from coterie.attacks.base import Pictures
from coterie.errors import InvalidInput
from coterie.measure.judge import judge
from coterie.measure.likeness import (
    OTHERS,
    STRANGERS,
    Holders,
    Likeness,
    collapse,
    difference,
    identified,
    recognised,
    similarity,
)


def bright(*places: tuple[int, int]) -> Tensor:
    """(1, 1, 3, 3) with these pixels at one."""
    picture = torch.zeros(1, 1, 3, 3)
    for row, column in places:
        picture[0, 0, row, column] = 1
    return picture


A, B, C, AB = bright((0, 0)), bright((0, 1)), bright((0, 2)), bright((0, 0), (0, 1))


def noise(classes: int, count: int, seed: int) -> dict[Hashable, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.rand(count, 1, 4, 4, generator=draws) for name in range(classes)}


def test_by_hand() -> None:
    truth = Holders({0: torch.cat([A, AB])}, {0: [torch.cat([B, B])]}, {0: torch.cat([C, AB])})
    guess = Pictures({0: torch.cat([A, AB])})
    half = 0.5**0.5
    assert similarity(A, torch.cat([A, AB])) == pytest.approx((1 + half) / 2)
    assert similarity(guess.of[0], truth.victim[0]) == pytest.approx((1 + half + half + 1) / 4)
    # A is nearest to the victim's A; AB is the victim's and a stranger's: half of it
    found = identified(guess, truth)
    assert found.score == pytest.approx(0.75)
    assert found.chance == pytest.approx(1 / 3)
    beyond = difference(guess, truth, STRANGERS)
    assert beyond.score == pytest.approx((2 + 2 * half) / 4 - (0 + half + 0 + 1) / 4)
    assert difference(guess, truth, OTHERS).score == pytest.approx((2 + 2 * half) / 4 - (0 + half) / 2)
    assert collapse(guess, truth) == pytest.approx(0)
    assert collapse(Pictures({0: torch.cat([A, A, A])}), truth) == pytest.approx(1)
    assert judge(guess, truth, "a GAN", "its own").attack == "a GAN"


def test_the_victim_s_own_pictures_are_identified_and_a_stranger_s_are_not() -> None:
    victim, other, stranger = (noise(10, 8, seed) for seed in range(3))
    truth = Holders(victim, {name: [pool] for name, pool in other.items()}, stranger)
    assert identified(Pictures(victim), truth).score == 1
    assert identified(Pictures(stranger), truth).score == 0
    own = difference(Pictures({name: pool.mean(0, keepdim=True) for name, pool in victim.items()}), truth, STRANGERS)
    assert own.score == pytest.approx(own.perfect)


def test_a_class_is_recognised_by_its_nearest_strangers() -> None:
    pools: dict[Hashable, Tensor] = {
        name: one.repeat(5, 1, 1, 1) + 0.01 * noise(1, 5, 0)[0][:, :, :3, :3] for name, one in enumerate((A, B, C))
    }
    truth = Holders(pools, {}, pools)
    assert recognised(Pictures({0: A, 1: B, 2: C}), truth).score == 1
    assert recognised(Pictures({0: A, 1: C, 2: B}), truth).score == pytest.approx(1 / 3)


def test_chance_is_exact_where_holders_are_exchangeable() -> None:
    """300 classes with three like pools: the mean share is 1/3 to 4 deviations (false alarms: 1 in 10,000)."""
    victim, other, stranger, made = (noise(300, 4, seed) for seed in range(4))
    truth = Holders(victim, {name: [pool] for name, pool in other.items()}, stranger)
    found = identified(Pictures({name: pool[:1] for name, pool in made.items()}), truth)
    assert abs(found.score - 1 / 3) < 4 * (2 / 9 / 300) ** 0.5


def test_a_larger_pool_is_no_likelier() -> None:
    truth = Holders({0: torch.cat([A, B])}, {}, {0: C})
    assert [len(pool) for pool in truth.pools(0)] == [1, 1]
    assert identified(Pictures({0: B}), truth).score == pytest.approx(0.5)  # nothing of either's: a tie


def test_floors_and_ceilings() -> None:
    victim, other, stranger = (noise(5, 6, seed) for seed in range(3))
    truth = Holders(victim, {name: [pool] for name, pool in other.items()}, stranger)
    told = Likeness.of(Pictures({name: pool.mean(0, keepdim=True) for name, pool in victim.items()}), truth)
    assert told.similarity == pytest.approx(told.own)
    assert max(told.disc, told.wrong_class, told.others, told.strangers) < told.own


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InvalidInput, match="are none that all holders have"):
        identified(Pictures({7: A}), Holders({0: A}, {}, {0: B}))
    with pytest.raises(InvalidInput, match="alone in its cluster"):
        difference(Pictures({0: A}), Holders({0: A}, {}, {0: B}), OTHERS)
