from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.data.toys import apart, rows_once, same, toy

from coterie.data.auxiliary import Auxiliary, reserve
from coterie.data.federation import Examples
from coterie.data.partition import Control, PropertySplit
from coterie.errors import InvalidInput
from coterie.rng import Rng

RNG = Rng.seeded(5)


def skewed() -> Examples:
    """Two labels; the property is four times as common with label 1, so that labels alone give it away."""
    examples = toy(6000, classes=2)
    luck = torch.rand(6000, generator=Rng.seeded(1).torch())
    return replace(examples, tags={"glasses": (luck < 0.1 + 0.3 * examples.y).to(torch.int64)})


def mix(examples: Examples, rows: torch.Tensor) -> float:
    return float(examples.y[rows].to(torch.float64).mean())


@pytest.mark.parametrize("control", Control)
@pytest.mark.parametrize("matched", [True, False])
def test_rows_are_dealt_once_and_only_two_hold_the_property(control: Control, matched: bool) -> None:
    split = PropertySplit(5, "glasses", control=control, matched=matched)
    federation = split.split(skewed(), RNG)
    assert rows_once(federation.train)
    assert apart(federation)
    assert same(federation, split.split(skewed(), RNG))
    has = federation.examples.tags["property"] == 1
    holders = [bool(has[federation.train[client]].any()) for client in range(5)]
    assert holders == [True, control is not Control.ABSENT, False, False, False]
    assert all(torch.equal(federation.test[0], federation.test[client]) for client in range(1, 5))


def test_attacker_and_victim_have_half_each() -> None:
    federation = PropertySplit(4, "glasses").split(skewed(), RNG)
    has = federation.examples.tags["property"]
    halves = [int(has[federation.train[client]].sum()) for client in (0, 1)]
    assert abs(halves[0] - halves[1]) <= 2
    trained = torch.ones(6000, dtype=torch.bool)
    trained[federation.test[0]] = False
    assert sum(halves) == int(has[trained].sum())


def test_labels_of_the_victims_two_kinds_of_batch_are_matched() -> None:
    examples = skewed()
    matched = PropertySplit(5, "glasses").split(examples, RNG).schedules[1]
    assert abs(mix(examples, matched.marked) - mix(examples, matched.plain)) < 0.01
    assert not torch.isin(matched.marked, matched.plain).any()
    published = PropertySplit(5, "glasses", matched=False).split(examples, RNG).schedules[1]
    assert abs(mix(examples, published.marked) - mix(examples, published.plain)) > 0.05


def test_schedule_draws_from_the_victims_own_rows() -> None:
    federation = PropertySplit(5, "glasses", every=3, warmup=10).split(skewed(), RNG)
    schedule = federation.schedules[PropertySplit.victim]
    assert sorted(torch.cat([schedule.marked, schedule.plain]).tolist()) == sorted(federation.train[1].tolist())
    assert [round for round in range(20) if schedule.is_marked(round)] == [12, 15, 18]
    assert (federation.examples.tags["glasses"][schedule.marked] == 1).all()
    assert (federation.examples.tags["glasses"][schedule.plain] == 0).all()


def test_placebo_has_size_and_labels_of_the_property_but_not_its_rows() -> None:
    examples = skewed()
    has = examples.tags["glasses"] == 1
    placebo = PropertySplit(5, "glasses", control=Control.PLACEBO).split(examples, RNG).examples.tags["property"] == 1
    assert torch.equal(examples.y[placebo].bincount(), examples.y[has].bincount())
    # Given the label the placebo is independent of the property: among label 1, 40 % of the placebo have it too.
    # 1,200 rows: deviation 0.011 (sampling without replacement), bound at five of them.
    overlap = (placebo & has & (examples.y == 1)).sum() / (placebo & (examples.y == 1)).sum()
    assert abs(float(overlap) - 0.4) < 0.06


def test_absent_victim_draws_every_batch_from_the_same_rows() -> None:
    federation = PropertySplit(5, "glasses", control=Control.ABSENT).split(skewed(), RNG)
    schedule = federation.schedules[1]
    assert torch.equal(schedule.marked, schedule.plain)
    assert (federation.examples.tags["glasses"][schedule.marked] == 0).all()


@pytest.mark.parametrize("purity", [0.2, 0.5])
def test_purity_is_the_share_of_property_rows_in_a_marked_batch(purity: float) -> None:
    examples = skewed()
    schedule = PropertySplit(5, "glasses", purity=purity).split(examples, RNG).schedules[1]
    assert abs(float(examples.tags["glasses"][schedule.marked].float().mean()) - purity) < 0.02
    assert abs(mix(examples, schedule.marked) - mix(examples, schedule.plain)) < 0.06


def test_auxiliary_data_is_the_attackers_own() -> None:
    split = PropertySplit(5, "glasses")
    federation = split.split(skewed(), RNG)
    auxiliary = split.auxiliary(federation)
    mine = set(federation.train[0].tolist())
    held = [*auxiliary.with_property.x[:, 0].tolist(), *auxiliary.without_property.x[:, 0].tolist()]
    assert set(map(int, held)) == mine
    assert (auxiliary.with_property.tags["glasses"] == 1).all()
    assert (auxiliary.without_property.tags["glasses"] == 0).all()


def test_a_value_of_many_can_be_the_property() -> None:
    examples = replace(skewed(), tags={"author": torch.arange(6000) % 4})
    federation = PropertySplit(3, "author", value=2).split(examples, RNG)
    assert set(federation.examples.tags["author"][federation.schedules[1].marked].tolist()) == {2}


def test_wrong_settings() -> None:
    with pytest.raises(InvalidInput, match="clients=2 must be at least 3"):
        PropertySplit(2, "glasses")
    with pytest.raises(InvalidInput, match=r"purity=0\.0"):
        PropertySplit(3, "glasses", purity=0.0)
    with pytest.raises(InvalidInput, match="did you mean 'glasses'"):
        PropertySplit(3, "glases").split(skewed(), RNG)
    with pytest.raises(InvalidInput, match="value of tag 'glasses'=7"):
        PropertySplit(3, "glasses", value=7).split(skewed(), RNG)
    only = replace(skewed(), tags={"glasses": skewed().y})
    with pytest.raises(InvalidInput, match="matched=False"):
        PropertySplit(3, "glasses").split(only, RNG)


def test_auxiliary_by_class_and_reserve() -> None:
    examples = toy(200)
    auxiliary, rest = reserve(examples, per_class=3, rng=RNG)
    assert auxiliary.whole().y.bincount().tolist() == [3] * 10
    assert len(rest) == 170
    assert not set(auxiliary.whole().x[:, 0].tolist()) & set(rest.x[:, 0].tolist())
    assert (auxiliary.of_class(4).y == 4).all()
    with pytest.raises(InvalidInput, match="label=12"):
        auxiliary.of_class(12)
    with pytest.raises(InvalidInput, match="takes all 20 examples"):
        reserve(examples, per_class=20, rng=RNG)
    with pytest.raises(InvalidInput, match="needs examples"):
        Auxiliary().whole()
    with pytest.raises(InvalidInput, match="with_property"):
        Auxiliary(examples).with_property  # noqa: B018
    with pytest.raises(InvalidInput, match="some but not all"):
        Auxiliary.by_property(examples, torch.ones(200, dtype=torch.bool))
