"""The veil over sums: uniform to whoever lacks the key, whoever is in the sum, and off again with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.seal.rounds import GRID

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import shamir
from coterie.seal.streams import Words, add_stream, pack, signed, unpack
from coterie.seal.veil import GroupKey, HiddenSlot, HiddenSum, _at, pads, unveil, veil
from coterie.wire.codec import decode, encode

KEY = GroupKey(bytes(range(32)))


def veiled(places: set[int], length: int, context: bytes = b"round") -> Words:
    """The sum of zeros over the members at these places."""
    words = np.zeros(length, np.uint64)
    for place in places:
        veil(words, KEY.of_round(context), 1, place)
    return words


@given(st.sets(st.integers(0, 12), min_size=1))
def test_what_members_added_comes_off_again_whoever_is_missing(places: set[int]) -> None:
    words = veiled(places, 40)
    assert words.any()
    unveil(words, KEY.of_round(b"round"), 1, places)
    assert not words.any()


@pytest.mark.parametrize("places", [{0, 1}, {0, 1, 2, 3}, {0, 2, 3, 7}, set(range(64))], ids=len)
def test_every_bit_of_a_sum_is_hidden_for_even_numbers_of_members_too(places: set[int]) -> None:
    """Balanced to 6 standard errors: a false alarm in about 10^7 runs."""
    bits = np.unpackbits(veiled(places, 20_000).view(np.uint8)).reshape(20_000, 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 6 * 0.5 / np.sqrt(20_000)


def test_one_common_stream_would_leave_low_bits_bare() -> None:
    """Why neighbours' streams telescope: four times the same stream has two zero bits in every word."""
    words = np.zeros(100, np.uint64)
    for _ in range(4):
        add_stream(words, _at(KEY.of_round(b"round"), 0), 1, subtract=False)
    assert not (words & np.uint64(3)).any()


def test_no_veil_comes_twice() -> None:
    assert not np.array_equal(veiled({0, 1, 2}, 50), veiled({0, 1, 2}, 50, b"another round"))
    assert not np.array_equal(pads(KEY.of_round(b"round"), 5), pads(KEY.of_round(b"another round"), 5))
    assert 0 <= pads(KEY.of_round(b"round"), 1000).min() <= pads(KEY.of_round(b"round"), 1000).max() < shamir.PRIME


@given(st.lists(st.integers(1 - 2**38, 2**38 - 1), min_size=1), st.integers(5, 8))
def test_words_keep_their_low_bytes_and_their_sign(numbers: list[int], width: int) -> None:
    words = np.array(numbers, dtype=np.int64).view(np.uint64)
    packed = pack(words, width)
    assert packed.nbytes == width * len(numbers)
    assert signed(unpack(packed, width), width).tolist() == numbers
    twice = unpack(packed, width) + unpack(packed, width)
    assert signed(twice, width).tolist() == [2 * number for number in numbers]


def hidden(values: list[list[float]], contexts: list[bytes]) -> HiddenSum:
    slots = []
    for slot, (row, context) in enumerate(zip(values, contexts, strict=True)):
        words = (np.array(row) * 2**24).astype(np.int64).view(np.uint64)
        for place in (0, 1, 4):
            veil(words, KEY.of_round(context), slot, place)
        size = (7 + slot + int(pads(KEY.of_round(context), 2)[slot])) % shamir.PRIME
        slots.append(HiddenSlot(pack(words, 5), slot, context, (0, 1, 4), size))
    return HiddenSum(tuple(slots), {"w": (3,)}, GRID, 5)


def test_hidden_sums_open_with_the_key_alone() -> None:
    values = [[1.0, -2.5, 0.25], [100.0, 0.0, -0.125]]
    total = decode(encode(hidden(values, [b"a", b"b"])))
    assert total.open(KEY).tolist() == values
    assert total.sizes(KEY) == [7, 8]
    assert total.nbytes == 2 * 3 * 5
    assert not torch.isclose(total.open(GroupKey()), torch.tensor(values, dtype=torch.float64), atol=1e-3).any()
    for key in (None, KEY.secret, KEY.context):
        with pytest.raises(NotPermitted, match="only the clients' group key does"):
            total.open(key)
    with pytest.raises(InvalidInput, match="of a whole round already"):
        total + total
    assert KEY.secret.hex() not in repr(KEY)
    assert KEY.context not in KEY.secret


def test_a_cluster_without_a_sum_keeps_its_former_one() -> None:
    first, second = hidden([[1.0, 2, 3], [4, 5, 6]], [b"a", b"a"]), hidden([[7.0, 8, 9], [0, 0, 0]], [b"b", b"b"])
    partial = HiddenSum((second.sums[0], None), second.shapes, GRID, 5)
    assert partial.known == [True, False]
    assert partial.filled_from(None).open(KEY).tolist() == [[7, 8, 9], [0, 0, 0]]
    assert partial.filled_from(first).open(KEY).tolist() == [[7, 8, 9], [4, 5, 6]]
