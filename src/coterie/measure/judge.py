"""What an attack's guess is worth. Only this room sees the truth.

``judge(guess, truth)`` gives a ``Finding``; ``findings.over_seeds`` makes one of several runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from coterie.attacks.acquisition import Obtained
from coterie.attacks.base import Attributions, Suspicions
from coterie.errors import require
from coterie.measure.findings import Finding, over_seeds
from coterie.measure.intervals import CONFIDENCE, Floats, Sample, pooled, student
from coterie.measure.operating import operating_point
from coterie.measure.roc import Curve, stratified

MOST_TIED = 0.5
"""Of the pairs of a yes and a no, in which an attack may say the same of both, and still have said something."""


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


@singledispatch
def judge(guess: object, truth: object, attack: str = "attack", knew: str = "") -> Finding:
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
    return judge_scores(scores, answers, groups, attack, knew, "observations")


def judge_scores(
    scores: Floats, answers: NDArray[np.bool_], groups: Sequence[Hashable], attack: str, knew: str, unit: str
) -> Finding:
    """The same for scores and answers side by side."""
    run, roc = stratified(scores, answers, groups)
    return replace(Finding.of(attack, "AUC", run, 0.5, unit, knew), roc=roc, operating=operating_point(scores, answers))


@judge.register
def _attributions(guess: Attributions, truth: Labels, attack: str = "attack", knew: str = "") -> Finding:
    """How many are right. Chance is what one answer for all scores at best, or a choice at random if that is more."""
    keys = [key for key in guess.labels if key in truth.labels]
    require(len(keys) > 0, "guess", "no question", "has an answer in the truth")
    right = sum(guess.labels[key] == truth.labels[key] for key in keys)
    most = max(Counter(truth.labels[key] for key in keys).values())
    chance = max(most / len(keys), 1 / truth.choices)
    return Finding.of(attack, "accuracy", Sample.share(right, len(keys)), chance, "clients", knew)


@judge.register
def _obtained(guess: Obtained, truth: ClusterCounts, attack: str = "attack", knew: str = "") -> Finding:
    """The share of clusters whose models the adversary held in the last round; an honest client holds one."""
    last = max(guess.slots)
    got, there = len(guess.slots[last]), truth.counts[last]
    told = f"{got} of {there} clusters obtained with {guess.newcomers[last]} newcomers"
    run = Sample.share(got, there)
    return Finding.of(attack, "share of models obtained", run, 1 / there, "clusters", f"{knew}; {told}")


def over_victims(found: Sequence[Finding]) -> Finding:
    """One finding of several runs, each against a victim of its own, which is the unit.

    Rounds of one run are no units: how the victim's rows with the property and those without it happen to differ shows
    in all of its rounds alike. A coin's areas spread twice as far from run to run as their rounds would explain.

    An attack that broke down says the same of nearly all rounds, for every victim, and all areas lie at one half: such
    agreement bounds nothing. A victim of whom it says so is no unit; where they all are, it is silent.
    """
    scored = [one for one in found if not math.isnan(one.score)]
    said = [one for one in scored if one.roc is None or one.roc.tied <= MOST_TIED]
    counted = said or scored
    scores = [one.score for one in counted]
    run = Sample.average(scores, 0.0, 1.0) if scores else Sample.unknown()
    run = run if said else replace(run, is_share=True, worth=0.0, spread=math.nan)  # silent, if it was scored at all
    curves = [one.roc for one in counted if one.roc is not None]
    roc = Curve.average(curves, [1.0] * len(curves)).thinned() if curves else None  # its area is the score
    return replace(over_seeds(found), interval=pooled([run]), runs=(run,), unit="victims", roc=roc)


# -- bare ends, for the lines of reproduced tables --------------------------------------------------------------------


def stratified_auc(
    scores: Floats, answers: NDArray[np.bool_], groups: Sequence[Hashable]
) -> tuple[float, tuple[float, float]]:
    found = pooled([stratified(scores, answers, groups)[0]])
    return found.estimate, found.ends


def wilson(right: float, count: int) -> tuple[float, float]:
    """Wilson's, of a share of units: what the recorded tables were printed with."""
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    share = right / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the mean over independent repetitions; a single one has none, (nan, nan)."""
    return student(values).ends
