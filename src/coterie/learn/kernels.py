"""Loops for which numpy would walk over memory many times, as machine code: numba compiles each at its first call.

They do what they say in strict floating point and whole numbers, in one thread, without Python's lock. Each process
compiles for itself, in a second or two: numba would run what it finds in a damaged file, and noise be drawn wrong
without a word. How long ``add_draws`` takes does not tell how a draw was made; of the others that is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Given = ParamSpec("Given")
Found = TypeVar("Found")

_MAGIC = np.float32(1.5 * 2.0**23)
"""Added to a float of less than 2^22 and taken off again, this leaves the nearest whole number, the even one of two."""

_INFINITY = np.int32(0x7F800000)
_SIGN_OFF = np.int32(0x7FFFFFFF)


def compiled(kernel: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same, compiled for the types of its arguments. Whoever never calls it never waits for numba."""

    @cache
    def machine_code() -> Callable[Given, Found]:
        import numba

        found: Callable[Given, Found] = numba.njit(kernel, nogil=True, error_model="numpy")
        return found

    @wraps(kernel)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        return machine_code()(*given, **named)

    return call


@compiled
def add_draws(
    total: NDArray[Any],
    factor: int,
    cells: NDArray[np.uint16],
    places: NDArray[np.uint8],
    lowest: NDArray[np.int32],
    easy: int,
    spare: NDArray[np.int32],
    scale: np.number,
    out: NDArray[Any],
) -> int:
    """out = scale * (factor * total + draw), which is rounded to the type of out before it is scaled; total is used up.

    A draw is ``lowest[cell] + place``, or the next spare one where the cell is not ``easy``: both are read, and one is
    masked, so that time does not tell which. The mask is the sign of a difference: made of a comparison, compilers turn
    it into a jump. Returns how many spare ones that takes; where there are no more than these, nothing is done.
    """
    end = np.uint16(easy)
    needed: Any = np.int32(0)
    for at in range(len(total)):
        needed += np.int32(cells[at] >= end)
    if needed >= len(spare):
        return int(needed)
    if factor != 1:
        for at in range(len(total)):
            total[at] *= factor
    used = np.uint64(0)
    last = np.int64(easy) - 1
    for at in range(len(total)):
        hard = (last - np.int64(cells[at])) >> 63  # -1 or 0
        looked_up = np.int64(lowest[cells[at]]) + np.int64(places[at])
        draw = looked_up ^ ((looked_up ^ np.int64(spare[used])) & hard)
        out[at] = out.dtype.type(total.dtype.type(total[at] + draw)) * scale
        used += np.uint64(-hard)
    return int(needed)


