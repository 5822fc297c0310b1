"""ROC curves whose area is the number that is printed beside them.

The area over several strata or seeds is the mean of their areas. Pooling their scores into one curve would compare
scores that nobody compares, and draw another area; so curves are averaged vertically, which averages their areas.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coterie.errors import require
from coterie.measure.intervals import Floats, Sample

RATES = (0.001, 0.01, 0.1)
"""False positive rates that a report tells the true positive rate at: thinning keeps the curve there as it is."""

MOST_POINTS = 161
"""Of a curve that is kept; more cannot be told apart on a page."""


@dataclass(frozen=True)
class Curve:
    """False and true positive rates along the curve, from (0, 0) to (1, 1); neither ever falls."""

    false: Sequence[float]
    true: Sequence[float]

    def __post_init__(self) -> None:
        require(len(self.false) == len(self.true) >= 2, "curve", (len(self.false), len(self.true)), "must have ends")

    @staticmethod
    def of(scores: Floats, answers: NDArray[np.bool_]) -> Curve:
        """Of scores of which some are to be accused; equal scores are accused together."""
        thresholds = np.unique(scores)[::-1]
        rates = [_share_from(scores[answers == kind], thresholds) for kind in (False, True)]
        return Curve([0.0, *rates[0].tolist()], [0.0, *rates[1].tolist()])

    @staticmethod
    def average(curves: Sequence[Curve], weights: Sequence[float]) -> Curve:
        """The mean height at every false positive rate; its area is the mean area."""
        total = sum(weights)
        grid = np.unique(np.concatenate([np.asarray(curve.false) for curve in curves] + [np.asarray(RATES)]))
        heights = np.zeros((2, len(grid)))
        for curve, weight in zip(curves, weights, strict=True):
            heights += weight / total * curve._heights(grid)
        return Curve(np.repeat(grid, 2).tolist(), heights.T.flatten().tolist())._without_repeats()

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true, self.false))

    @property
    def tied(self) -> float:
        """The share of pairs of a yes and a no with one score: the rectangles that the curve cuts aslant."""
        return float(np.diff(self.false) @ np.diff(self.true))

    def at(self, rate: float) -> float:
        """The true positive rate that is reached without exceeding this false positive rate."""
        return max(true for false, true in zip(self.false, self.true, strict=True) if false <= rate)

    def thinned(self) -> Curve:
        """With few enough points to draw, and the same area to the last digit.

        Between two points that are kept, the curve is replaced by two straight pieces over a third point on the falling
        diagonal of their rectangle, placed so that the area between them is the curve's own.
        """
        if len(self.false) <= MOST_POINTS:
            return self
        false, true = np.asarray(self.false), np.asarray(self.true)
        marks = [int(np.searchsorted(false, rate, side="right")) - 1 for rate in RATES]
        blocks = (MOST_POINTS - 1) // 2 - len(marks)
        kept = np.unique([*np.linspace(0, len(false) - 1, blocks + 1).astype(int), *marks])
        xs, ys = [float(false[0])], [float(true[0])]
        for start, end in pairwise(kept):
            wide, tall = float(false[end] - false[start]), float(true[end] - true[start])
            if wide * tall > 0:
                span = slice(start, end + 1)
                filled = float(np.trapezoid(true[span] - true[start], false[span])) / (wide * tall)
                xs.append(float(false[start]) + (1 - filled) * wide)
                ys.append(float(true[start]) + filled * tall)
            xs.append(float(false[end]))
            ys.append(float(true[end]))
        return Curve(xs, ys)

    def _heights(self, grid: Floats) -> Floats:
        """(2, grid): where the curve comes to each rate, and where it leaves it; they differ on upright pieces."""
        false, true = np.asarray(self.false), np.asarray(self.true)
        first, last = np.searchsorted(false, grid, side="left"), np.searchsorted(false, grid, side="right") - 1
        there = first <= last
        before, after = np.maximum(first - 1, 0), np.minimum(first, len(false) - 1)
        width = np.where(there, 1.0, false[after] - false[before])
        between = true[before] + (grid - false[before]) / width * (true[after] - true[before])
        return np.stack([np.where(there, true[after], between), np.where(there, true[last], between)])

    def _without_repeats(self) -> Curve:
        points = list(dict.fromkeys(zip(self.false, self.true, strict=True)))
        return Curve([false for false, _ in points], [true for _, true in points])


def _share_from(values: Floats, thresholds: Floats) -> Floats:
    """The share of values at or above each threshold."""
    return (len(values) - np.searchsorted(np.sort(values), thresholds, side="left")) / len(values)


def stratified(scores: Floats, answers: NDArray[np.bool_], groups: Sequence[Hashable]) -> tuple[Sample, Curve | None]:
    """The mean AUC of the groups, weighted by their pairs of yes and no, and the curve with this very area.

    Without a group that has both there is nothing to tell apart: NaN, and no curve. Who says the same of all in every
    group has said nothing: such a score is worth no trial, and bounds nothing.
    """
    require(bool(np.isfinite(scores).all()), "scores", "NaN or infinite", "rank nobody; give every question a number")
    curves, pairs = [], []
    for group in dict.fromkeys(groups):
        here = np.array([other == group for other in groups])
        yes, no = int(answers[here].sum()), int((~answers[here]).sum())
        if yes and no:
            curves.append(Curve.of(scores[here], answers[here]))
            pairs.append((yes, no))
    if not curves:
        return Sample.area(float("nan"), [(int(answers.sum()), int((~answers).sum()))]), None
    weights = [float(yes * no) for yes, no in pairs]
    curve = curves[0] if len(curves) == 1 else Curve.average(curves, weights)
    area = sum(weight * one.area for weight, one in zip(weights, curves, strict=True)) / sum(weights)
    run = Sample.area(min(max(area, 0.0), 1.0), pairs)
    said_nothing = all(len(one.false) == 2 for one in curves)
    return replace(run, worth=0.0) if said_nothing else run, curve.thinned()
