"""Draws by look-up: both parts make up the discrete Gaussian, and ties are settled by the true number."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.references.discrete_gaussian import Coins

from coterie.privacy.lookup import BLOCK, CELLS, PLACES, REACH, SIGMA, Draws, Table, _pi, table
from coterie.rng import Keystream, Secrets

FALSE_ALARM = 1e-6
LOWEST = -REACH * SIGMA


def likely() -> NDArray[np.float64]:
    """(buckets, places)"""
    values = np.arange(LOWEST, -LOWEST, dtype=np.float64)
    found: NDArray[np.float64] = np.exp(-(values**2) / (2 * SIGMA**2)).reshape(-1, PLACES)
    found /= found.sum()
    return found


class Scripted(Keystream):
    """A stream whose bytes and words are known."""

    def __init__(self, given: bytes, *words: int) -> None:
        super().__init__(bytes(32))
        self.given, self.left = given, list(words)

    def fill(self, buffer: NDArray[np.uint8], count: int) -> None:
        part, self.given = self.given[:count], self.given[count:]
        buffer[:count] = np.frombuffer(part.ljust(count, b"\xff"), dtype=np.uint8)

    def words(self, count: int) -> NDArray[np.uint64]:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


def drawn_from(node: Secrets, count: int, announced: int | None = None) -> NDArray[np.int32]:
    """In blocks."""
    out = np.zeros(count, dtype=np.int32)
    draws = Draws.of([node], count if announced is None else announced)[0]
    for start in range(0, count, BLOCK):
        draws.add_to(out[start : start + BLOCK])
    return out


def test_cells_and_proposals_make_up_the_distribution() -> None:
    """Every value's chance, by cells and by proposals that stay, against its probability: to a threshold's bits."""
    found, expected = table(), likely()
    counted = np.bincount((found.lowest[: found.easy] - LOWEST) // PLACES, minlength=len(expected))
    assert np.array_equal(counted, found.counts)
    proposed = np.bincount((found.proposed - LOWEST) // PLACES, minlength=len(expected))
    assert np.array_equal(proposed, found.shares)
    assert len(found.proposed) == CELLS
    assert proposed.min() >= 1
    stay = proposed[:, None] * (found.thresholds.reshape(-1, PLACES) / 2**32)
    hard = (CELLS - found.easy) / CELLS
    chances = counted[:, None] / (CELLS * PLACES) + hard * stay / stay.sum()
    assert np.abs(chances - expected).max() < 2**-32 * expected.max()
    assert 0 < hard < 0.011


def test_a_threshold_is_nowhere_off_by_more_than_what_is_settled_with_more_bits() -> None:
    """Exactly, in 60 digits, at all kinds of places: words two away from a threshold never needed more bits."""
    found = table()
    places = [0, 1, 255, 256, -1, -256, SIGMA, 3 * SIGMA + 7, 4 * SIGMA, -5 * SIGMA + 3, 20 * SIGMA, LOWEST]
    with localcontext() as context:
        context.prec = 60
        for value in places:
            bucket = (value - LOWEST) // PLACES
            p = (Decimal(-(value**2)) / (2 * SIGMA**2)).exp() / (SIGMA * (2 * _pi(60)).sqrt())
            rest = p - Decimal(int(found.counts[bucket])) / (CELLS * PLACES)
            stays = rest / (Decimal(found.height) * int(found.shares[bucket]))
            assert 0 <= stays < 1
            assert abs(stays * 2**32 - int(found.thresholds[value - LOWEST])) < Decimal("1.5")


@pytest.mark.parametrize("value", [0, 17, -SIGMA, 3 * SIGMA, 30 * SIGMA])
def test_ties_are_settled_by_as_many_bits_as_it_takes(value: int) -> None:
    found, bucket = table(), (value - LOWEST) // PLACES
    with localcontext() as context:
        context.prec = 700
        p = (Decimal(-(value**2)) / (2 * SIGMA**2)).exp() / (SIGMA * (2 * _pi(700)).sqrt())
        rest = p - Decimal(int(found.counts[bucket])) / (CELLS * PLACES)
        digits = int(rest / (Decimal(found.height) * int(found.shares[bucket])) * Decimal(2) ** (32 + 64 * 30))
    words = [(digits >> (64 * place)) & (2**64 - 1) for place in reversed(range(30))]
    word = digits >> (64 * 30)
    for last, stays in ((-1, True), (1, False)):  # the number itself, up to one in 2^(32 + 64 * 30), below and above
        more = [*words[:-1], words[-1] + last, 0, 0]
        assert found.stays(value, word, iter(more).__next__) is stays
    assert found.stays(value, word + 1, iter([0, 0]).__next__) is False
    assert word == 0 or found.stays(value, word - 1, iter([2**64 - 1] * 2).__next__) is True


def test_a_word_next_to_a_threshold_asks_for_more() -> None:
    found, value = table(), 40
    bucket, tries = (value - LOWEST) // PLACES, 3
    cell = int(np.flatnonzero(found.proposed == LOWEST + PLACES * bucket)[0])
    limit = int(found.thresholds[value - LOWEST])
    given = np.array([limit - 5, limit, limit + 5], dtype="<u4").tobytes()
    given += np.array([cell] * tries, dtype="<u2").tobytes() + bytes([value % PLACES] * tries)
    for word, kept in ((0, [value, value]), (2**64 - 1, [value])):
        assert found._accepted(tries, [Scripted(given, word)])[0].tolist() == kept


def test_draws_fit_the_distribution_value_by_value() -> None:
    """Chi-square over places in the bucket, over single values near zero, and over buckets; once in a million keys."""
    count, expected = 3_000_000, likely()
    cells = drawn_from(Secrets.seeded(6), count).astype(np.int64) - LOWEST
    by_bucket, by_place = np.bincount(cells // PLACES, minlength=len(expected)), np.bincount(cells % PLACES)
    middle = slice(len(expected) // 2 - 250, len(expected) // 2 + 250)
    near = slice(-LOWEST - 5000, -LOWEST + 5000)
    for seen, due in (
        (by_bucket[middle], expected.sum(1)[middle] * count),
        (by_place, expected.sum(0) * count),
        (np.bincount(cells, minlength=-2 * LOWEST)[near], expected.ravel()[near] * count),
    ):
        assert ((seen - due) ** 2 / due).sum() < chi2.isf(FALSE_ALARM, len(due))


def test_what_the_cells_leave_is_the_remainder() -> None:
    """The second part alone, whose share is too small to show in the whole; once in a million keys."""
    found, count = table(), 400_000
    drawn = found.remainders(count, [Secrets.seeded(8).stream()])[0].astype(np.int64) - LOWEST
    rest = likely() - found.counts[:, None] / (CELLS * PLACES)
    rest /= rest.sum()
    middle = slice(len(rest) // 2 - 200, len(rest) // 2 + 200)
    for axis, seen in ((1, np.bincount(drawn // PLACES, minlength=len(rest))), (0, np.bincount(drawn % PLACES))):
        due = rest.sum(axis) * len(drawn)
        part = middle if axis == 1 else slice(None)
        assert ((seen[part] - due[part]) ** 2 / due[part]).sum() < chi2.isf(FALSE_ALARM, len(due[part]))


def test_blocks_are_one_stream() -> None:
    """Cells, places and what is spare, read by hand from where they stand in it."""
    count, found, node = BLOCK + 1001, table(), Secrets.seeded(3)
    stream = node.stream()
    hard_ones = math.ceil((mean := count * (CELLS - found.easy) / CELLS) + 6 * math.sqrt(mean) + 6)
    spare, expected = iter(found.remainders(hard_ones, [stream])[0].tolist()), []
    for size in (BLOCK, 1001):
        raw = stream.read(3 * size)
        for cell, place in zip(raw[: 2 * size].view("<u2").tolist(), raw[2 * size :].tolist(), strict=True):
            expected.append(next(spare) if cell >= found.easy else int(found.lowest[cell]) + place)
    assert drawn_from(node, count).tolist() == expected
    assert max(map(abs, expected)) < REACH * SIGMA


def test_remainders_that_do_not_suffice_are_drawn_anew() -> None:
    """More draws than were announced need more of w than was made ready: they come from the same stream, later."""
    count = 1_000_000
    again = drawn_from(Secrets.seeded(4), count, announced=1000)
    assert abs(again / SIGMA).max() > 4
    assert abs(np.mean((again / SIGMA) ** 2) - 1) < 6 * math.sqrt(2 / count)
    known = drawn_from(Secrets.seeded(4), 1000)
    assert np.array_equal(drawn_from(Secrets.seeded(4), 1000, announced=1000), known)


def test_the_oracle_agrees() -> None:
    """An exact sampler of another kind, coin by coin, and ours, in deviations; once in a million keys."""
    coins, count = Coins(Secrets.seeded(8)), 4_000
    oracle = np.array([coins.gaussian(64**2) for _ in range(count)]) / 64
    ours = drawn_from(Secrets.seeded(9), count)
    edges = [-math.inf, *np.linspace(-2, 2, 15), math.inf]
    first, second = (np.histogram(drawn, edges)[0] for drawn in (oracle, ours / SIGMA))
    assert ((first - second) ** 2 / (first + second)).sum() < chi2.isf(FALSE_ALARM, len(first) - 1)


def test_pi() -> None:
    with localcontext() as context:
        context.prec = 50
        assert str(+_pi(50)).startswith("3.14159265358979323846264338327950288419716939937")


def test_the_table_is_made_once() -> None:
    assert isinstance(table(), Table)
    assert table() is table()