@compiled
def keep_proposals(
    words: NDArray[np.uint32],
    cells: NDArray[np.uint16],
    places: NDArray[np.uint8],
    proposed: NDArray[np.int32],
    thresholds: NDArray[np.uint32],
    first: NDArray[np.uint8],
    found: NDArray[np.int32],
    tried: NDArray[np.int64],
    kept: NDArray[np.int64],
) -> int:
    """Values whose word is below their threshold, of each row behind the ``kept`` ones; ``tried`` is how far it went.

    It stops at a word next to its threshold, which is for the caller to decide, and returns the row; the number of
    rows, if there was none. Zero has the threshold in the middle; ``first`` are the first eight bits of those about it,
    and all others' are zero. These stay in the cache, and mostly decide.
    """
    middle, about = np.int32(len(thresholds) // 2), np.int32(len(first) // 2)
    for row in range(len(words)):
        at, count = np.uint64(tried[row]), np.uint64(kept[row])
        while at < words.shape[1]:
            value, word = np.int32(proposed[cells[row, at]] + np.int32(places[row, at])), words[row, at]
            near = min(max(np.int32(value + about), np.int32(0)), np.int32(len(first) - 1))
            above = np.int32(word >> np.uint32(24)) - np.int32(first[np.uint32(near)])
            stays = above < 0
            if np.uint8(above + 1) <= 2:  # modulo 2^8: one below, equal, one above
                limit = thresholds[np.uint32(value + middle)]
                if np.uint32(word - limit + np.uint32(1)) <= 2:
                    tried[row], kept[row] = at, count
                    return row
                stays = word < limit
            found[row, count] = value
            count += np.uint64(stays)
            at += np.uint64(1)
        tried[row], kept[row] = at, count
    return len(words)


@compiled
def split_scales(
    squares: NDArray[np.float32], ratios: NDArray[np.float64], clip: float, aim: float, factors: NDArray[np.float32]
) -> None:
    """What scales each example's gradient so that ``clip`` becomes ``aim`` and nothing is longer; and that in parts.

    From the squares of each layer's inputs and deltas in turn, (2 layers, examples), ``factors`` (1 + 2 layers,
    examples) follow: the scale, and what of it inputs and deltas take, whose norms then have a ratio of ``ratios``.
    Zero where squares are not finite, or there is nothing to scale.
    """
    for example in range(squares.shape[1]):
        squared = 0.0
        for layer in range(len(ratios)):
            long, short = np.float64(squares[2 * layer, example]), np.float64(squares[2 * layer + 1, example])
            squared += (long + 1) * short
        scale = aim / max(np.sqrt(squared), clip) if np.isfinite(squared) else 0.0
        factors[0, example] = scale
        for layer in range(len(ratios)):
            long, short = np.float64(squares[2 * layer, example]), np.float64(squares[2 * layer + 1, example])
            alpha = np.sqrt(scale * ratios[layer] * np.sqrt(short / long))
            beta = scale / alpha
            usable = np.isfinite(alpha) and np.isfinite(beta) and alpha > 0
            factors[1 + 2 * layer, example] = alpha if usable else 0.0
            factors[2 + 2 * layer, example] = beta if usable else 0.0


@compiled
def round_rows(
    rows: NDArray[np.float32],
    factors: NDArray[np.float32],
    most: int,
    towards_zero: bool,
    out: NDArray[Any],
    start: int,
    squares: NDArray[np.int64],
) -> None:
    """out = factor times row in whole numbers, and the exact sum of their squares, of each row.

    Rows are (clients * batch, width); those of a client come one after the other in its row of out, from ``start`` on.
    Entries beyond ``most``, at most 2^15, and NaN count as ``most``, so that a row of less than its square has none.
    """
    high, low, width = np.float32(most), np.float32(-most), rows.shape[1]
    batch = len(rows) // len(out)
    for client in range(len(out)):
        for place in range(batch):
            row, first = client * batch + place, np.uint64(start + place * width)
            factor, total = factors[row], np.int64(0)
            for column in range(width):
                entry = rows[row, column] * factor
                entry = entry if entry < high else high
                entry = entry if entry > low else low
                nearest = np.float32(np.float32(entry + _MAGIC) - _MAGIC)
                whole = np.int32(entry if towards_zero else nearest)
                out[client, first + np.uint64(column)] = whole
                total += np.int32(whole * whole)
            squares[row] = total


TILE, LANES = 2048, 16
"""Columns that stay in the nearest cache while all examples pass; sums that a processor adds to at the same time."""


@compiled
def add_whole_outer(
    left: NDArray[np.floating], right: NDArray[np.floating], factors: NDArray[np.float64], total: NDArray[np.float64]
) -> None:
    """total (p, q) += rint(factor * left * right) of each example, whose left (p,) and right (q,) are rows of these."""
    for start in range(0, right.shape[1], TILE):
        for row in range(left.shape[1]):
            own = total[row, start : start + TILE]
            for example in range(len(left)):
                factor, given = factors[example] * np.float64(left[example, row]), right[example, start : start + TILE]
                for column in range(len(own)):
                    own[column] += np.rint(factor * np.float64(given[column]))


@compiled
def squares_in_double(rows: NDArray[np.floating], out: NDArray[np.float64]) -> None:
    """The squared norm of each row, in an order of operations that the rows' length alone decides."""
    whole = rows.shape[1] // LANES * LANES
    for row in range(len(rows)):
        sums = np.zeros(LANES)
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                entry = np.float64(rows[row, np.uint64(start + lane)])
                sums[lane] += entry * entry
        squared = 0.0
        for lane in range(LANES):
            squared += sums[lane]
        for column in range(whole, rows.shape[1]):
            entry = np.float64(rows[row, column])
            squared += entry * entry
        out[row] = squared


@compiled
def add_about(
    x: NDArray[np.float32],
    anchors: NDArray[np.float32],
    labels: NDArray[np.int64],
    slots: NDArray[np.int64],
    weights: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """out[slot] += weight * (x - the anchor of its label), row by row."""
    for row in range(len(x)):
        anchor, slot, weight = np.uint64(labels[row]), np.uint64(slots[row]), weights[row]
        for column in range(x.shape[1]):
            out[slot, column] += weight * np.float32(x[row, column] - anchors[anchor, column])


@compiled
def least_scores(
    scores: NDArray[np.float32],
    slack: NDArray[np.float32],
    labels: NDArray[np.int64],
    near: NDArray[np.int64],
) -> int:
    """Where the least score of each row stands; and ``near``, so many as are returned, the rows in which another is not
    above it by more than the slack, or something is NaN.

    Floats are compared by their bits as whole numbers, in which they have the same order: compilers know how to find
    the least of many of these at once.
    """
    bits, close, count = scores.view(np.int32), np.uint64(0), scores.shape[1]
    reach = np.empty(1, dtype=np.float32)
    reach_bits = reach.view(np.int32)
    for row in range(len(scores)):
        least, most = _SIGN_OFF, np.int32(-_SIGN_OFF)
        for column in range(count):
            order = np.int32(bits[row, column] ^ np.int32((bits[row, column] >> 31) & _SIGN_OFF))
            least, most = min(least, order), max(most, order)
        from_there: Any = 0  # columns, from the first that has the least on
        for column in range(count):
            order = np.int32(bits[row, column] ^ np.int32((bits[row, column] >> 31) & _SIGN_OFF))
            from_there = max(from_there, (count - column) * np.int32(order == least))
        labels[row] = count - from_there
        reach[0] = scores[row, np.uint64(labels[row])] + slack[row]
        limit = np.int32(reach_bits[0] ^ np.int32((reach_bits[0] >> 31) & _SIGN_OFF))
        within: Any = 0
        for column in range(count):
            order = np.int32(bits[row, column] ^ np.int32((bits[row, column] >> 31) & _SIGN_OFF))
            within += np.int32(order <= limit)
        near[close] = row
        contested = count > 1 and within != 1  # where there is no other, a limit that is NaN decides nothing
        close += np.uint64(contested or most > _INFINITY or least < -_INFINITY - 1)
    return int(close)
