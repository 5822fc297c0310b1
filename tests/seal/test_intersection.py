"""Private set intersection: it is the intersection, and nobody who lacks a secret sees which points are equal."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from coterie.errors import InvalidInput
from coterie.estimators import VerticalKMeans
from coterie.seal.intersection import Joiner, compared, intersection, point


def names(*numbers: int) -> list[bytes]:
    return [b"record %d" % number for number in numbers]


@pytest.mark.parametrize(
    "parties",
    [
        [names(1, 2, 3, 4), names(4, 9, 2)],
        [names(1, 2, 3, 4), names(4, 9, 2), names(2, 7, 4, 1)],
        [names(1, 2), names(3)],
        [names(5)],
    ],
)
def test_it_is_the_intersection_in_the_order_of_the_first(parties: list[list[bytes]]) -> None:
    found = intersection(parties)
    wanted = [one for one in parties[0] if all(one in other for other in parties)]
    assert [[own[place] for place in places] for own, places in zip(parties, found, strict=True)] == [wanted] * len(
        parties
    )


def test_secrets_commute_and_one_that_is_missing_hides_everything() -> None:
    """Under both secrets equal identifiers are equal points; under one of them nothing is, and a new join is new."""
    one, other = Joiner(names(1, 2)), Joiner(names(2, 3))
    here, there = other.raised(one.begin()), one.raised(other.begin())
    assert len(set(here) & set(there)) == 1
    assert not set(one.begin()) & set(other.begin())
    assert not set(one.begin()) & set(Joiner(names(1, 2)).begin())
    assert point(b"a") == point(b"a") != point(b"b")
    assert one.shared(compared([here, there])[0]) == [1]


@pytest.mark.parametrize("bad", [b"\0" * 32, b"\1" + b"\0" * 31, b"short"])
def test_points_outside_of_the_group_are_refused(bad: bytes) -> None:
    """The neutral point and those of small order would show bits of the secret."""
    with pytest.raises(InvalidInput, match="points=refused: some are not of the group"):
        Joiner(names(1)).raised([bad])


def test_identifiers_that_come_twice() -> None:
    with pytest.raises(InvalidInput, match="identifiers='twice' must come once"):
        Joiner(names(1, 1))


def test_the_estimator_joins_as_in_the_open() -> None:
    draws = np.random.default_rng(0)
    left = pd.DataFrame({"key": np.arange(30), "a": draws.normal(size=30)})
    right = pd.DataFrame({"key": draws.permutation(40)[:25].astype(float), "b": draws.normal(size=25)})
    fits = [
        VerticalKMeans(3, private_ids=private, random_state=0).fit([left, right], ids="key")
        for private in (False, True)
    ]
    np.testing.assert_array_equal(fits[0].record_ids_, fits[1].record_ids_)
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    with pytest.raises(InvalidInput, match="ids that all parties have=0 must be at least one"):
        VerticalKMeans(2, private_ids=True).fit([left[:3], right.assign(key=right["key"] + 100)], ids="key")
