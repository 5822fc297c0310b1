"""Proofs of range: true ones hold, false ones do not, and nothing else is accepted in their place."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from coterie.errors import InvalidInput
from coterie.seal.range_proofs import Committed, chance, drawn, holds

CONTEXT = b"party 1, round 3"


@pytest.mark.parametrize("bits", [1, 5])
def test_every_number_of_the_range_is_proven(bits: int) -> None:
    values = [0, 1, (1 << bits) - 1]
    mine = Committed(values, bits)
    for place, point in enumerate(mine.points):
        assert holds(point, mine.proof(place, CONTEXT), bits, CONTEXT)


def test_a_number_outside_of_it_is_not() -> None:
    mine = Committed([32, 1000, 3], 5)
    points = mine.points
    assert [holds(points[place], mine.proof(place, CONTEXT), 5, CONTEXT) for place in range(3)] == [False, False, True]


def test_a_proof_is_of_its_number_and_its_message() -> None:
    mine = Committed([3, 3], 5)
    points, proof = mine.points, mine.proof(0, CONTEXT)
    assert points[0] != points[1]  # equal numbers do not look alike
    assert not holds(points[1], proof, 5, CONTEXT)
    assert not holds(points[0], proof, 5, b"party 1, round 4")
    assert not holds(points[0], proof[:4], 4, CONTEXT)
    assert not holds(points[0], proof, 6, CONTEXT)


def test_whatever_is_changed_is_refused() -> None:
    mine = Committed([9], 4)
    point, proof = mine.points[0], mine.proof(0, CONTEXT)
    assert holds(point, proof, 4, CONTEXT)
    first = proof[0]
    swapped = replace(first, challenges=first.challenges[::-1])
    other = replace(first, answers=(first.answers[1], first.answers[0]))
    nowhere = replace(first, point=bytes([1]) + bytes(31))  # the neutral element
    for broken in (swapped, other, nowhere):
        assert not holds(point, (broken, *proof[1:]), 4, CONTEXT)


def test_the_chance_to_catch_a_liar() -> None:
    assert chance(10, 3, 2) == pytest.approx(1 - comb(7, 2) / comb(10, 2))
    assert chance(10, 0, 5) == 0
    assert chance(10, 8, 3) == 1
    assert chance(10_000_000, 100_000, 64) == pytest.approx(1 - 0.99**64, rel=1e-3)
    assert drawn(5, 9) == [0, 1, 2, 3, 4]
    assert len(set(drawn(1000, 64))) == 64


def test_a_sample_catches_as_often_as_stated() -> None:
    """A tenth of 200 numbers is wrong and 10 are looked at: caught with 0.66, in 400 draws +- 0.12 (five sigma)."""
    wrong = set(range(20))
    caught = sum(bool(wrong & set(drawn(200, 10))) for _ in range(400)) / 400
    assert caught == pytest.approx(chance(200, 20, 10), abs=0.12)


def test_what_is_asked_wrongly() -> None:
    with pytest.raises(InvalidInput, match=r"bits=0 must lie in 1\.\.32"):
        Committed([1], 0)
    with pytest.raises(InvalidInput, match=r"wrong=3 must lie in 0\.\.2"):
        chance(2, 3, 1)
