"""Draws from the discrete Gaussian of one deviation, most of them by a single look-up, and all of them exactly.

Values are taken in buckets of 256 neighbours. Within one, probabilities are even but for a part that the slope makes:

    P(n) = c_b / 2^24 + w(n),    c_b = floor(2^24 * the least P in the bucket b of n),    w(n) >= 0.

16 bits choose one of 65,536 cells, of which c_b belong to bucket b, and eight more the place in it. That settles 99 %
of draws. The cells that belong to no bucket stand for w, which is drawn by rejection: 16 bits propose a bucket, in
proportion to whole numbers e_b with h e_b >= w, eight a place, and 32 decide whether the value stays, with probability
w / (h e_b). These probabilities are known to less than 2^-32 from floats; where the 32 bits are next to one, which
happens once in 2^30 proposals, further bits are compared with the true number until they decide (``Table.stays``). So
nothing is left that would have to be charged but what lies beyond 40 deviations. That is 2^-1154, and the least number
above zero that a double can hold, a delta for one, is 2^-1074.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.learn.kernels import add_draws, keep_proposals
from coterie.rng import Keystream, Secrets

SIGMA = 1 << 14
REACH = 40  # the table ends after so many deviations
BLOCK = 1 << 18  # draws at a time: their buffers stay in the cache

PLACES = 1 << 8
CELLS = 1 << 16
_WORD = 1 << 32  # what is compared with the thresholds lies below it
_MARGIN = 1e-9  # by which floats that must bound something are moved; they are right to 1e-14


@dataclass(frozen=True, eq=False)
class Table:
    """By cell: the lowest value of its bucket; those from ``easy`` on belong to none. By value: what w needs."""

    easy: int
    lowest: NDArray[np.int32]  # (cells,)
    proposed: NDArray[np.int32]  # (cells,): the lowest value of the bucket that is proposed
    thresholds: NDArray[np.uint32]  # (values,): the probability to stay, in units of 2^-32, from the lowest value on
    first: NDArray[np.uint8]  # the first eight bits of those about the middle; of all others they are zero
    counts: NDArray[np.int32]  # (buckets,): c_b
    shares: NDArray[np.int32]  # (buckets,): e_b
    height: float  # h

    def remainders(self, count: int, streams: Sequence[Keystream]) -> list[NDArray[np.int32]]:
        """At least so many draws from w, of each stream; several at once cost hardly more than one."""
        found = self._accepted(4 * (9 * count // 20 + 17), streams)
        for place, own in enumerate(found):
            if len(own) < count:
                found[place] = np.concatenate([own, *self.remainders(count - len(own), streams[place : place + 1])])
        return found

    def _accepted(self, tries: int, streams: Sequence[Keystream]) -> list[NDArray[np.int32]]:
        size = 7 * tries
        raw = np.empty(size * len(streams) + Keystream.SPARE, dtype=np.uint8)
        for row, stream in enumerate(streams):
            stream.fill(raw[size * row :], size)
        rows = raw[: size * len(streams)].reshape(len(streams), size)
        words, cells = rows[:, : 4 * tries].view("<u4"), rows[:, 4 * tries : 6 * tries].view("<u2")
        given = words, cells, rows[:, 6 * tries :], self.proposed, self.thresholds, self.first
        found = np.empty((len(streams), tries), dtype=np.int32)
        tried, kept = np.zeros((2, len(streams)), dtype=np.int64)
        while (row := keep_proposals(*given, found, tried, kept)) < len(streams):
            at = row, tried[row]
            value = int(self.proposed[cells[at]]) + int(rows[:, 6 * tries :][at])
            found[row, kept[row]] = value
            kept[row] += self.stays(value, int(words[at]), streams[row].word)
            tried[row] += 1
        return [own[:count] for own, count in zip(found, kept.tolist(), strict=True)]

    def stays(self, value: int, word: int, more: Callable[[], int]) -> bool:
        """Whether a uniform number that begins with these 32 bits, and goes on with ``more``, is below w / (h e_b)."""
        bucket, drawn, bits = (value + REACH * SIGMA) // PLACES, word, 32
        while True:
            drawn, bits = drawn << 64 | more(), bits + 64
            with localcontext() as context:
                context.prec = bits // 3 + 400  # digits: far more than were drawn, as far out as the table goes
                likely = (Decimal(-(value**2)) / (2 * SIGMA**2)).exp() / (SIGMA * (2 * _pi(context.prec)).sqrt())
                rest = likely - Decimal(int(self.counts[bucket])) / (CELLS * PLACES)
                limit = rest / (Decimal(self.height) * int(self.shares[bucket])) * 2**bits
                slack = Decimal(2) ** -32
                if drawn + 1 <= limit - slack:
                    return True
                if drawn >= limit + slack:
                    return False


@lru_cache(maxsize=1)
def table() -> Table:
    """Bounds are taken from floats, with a margin, so they are bounds; nothing else about them has to be exact.

    The sum of exp(-n^2 / 2 sigma^2) is sigma sqrt(2 pi) to within exp(-2 pi^2 sigma^2), which has 2.3e9 zeros.
    """
    values = np.arange(-REACH * SIGMA, REACH * SIGMA)
    likely = np.exp(-(values.astype(np.float64) ** 2) / (2 * SIGMA**2)) / (SIGMA * math.sqrt(2 * math.pi))
    likely = likely.reshape(-1, PLACES)  # (buckets, places)
    lowest = values[::PLACES].astype(np.int32)
    counts = np.floor(likely.min(1) * (CELLS * PLACES) * (1 - _MARGIN)).astype(np.int32)
    rest = likely - counts[:, None] / (CELLS * PLACES)
    most = rest.max(1) * (1 + _MARGIN)
    height = float(most.sum() / (CELLS - len(lowest)))
    shares = np.maximum(np.ceil(most / height * (1 + _MARGIN)), 1).astype(np.int32)
    shares[: CELLS - shares.sum()] += 1  # cells that are left over: any bucket may have them
    stay = rest / (height * shares[:, None])
    thresholds, settled = (stay * _WORD).astype(np.uint32).reshape(-1), np.repeat(lowest, counts)
    return Table(
        len(settled),
        np.concatenate([settled, np.zeros(CELLS - len(settled), dtype=np.int32)]),
        np.repeat(lowest, shares),
        thresholds,
        _middle((thresholds >> 24).astype(np.uint8)),
        counts,
        shares,
        height,
    )


def _middle(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """As many from both ends are left out as leave a zero at each."""
    places = np.flatnonzero(numbers)
    cut = min(places[0], len(numbers) - 1 - places[-1]) - 1
    return numbers[cut : len(numbers) - cut]


@lru_cache(maxsize=8)
def _pi(digits: int) -> Decimal:
    """Machin's formula."""
    with localcontext() as context:
        context.prec = digits + 10
        return 4 * (4 * _inverse_arctan(5) - _inverse_arctan(239))


