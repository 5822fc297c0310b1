"""What an attack's guess is worth. Only this room sees the truth.

``judge(guess, truth)`` gives a ``Finding``; ``over_seeds`` makes one of several, with an interval over repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from coterie.attacks.acquisition import Obtained
from coterie.attacks.base import Attributions, Suspicions
from coterie.errors import require

CONFIDENCE = 0.95


@dataclass(frozen=True)
class YesNo:
    """The answers to the questions of ``Suspicions``. ``strata`` names a group for each, such as its cluster."""

    answers: Mapping[Hashable, bool]
    strata: Mapping[Hashable, Hashable] | None = None


@dataclass(frozen=True)
class Labels:
    """The right labels, and how many there are to choose from."""

    labels: Mapping[Hashable, int]
    choices: int


@dataclass(frozen=True)
class ClusterCounts:
    """How many clusters there were, by round."""

    counts: Mapping[int, int]


Truth = YesNo | Labels | ClusterCounts


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


@dataclass(frozen=True)
class Finding:
    """A measured leak: score, what chance would score, how sure that is, and what the attack had to know."""

    attack: str
    measure: str
    score: float
    interval: tuple[float, float]
    chance: float
    observations: int
    knew: str = ""
    operating: OperatingPoint | None = None
    repetitions: int = 1

    @property
    def verdict(self) -> str:
        low, high = self.interval
        if low > self.chance:
            return "leaks"
        return "below chance" if high < self.chance else "not distinguishable from chance"

    def __str__(self) -> str:
        low, high = self.interval
        basis = f"{self.repetitions} seeds" if self.repetitions > 1 else f"{self.observations} observations"
        return (
            f"{self.attack}: {self.measure} {self.score:.3f} [{low:.3f}, {high:.3f}] against {self.chance:.3f} "
            f"by chance, {basis}: {self.verdict}"
            + (f"; {self.operating}" if self.operating else "")
            + (f". It had to know: {self.knew}" if self.knew else "")
        )


@singledispatch
def judge(guess: Any, truth: Any, attack: str = "attack", knew: str = "") -> Finding:
    """Score a guess by the truth; what kind of guess it is decides how."""
    raise TypeError(f"guess {type(guess).__name__} cannot be judged; register a judge for its class")


@judge.register
def _suspicions(guess: Suspicions, truth: YesNo, attack: str = "attack", knew: str = "") -> Finding:
    """The area under the ROC curve; with strata, over pairs of questions from the same one only."""
    keys = [key for key in guess.scores if key in truth.answers]
    require(len(keys) > 0, "guess", "no question", "has an answer in the truth; were the same rounds scored?")
    scores = np.array([guess.scores[key] for key in keys], float)
    answers = np.array([truth.answers[key] for key in keys], bool)
    groups = [None if truth.strata is None else truth.strata[key] for key in keys]
    area, interval = stratified_auc(scores, answers, groups)
    return Finding(attack, "AUC", area, interval, 0.5, len(keys), knew, operating_point(scores, answers))


@judge.register
def _attributions(guess: Attributions, truth: Labels, attack: str = "attack", knew: str = "") -> Finding:
    keys = [key for key in guess.labels if key in truth.labels]
    require(len(keys) > 0, "guess", "no question", "has an answer in the truth")
    right = sum(guess.labels[key] == truth.labels[key] for key in keys)
    return Finding(attack, "accuracy", right / len(keys), wilson(right, len(keys)), 1 / truth.choices, len(keys), knew)


@judge.register
def _obtained(guess: Obtained, truth: ClusterCounts, attack: str = "attack", knew: str = "") -> Finding:
    """The share of clusters whose models the adversary held in the last round; an honest client holds one."""
    last = max(guess.slots)
    got, there = len(guess.slots[last]), truth.counts[last]
    newcomers = guess.newcomers[last]
    told = f"{got} of {there} clusters obtained with {newcomers} newcomers"
    return Finding(
        attack, "share of models obtained", got / there, (math.nan, math.nan), 1 / there, 1, f"{knew}; {told}"
    )


def stratified_auc(
    scores: NDArray[np.float64], answers: NDArray[np.bool_], groups: Sequence[Hashable]
) -> tuple[float, tuple[float, float]]:
    """The mean AUC of the groups, weighted by their pairs of yes and no, with Hanley and McNeil's interval (1982)."""
    from sklearn.metrics import roc_auc_score

    total, weighted, variance = 0.0, 0.0, 0.0
    for group in dict.fromkeys(groups):
        here = np.array([other == group for other in groups])
        yes, no = int(answers[here].sum()), int((~answers[here]).sum())
        if yes and no:
            area = float(roc_auc_score(answers[here], scores[here]))
            pairs = yes * no
            total, weighted = total + pairs, weighted + pairs * area
            variance += pairs**2 * _auc_variance(area, yes, no)
    if not total:  # all answers alike: nothing to tell apart
        return math.nan, (math.nan, math.nan)
    area, deviation = weighted / total, math.sqrt(variance) / total
    reach = float(norm.ppf((1 + CONFIDENCE) / 2)) * deviation
    return area, (max(0.0, area - reach), min(1.0, area + reach))


def _auc_variance(area: float, yes: int, no: int) -> float:
    above, below = area / (2 - area), 2 * area**2 / (1 + area)
    return (area * (1 - area) + (yes - 1) * max(above - area**2, 0) + (no - 1) * max(below - area**2, 0)) / (yes * no)


def operating_point(scores: NDArray[np.float64], answers: NDArray[np.bool_]) -> OperatingPoint | None:
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


def best_threshold(scores: NDArray[np.float64], answers: NDArray[np.bool_]) -> float:
    from sklearn.metrics import roc_curve

    false_alarms, hits, thresholds = roc_curve(answers, scores)
    return float(thresholds[np.argmax(hits - false_alarms)])


def wilson(right: float, count: int) -> tuple[float, float]:
    """The Wilson interval of a share."""
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    share = right / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean over independent repetitions; a single one has none, (nan, nan)."""
    found = np.asarray(values, float)
    if len(found) < 2:
        return math.nan, math.nan
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found)))
    return float(found.mean()) - reach, float(found.mean()) + reach


def over_seeds(findings: Sequence[Finding]) -> Finding:
    """One finding for several repetitions: the mean score, with an interval over them (their own, if only one)."""
    require(len(findings) > 0, "findings", 0, "must be at least one")
    scores = [finding.score for finding in findings]
    interval = t_interval(scores) if len(scores) > 1 else findings[0].interval
    points = [finding.operating for finding in findings if finding.operating is not None]
    operating = None
    if points:
        operating = OperatingPoint(
            *(
                float(np.nanmean([getattr(point, name) for point in points]))
                for name in ("accuracy", "base_rate", "precision", "recall")
            )
        )
    return replace(
        findings[0],
        score=float(np.mean(scores)),
        interval=interval,
        observations=sum(finding.observations for finding in findings),
        operating=operating,
        repetitions=len(findings),
    )
