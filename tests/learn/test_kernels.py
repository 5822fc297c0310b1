"""Compiled loops give the bits of what they say, entry by entry in Python, on the worst numbers there are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import coterie
from coterie.learn.kernels import (
    add_about,
    add_draws,
    add_whole_outer,
    keep_proposals,
    least_scores,
    round_rows,
    split_scales,
    squares_in_double,
)

EDGES = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    127.5,
    -127.5,
    128.5,
    1e-45,
    -1e-38,
    3e38,
    -3e38,
    math.inf,
    -math.inf,
    math.nan,
]
floats = st.one_of(st.sampled_from(EDGES), st.floats(width=32))
seeds = st.integers(0, 2**32 - 1)
patient = settings(deadline=None, max_examples=200)  # the first example waits for the compiler

# -- draws ------------------------------------------------------------------------------------------------------------

EASY = 64_872


def a_table(draws: np.random.Generator) -> NDArray[np.int32]:
    return draws.integers(-(2**19), 2**19, 1 << 16).astype(np.int32)


@patient
@given(
    seeds,
    st.integers(0, 70),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([1, -1, 0, 2, 64, 1 << 14]),
    st.sampled_from([0, 1, 30_000, EASY, 65_535]),
    st.sampled_from([-1, 0, 1, 5]),
    st.sampled_from([None, 0.37, -1e-30, 1e30]),
)
def test_draws_are_looked_up_or_taken_from_what_is_spare(
    seed: int, count: int, kind: Any, factor: int, easy: int, more: int, scale: float | None
) -> None:
    draws = np.random.default_rng(seed)
    cells, places = draws.integers(0, 1 << 16, count).astype(np.uint16), draws.integers(0, 256, count).astype(np.uint8)
    if count:
        cells[0], cells[-1] = easy, max(easy - 1, 0)
    lowest, spare = a_table(draws), draws.integers(-(2**19), 2**19, 200).astype(np.int32)
    hard = [int(cell) >= easy for cell in cells]
    spare = spare[: max(sum(hard) + more, 0)]
    most = (int(np.iinfo(kind).max) - 2**20) // max(abs(factor), 1)
    total = draws.integers(-most, most, count, endpoint=True).astype(kind)
    before, out = total.copy(), total if scale is None else np.zeros(count, dtype=np.float32)
    by: Any = kind(1) if scale is None else np.float32(scale)
    assert add_draws(total, factor, cells, places, lowest, easy, spare, by, out) == sum(hard)
    if sum(hard) >= len(spare):
        assert np.array_equal(total, before)
        return
    following = iter(spare.tolist())
    whole = [
        factor * int(entry) + (next(following) if hidden else int(lowest[cell]) + int(place))
        for entry, cell, place, hidden in zip(before, cells, places, hard, strict=True)
    ]
    with np.errstate(over="ignore"):
        expected = np.array(whole, dtype=kind) if scale is None else np.array(whole, dtype=kind).astype(np.float32) * by
    assert out.tobytes() == expected.tobytes()


@patient
@given(seeds, st.integers(1, 3), st.integers(0, 40))
def test_proposals_stay_below_their_thresholds_and_those_next_to_them_are_asked_about(
    seed: int, rows: int, tries: int
) -> None:
    draws = np.random.default_rng(seed)
    thresholds = draws.choice(np.array([0, 1, 2**24 - 1, 2**24, 2**31, 2**32 - 1], dtype=np.uint32), 4096)
    thresholds[:1024], thresholds[3072:] = draws.integers(0, 3, (2, 1024))
    first = (thresholds >> 24).astype(np.uint8)[1023:3073]
    proposed = draws.integers(-2048, 2048 - 255, 1 << 16).astype(np.int32)
    cells, places = draws.integers(0, 1 << 16, (rows, tries)), draws.integers(0, 256, (rows, tries))
    values = proposed[cells] + places
    off = draws.integers(-3, 4, (rows, tries)) * draws.integers(0, 2, (rows, tries))
    words = thresholds[values + 2048] + off.astype(np.uint32)
    found, tried, kept = np.empty((rows, tries), dtype=np.int32), *np.zeros((2, rows), dtype=np.int64)
    given_ = words, cells.astype(np.uint16), places.astype(np.uint8), proposed, thresholds, first
    asked = []
    while (row := keep_proposals(*given_, found, tried, kept)) < rows:
        asked.append((row, int(tried[row])))
        found[row, kept[row]] = 99_999
        kept[row] += 1
        tried[row] += 1
    distance = (words - thresholds[values + 2048] + np.uint32(1)).astype(np.int64)
    assert asked == [tuple(place) for place in np.argwhere(distance <= 2).tolist()]
    for row in range(rows):
        expected = [
            99_999 if tie else value
            for value, tie, word in zip(values[row], distance[row] <= 2, words[row], strict=True)
            if tie or word < thresholds[value + 2048]
        ]
        assert found[row, : kept[row]].tolist() == expected


# -- gradients --------------------------------------------------------------------------------------------------------


@patient
@given(
    st.lists(st.lists(floats, min_size=5, max_size=5), min_size=1, max_size=4),
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-38, 3e38, 16_384.0]),
    st.sampled_from([(128, np.int8), (128, np.float32), (1 << 15, np.int32)]),
    st.booleans(),
    st.integers(1, 5),
)
def test_rows_are_rounded_to_whole_numbers_whose_squares_are_exact(
    entries: list[list[float]], factor: float, kind: tuple[int, Any], towards_zero: bool, width: int
) -> None:
    rows = np.array(entries, dtype=np.float32)[:, :width]
    rows, factors = np.ascontiguousarray(rows), np.full(len(rows), factor, dtype=np.float32)
    clients = 2 if len(rows) % 2 == 0 else 1
    together = np.full((clients, 3 + rows.size // clients), 77, dtype=kind[1])
    squares = np.empty(len(rows), dtype=np.int64)
    round_rows(rows, factors, kind[0], towards_zero, together, 3, squares)
    out = together[:, 3:].reshape(rows.shape)
    assert (together[:, :3] == 77).all()
    with np.errstate(all="ignore"):
        scaled = rows * factors[:, None]
    whole = np.trunc(scaled) if towards_zero else np.rint(scaled)
    whole = np.where(np.isnan(whole), kind[0], np.clip(whole, -kind[0], kind[0])).astype(np.int64)
    assert squares.tolist() == (whole**2).sum(1).tolist()
    inside = squares < kind[0] ** 2
    assert np.array_equal(out[inside].astype(np.int64), whole[inside])


@patient
@given(
    st.integers(1, 3),
    st.lists(st.tuples(floats, floats, floats, floats, floats, floats), min_size=1, max_size=6),
    st.sampled_from([2.0**-50, 0.7, 2.0**50]),
)
def test_scales_are_split_as_written(layers: int, squares: list[tuple[float, ...]], clip: float) -> None:
    both = np.ascontiguousarray(np.abs(np.array(squares, dtype=np.float32)).T[: 2 * layers])
    long, short = both[::2], both[1::2]
    ratios, aim = np.linspace(0.5, 3, layers), 16_000.0
    found = np.empty((1 + 2 * layers, long.shape[1]), dtype=np.float32)
    split_scales(both, ratios, clip, aim, found)
    with np.errstate(all="ignore"):
        wide, narrow = long.astype(np.float64), short.astype(np.float64)
        squared = ((wide + 1) * narrow).sum(0)
        scales = np.where(np.isfinite(squared), aim / np.maximum(np.sqrt(squared), clip), 0.0)
        alpha = np.sqrt(scales * ratios[:, None] * np.sqrt(narrow / wide))
        beta = scales / alpha
        usable = np.isfinite(alpha) & np.isfinite(beta) & (alpha > 0)
        expected = [scales, *(part for pair in zip(alpha * 1, beta * 1, strict=True) for part in pair)]
        for place, part in enumerate(expected[1:]):
            part[~usable[place // 2]] = 0.0
        assert found.tobytes() == np.array(expected).astype(np.float32).tobytes()


@patient
@given(
    seeds,
    st.integers(0, 4),
    st.integers(1, 3),
    st.sampled_from([1, 7, 16, 40, 2048, 4100]),
    st.sampled_from(["f", "d"]),
)
def test_outer_products_are_rounded_entry_by_entry_and_added_up(
    seed: int, examples: int, p: int, q: int, kind: str
) -> None:
    draws = np.random.default_rng(seed)
    left, right = (draws.standard_cauchy((examples, width)).astype(kind) for width in (p, q))
    left[draws.random(left.shape) < 0.3] = 0.5
    right[draws.random(right.shape) < 0.3] = 1.0
    factors, total = draws.choice([1.0, 3.0, -0.37, 0.0, 1e5], examples), draws.integers(-9, 9, (p, q)).astype(float)
    expected = total.copy()
    for factor, above, beside in zip(factors, left.astype(float), right.astype(float), strict=True):
        expected += np.rint((factor * above)[:, None] * beside)
    add_whole_outer(left, right, factors, total)
    assert np.array_equal(total, expected)


@patient
@given(seeds, st.integers(0, 70), st.sampled_from(["f", "d"]))
def test_squares_are_right_and_a_row_s_own(seed: int, width: int, kind: str) -> None:
    draws = np.random.default_rng(seed)
    rows = draws.standard_cauchy((5, width)).astype(kind)
    rows[draws.random(rows.shape) < 0.02] = 3e38
    out, alone = np.empty(5), np.empty(1)
    squares_in_double(rows, out)
    exact = [math.fsum(entry * entry for entry in row) for row in rows.tolist()]
    assert np.allclose(out, exact, rtol=1e-14, atol=0)
    for row, squared in zip(rows, out, strict=True):
        squares_in_double(row.reshape(1, -1), alone)
        assert alone[0] == squared


# -- labels -----------------------------------------------------------------------------------------------------------


@patient
@given(
    st.lists(st.lists(floats, min_size=9, max_size=9), min_size=0, max_size=5),
    st.integers(1, 9),
    st.sampled_from([0.0, 1e-45, 0.5, 1e38, math.inf, math.nan]),
)
@example([[-math.inf, *[0.0] * 8]], 1, math.inf)
@example([[-math.inf, *[0.0] * 8]], 9, math.inf)
def test_least_scores_and_the_rows_that_are_not_decided(entries: list[list[float]], count: int, slack: float) -> None:
    scores = np.ascontiguousarray(np.array(entries, dtype=np.float32).reshape(-1, 9)[:, :count])
    labels, near = np.empty(len(scores), dtype=np.int64), np.empty(len(scores) + 1, dtype=np.int64)
    close = least_scores(scores, np.full(len(scores), slack, dtype=np.float32), labels, near)
    undecided = set(near[:close].tolist())
    for row, seen in enumerate(scores):
        place = int(np.argmin(seen))
        with np.errstate(all="ignore"):
            clear = not np.isnan(seen).any() and (np.delete(seen, place) > seen[place] + np.float32(slack)).all()
        assert (row not in undecided) == clear
        assert row in undecided or labels[row] == place


@patient
@given(seeds, st.integers(0, 30), st.integers(1, 9))
def test_sums_about_anchors_are_added_in_their_order(seed: int, rows: int, width: int) -> None:
    draws = np.random.default_rng(seed)
    x, anchors = (draws.standard_cauchy((count, width)).astype(np.float32) * 1e3 for count in (rows, 4))
    labels, slots, weights = draws.integers(0, 4, rows), draws.integers(0, 3, rows), draws.random(rows, np.float32)
    expected = np.ones((3, width), dtype=np.float32)
    out = expected.copy()
    add_about(x, anchors, labels, slots, weights, out)
    for row, label, slot, weight in zip(x, labels, slots, weights, strict=True):
        expected[slot] += weight * (row - anchors[label])
    assert out.tobytes() == expected.tobytes()


# -- numba itself -----------------------------------------------------------------------------------------------------


def test_numba_is_loaded_when_it_is_needed_and_not_before() -> None:
    code = "import sys, coterie.privacy.grid, coterie.learn.clusters.lloyd; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_that_was_compiled_is_kept(tmp_path: Path) -> None:
    """A flipped bit in a file of machine code, which numba does not check, would be noise that is too small."""
    code = (
        "import numpy as np; from coterie.learn.kernels import round_rows;"
        "out, squares = np.empty((1, 2), np.int8), np.empty(1, np.int64);"
        "round_rows(np.array([[1.4, -2.6]], np.float32), np.ones(1, np.float32), 128, False, out, 0, squares);"
        "assert out.tolist() == [[1, -3]] and squares.tolist() == [10]"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parent.parent), "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)
    assert not list(tmp_path.rglob("*.nb?"))