def _inverse_arctan(number: int) -> Decimal:
    """arctan(1 / number), to the context's precision."""
    power = total = Decimal(1) / number
    for odd in range(3, 1 << 20, 2):
        power /= -number * number
        before, total = total, total + power / odd
        if total == before:
            break
    return total


class Draws:
    """Draws from one node's stream, one after the other, in blocks.

    How long it takes does not tell what is drawn: of w, which is drawn in another way, as many are made ready as will
    do but once in a billion times, whether they are needed or not, and where one is taken, what is looked up is, too.
    """

    def __init__(self, stream: Keystream, spare: NDArray[np.int32]) -> None:
        self._table, self._stream, self._spare = table(), stream, spare

    @staticmethod
    def of(nodes: Sequence[Secrets], most: int) -> list[Draws]:
        """So many draws from each of the nodes, at most."""
        expected, streams = most * (CELLS - table().easy) / CELLS, [node.stream() for node in nodes]
        spares = table().remainders(math.ceil(expected + 6 * math.sqrt(expected) + 6), streams)
        return [Draws(stream, spare) for stream, spare in zip(streams, spares, strict=True)]

    def add_to(self, total: NDArray[Any], factor: int = 1) -> None:
        """total = factor * total + the next draws, in place: one block, best of ``BLOCK`` at most."""
        self.scaled(total, factor, total.dtype.type(1), total)

    def scaled(self, total: NDArray[Any], factor: int, scale: np.number, out: NDArray[Any]) -> None:
        """out = scale * (factor * total + the next draws), rounded to the type of out first; the total is used up."""
        count, table = len(total), self._table
        raw = self._stream.read(3 * count)
        cells, places = raw[: 2 * count].view("<u2"), raw[2 * count :]
        looked_up = cells, places, table.lowest, table.easy
        while (hard := add_draws(total, factor, *looked_up, self._spare, scale, out)) >= len(self._spare):
            self._spare = np.concatenate([self._spare, *table.remainders(hard + 1, [self._stream])])
        self._spare = self._spare[hard:]
