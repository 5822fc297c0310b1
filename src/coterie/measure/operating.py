"""An attack that must commit itself: how often it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.measure.intervals import Floats


@dataclass(frozen=True)
class OperatingPoint:
    """How often the attack is right if it must commit itself, at the threshold that suits it best.

    The threshold is found on one half of the observations and tried on the other, so it has not seen what it is
    judged by.
    """

    accuracy: float  # how often it is right
    base_rate: float  # how often always giving the commoner answer is right
    precision: float  # of those it accuses, how many it accuses rightly; NaN if none
    recall: float  # of those it should accuse, how many it does

    def __str__(self) -> str:
        accused = "it accuses nobody" if math.isnan(self.precision) else f"{self.precision:.0%} of its accusations hold"
        return (
            f"at its best threshold it is right {self.accuracy:.0%} of the time (the commoner answer: "
            f"{self.base_rate:.0%}); {accused}, and it finds {self.recall:.0%} of what there is"
        )

    @staticmethod
    def mean(points: Sequence[OperatingPoint]) -> OperatingPoint | None:
        if not points:
            return None
        rows = np.array([[one.accuracy, one.base_rate, one.precision, one.recall] for one in points])
        precision = rows[:, 2][~np.isnan(rows[:, 2])]
        accuracy, base_rate, _, recall = rows.mean(0).tolist()
        return OperatingPoint(accuracy, base_rate, float(precision.mean()) if len(precision) else math.nan, recall)


def operating_point(scores: Floats, answers: NDArray[np.bool_]) -> OperatingPoint | None:
    """Halves hold every other yes and every other no; the threshold is the one with the highest balanced accuracy."""
    if min(answers.sum(), (~answers).sum()) < 2:
        return None
    rank = np.where(answers, np.cumsum(answers), np.cumsum(~answers))
    halves = [rank % 2 == half for half in (0, 1)]
    accused = np.zeros(len(scores), bool)
    for fit, use in (halves, halves[::-1]):
        accused[use] = scores[use] >= best_threshold(scores[fit], answers[fit])
    right = accused == answers
    return OperatingPoint(
        float(right.mean()),
        float(max(answers.mean(), 1 - answers.mean())),
        float(answers[accused].mean()) if accused.any() else math.nan,
        float(accused[answers].mean()),
    )


def best_threshold(scores: Floats, answers: NDArray[np.bool_]) -> float:
    from sklearn.metrics import roc_curve

    false_alarms, hits, thresholds = roc_curve(answers, scores)
    return float(thresholds[np.argmax(hits - false_alarms)])
