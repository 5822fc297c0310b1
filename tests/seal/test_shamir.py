"""Shamir's sharing: any threshold of holders recovers the secrets, fewer learn nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import InvalidInput
from coterie.seal.shamir import LIMBS, combine, split


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.data(), st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4))
def test_any_threshold_of_holders_recovers(holders: int, data: st.DataObject, values: list[bytes]) -> None:
    threshold = data.draw(st.integers(1, holders))
    shares = split(values, range(holders), threshold)
    chosen = random.Random(data.draw(st.integers())).sample(range(holders), threshold)
    assert combine(chosen, shares[chosen]) == values


def test_fewer_holders_see_uniform_shares_whatever_the_secret() -> None:
    """Means of two shares over 3000 sharings, within 5 standard errors: a false alarm in over 10^5 runs."""
    for secret in (bytes(32), b"\xff" * 32):
        shares = split([secret] * 3000, range(3), 3)[:2] / 2**31  # (2 holders, sharings, limbs)
        error = 1 / np.sqrt(12 * 3000)
        assert np.abs(shares.mean(1) - 0.5).max() < 5 * error
        product = ((shares[0] - 0.5) * (shares[1] - 0.5)).mean(0)  # and they are independent
        assert np.abs(product).max() < 5 / 12 / np.sqrt(3000)
    assert shares.shape == (2, 3000, LIMBS)


def test_too_few_shares_are_noticed() -> None:
    """The top limb, 16 of 31 bits, comes out too large: all but once in 2^15 runs."""
    shares = split([bytes(range(32))], range(5), 4)
    with pytest.raises(InvalidInput, match="share is wrong or missing"):
        combine([0, 1, 2], shares[[0, 1, 2]])


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="threshold=4"):
        split([bytes(32)], range(3), 4)
    with pytest.raises(InvalidInput, match="secret bytes=31"):
        split([bytes(31)], range(3), 2)
    shares = split([bytes(32)], range(3), 2)
    with pytest.raises(InvalidInput, match="holders"):
        combine([0, 0], shares[[0, 0]])
