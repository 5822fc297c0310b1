"""Rows by key, and comparisons that hold, fail or do not decide."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from coterie.errors import InvalidInput
from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Decision, Estimate, Key, Row, Rows

HOLDS, FAILS, UNDECIDED = Decision.HOLDS, Decision.FAILS, Decision.UNDECIDED


def test_a_key_is_its_values_in_any_order() -> None:
    key = Key.of(setting="CFL", clients=3)
    assert key == Key.of(clients=3, setting="CFL")
    assert hash(key) == hash(Key.of(clients=3, setting="CFL"))
    assert key != Key.of(setting="CFL", clients=4)
    assert list(key) == ["setting", "clients"]  # as it was said
    assert dict(key.but(clients=5, attack="passive")) == {"setting": "CFL", "clients": 5, "attack": "passive"}
    assert key.has(clients=3)
    assert not key.has(clients=3, attack="passive")
    with pytest.raises(InvalidInput, match="name twice"):
        Key((("a", 1), ("a", 2)))


def test_words_are_made_from_a_key() -> None:
    key = Key.of(data="MNIST", p=0.5, clients=3, what="epoch 5")
    assert (
        key.words({"p": ", p={:g}", "clients": " with {} clients", "what": ": {}"})
        == "MNIST, p=0.5 with 3 clients: epoch 5"
    )


def row(value: float = 1.0, **key: str | int) -> Row:
    return Row(Key.of(**key), "for people", None, Estimate(value))


def test_rows_are_found_by_key_and_have_one_each() -> None:
    rows = Rows.of(
        [row(setting="FL", clients=3), row(2.0, setting="CFL", clients=3), row(3.0, setting="CFL", clients=5)]
    )
    assert rows[Key.of(clients=5, setting="CFL")].ours.value == 3.0
    assert [one.ours.value for one in rows.where(setting="CFL")] == [2.0, 3.0]
    ((one, twin),) = rows.pairs({"setting": "CFL"}, {"setting": "FL"})  # five clients have no twin
    assert (one.ours.value, twin.ours.value) == (2.0, 1.0)
    assert rows.get(Key.of(clients=9)) is None
    assert Key.of(clients=9) not in rows
    with pytest.raises(InvalidInput, match=r"row \{'clients': 9\} is not in this table"):
        rows[Key.of(clients=9)]
    with pytest.raises(InvalidInput, match=r"one key for two"):
        Rows.of([row(setting="FL"), row(setting="FL")])


def test_an_estimate_over_seeds_is_students() -> None:
    one = Estimate.over({0: 0.9, 1: 0.8, 5: 1.0, 7: math.nan}, most=1.0)
    low, high = t_interval([0.9, 0.8, 1.0])
    assert [one.value, one.low, one.high] == pytest.approx([0.9, low, 1.0])
    assert high > 1  # which the value cannot be
    assert list(one.by_seed) == [0, 1, 5]
    assert not Estimate.over({0: 0.9}).is_known
    assert math.isnan(Estimate.over({}).value)


def test_rows_of_the_same_seeds_are_compared_seed_by_seed() -> None:
    """Each seed moves both by far more than they differ: their intervals overlap, the differences tell."""
    one = Estimate.over({0: 10.0, 1: 20.1, 2: 30.2})
    other = Estimate.over({0: 9.0, 1: 19.0, 2: 29.0})
    difference = one.minus(other)
    assert dict(difference.by_seed) == pytest.approx({0: 1.0, 1: 1.1, 2: 1.2})
    assert difference.above(0) is HOLDS
    assert other.minus(one).above(0) is FAILS
    apart = Estimate(one.value, one.low, one.high).minus(Estimate(other.value, other.low, other.high))
    assert apart.above(0) is UNDECIDED
    assert apart.high - apart.value == pytest.approx(math.hypot(one.high - one.value, other.high - other.value))


def test_only_shared_seeds_are_paired() -> None:
    difference = Estimate.over({0: 1.0, 1: 2.0, 2: 30.0}).minus(Estimate.over({0: 0.5, 1: 1.0, 9: 8.0}))
    assert dict(difference.by_seed) == {0: 0.5, 1: 1.0}
    alone = Estimate.over({0: 1.0}).minus(Estimate.over({0: 0.5}))
    assert alone.value == 0.5
    assert alone.above(0) is UNDECIDED  # one seed decides nothing


@pytest.mark.parametrize(
    ("limit", "above", "at_least", "at_most", "covers"),
    [
        (0.5, HOLDS, HOLDS, FAILS, FAILS),
        (1.0, UNDECIDED, HOLDS, UNDECIDED, HOLDS),
        (1.5, UNDECIDED, UNDECIDED, UNDECIDED, HOLDS),
        (2.0, FAILS, UNDECIDED, HOLDS, HOLDS),
        (2.5, FAILS, FAILS, HOLDS, FAILS),
    ],
)
def test_an_interval_decides_or_does_not(
    limit: float, above: Decision, at_least: Decision, at_most: Decision, covers: Decision
) -> None:
    one = Estimate(1.5, 1.0, 2.0)
    assert (one.above(limit), one.at_least(limit), one.at_most(limit), one.covers(limit)) == (
        above,
        at_least,
        at_most,
        covers,
    )
    bare = Estimate(1.5)
    assert {bare.above(limit), bare.at_least(limit), bare.at_most(limit), bare.covers(limit)} == {UNDECIDED}


def test_intervals_that_hold_together_are_wider() -> None:
    one = Estimate.over({0: 1.0, 1: 2.0, 2: 4.0})
    wider = (one.among(10).high - one.value) / (one.high - one.value)
    assert wider == pytest.approx(t.ppf(1 - 0.0025, 2) / t.ppf(0.975, 2))
    assert one.among(1) == one


def test_parts_make_a_whole() -> None:
    assert Decision.every([]) is HOLDS
    assert Decision.every([HOLDS, UNDECIDED]) is UNDECIDED
    assert Decision.every([HOLDS, UNDECIDED, FAILS]) is FAILS
    assert Decision.some([FAILS, UNDECIDED]) is UNDECIDED
    assert Decision.some([FAILS, UNDECIDED, HOLDS]) is HOLDS
    assert Decision.some([FAILS, FAILS]) is FAILS
    assert (Decision.of(True), Decision.of(False)) == (HOLDS, FAILS)


def test_seeds_that_all_say_the_same_have_an_interval() -> None:
    """Ten equal numbers add up to other last digits in one order than in another."""
    for value in (19.99999999997994, 0.1, 1 / 3, 60.0):
        for seeds in range(2, 40):
            found = Estimate.over(dict.fromkeys(range(seeds), value))
            assert found.low <= found.value <= found.high
