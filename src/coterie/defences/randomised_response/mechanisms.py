"""The channels: Gap-RR as published, and mechanisms whose epsilon holds for what passes them, each calibrated on its
table of chances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import brentq

from coterie.defences.randomised_response.channel import Channel, Table
from coterie.errors import require

LEVELS = 64
LARGEST_TABLE = 1 << 24
TAIL = 14.0  # so many times the scale, clamped Laplace noise reaches: the rest, e^-14, stays at the ends


def discretised(levels: int = LEVELS) -> Channel:
    """No noise: only what Q values leave of a number (the baseline of paper 003's Figures 5 and 6)."""
    return Channel.of("discretised", np.eye(levels), _grid(levels), math.inf)


def gap_rr(epsilon: float, levels: int = LEVELS, ratio: float = 0.5) -> Channel:
    """Gap-RR (paper 003, Eq. 6 to 9): the value itself, or one of the two at distance l.

    Eq. 7 is garbled at the edges, and Eq. 9 is no distribution (p + 2q > 1). Here: the neighbours at distance l where
    they exist, else the nearest other values, towards the middle; always three, with p = e^eps / (e^eps + 2).

    It is not epsilon-LDP for any epsilon, whatever the paper's proof says: answer sets differ from value to value, so
    an answer can rule values out. The proof compares only values that share an answer.
    """
    _require(epsilon, levels)
    require(levels >= 3, "levels", levels, "must be at least 3: Gap-RR answers with one of three")
    require(0 < ratio <= 1, "ratio", ratio, "must lie in (0, 1]")
    gap = max(1, int((levels * ratio - 1) / 2 if levels % 2 else levels * ratio / 2 - 1))
    table = np.zeros((levels, levels))
    for value in range(levels):
        others = [other for other in (value - gap, value + gap) if 0 <= other < levels]
        middle = (levels - 1) / 2
        nearest = sorted(range(levels), key=lambda other: (abs(other - value), abs(other - middle)))
        others += [other for other in nearest if other != value and other not in others][: 2 - len(others)]
        table[value, others] = 1.0
        table[value, value] = math.exp(epsilon)
    return Channel.of(f"Gap-RR({epsilon:g}, ratio {ratio:g})", table, _grid(levels), epsilon)


def generalised(epsilon: float, levels: int = LEVELS) -> Channel:
    """Generalised randomised response over all values (Kairouz et al. 2014; paper 003's Eq. 8)."""
    _require(epsilon, levels)
    table = np.ones((levels, levels)) + np.eye(levels) * math.expm1(epsilon)
    return Channel.of(f"GRR({epsilon:g})", table, _grid(levels), epsilon)


def ordered(epsilon: float, levels: int = LEVELS) -> Channel:
    """The exponential mechanism over ordered values: near answers are likelier, by as much as epsilon allows exactly.

    The textbook's rate, epsilon / 2 over the whole range, spends less than epsilon; the rate here is the largest whose
    table keeps to it.
    """
    _require(epsilon, levels)
    gaps = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels)))

    def table(rate: float) -> Table:
        weights: Table = np.exp(-rate * gaps)
        weights /= weights.sum(1, keepdims=True)
        return weights

    def excess(rate: float) -> float:
        found = np.log(table(rate))
        return float((found.max(0) - found.min(0)).max()) - epsilon

    low, high = epsilon / (2 * (levels - 1)), 2 * epsilon / (levels - 1)
    rate = brentq(excess, low * (1 - 1e-9), high, xtol=1e-14) * (1 - 1e-12)
    return Channel.of(f"exponential({epsilon:g})", table(rate), _grid(levels), epsilon)


def piecewise(epsilon: float, levels: int = LEVELS) -> Channel:
    """The piecewise mechanism (Wang et al. 2019) on a grid: answers in a window about the value are e^eps likelier.

    Both grids have the same width, so every input's window is of whole cells and the ratio is exactly e^eps. Answers
    are unbiased.
    """
    _require(epsilon, levels)
    return _window("piecewise", epsilon, levels, 1 / (math.exp(epsilon / 2) + 1))


def square_wave(epsilon: float, levels: int = LEVELS) -> Channel:
    """The square wave (Li et al. 2020), discrete: a window of another width, which tells the most about the value.

    Its authors estimate distributions from it; here answers are made unbiased, which takes a shift and a scale.
    """
    _require(epsilon, levels)
    grown = math.exp(epsilon)
    half = (epsilon * grown - grown + 1) / (2 * grown * (grown - 1 - epsilon))
    return _window("square wave", epsilon, levels, 2 * half / (1 + 2 * half))


def discrete_laplace(epsilon: float, levels: int = LEVELS) -> Channel:
    """Two-sided geometric noise on the levels, for a change over the whole range; clamped far outside of it."""
    _require(epsilon, levels)
    rate = epsilon / (levels - 1)
    reach = math.ceil(TAIL / rate)
    answers = levels + 2 * reach
    size = levels * answers
    require(
        size <= LARGEST_TABLE, "levels", levels, f"are too many at epsilon={epsilon:g}: a table of {size:g} chances"
    )
    places = np.arange(-reach, levels + reach)
    table: Table = np.exp(-rate * np.abs(places[None] - np.arange(levels)[:, None]))
    table *= math.tanh(rate / 2)
    table[:, 0] /= -math.expm1(-rate)  # the whole tail
    table[:, -1] /= -math.expm1(-rate)
    return Channel.of(f"Laplace({epsilon:g})", table, places / (levels - 1), epsilon)


def _window(name: str, epsilon: float, levels: int, share: float) -> Channel:
    """Answers in a window of this share of all cells are e^eps times as likely as the others."""
    width = max(1, round(share / (1 - share) * (levels - 1)))
    answers = levels - 1 + width
    low = 1 / (answers + width * math.expm1(epsilon))
    inside = np.arange(answers)[None] - np.arange(levels)[:, None]
    table = np.where((inside >= 0) & (inside < width), low * math.exp(epsilon), low)
    means = table @ np.arange(answers)
    values = (np.arange(answers) - means[0]) / (means[-1] - means[0])
    return Channel.of(f"{name}({epsilon:g})", table, values, epsilon)


def _grid(levels: int) -> Table:
    return np.linspace(0.0, 1.0, levels)


def _require(epsilon: float, levels: int) -> None:
    require(
        0 < epsilon <= 40, "epsilon", epsilon, "must lie in (0, 40] a value; to switch the noise off, pass channel=None"
    )
    require(2 <= levels <= 4096, "levels", levels, "must lie in 2..4096")


MECHANISMS: Mapping[str, Callable[..., Channel]] = {
    "gap_rr": gap_rr,
    "generalised": generalised,
    "ordered": ordered,
    "piecewise": piecewise,
    "square_wave": square_wave,
    "laplace": discrete_laplace,
}
"""By the names that configurations use."""
