"""The epsilon that an auditor can prove from an attack, and the curves that say how well the attack did.

An attack scores independent trials, some with the audited unit inside and some without. (epsilon, delta)-DP bounds
every test on them by TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta (Kairouz, Oh and
Viswanath 2015). Exact confidence limits on both rates turn this into a lower bound on epsilon. The threshold is
chosen on one half of the trials and judged on the other, so that choosing it costs no confidence.

False alarms: the bound exceeds the epsilon of a correct mechanism with probability at most 1 - confidence. The two
limits take half of that error each and would both have to fail, so in practice it happens in under 1 % of audits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting
import numpy as np
from scipy.stats import norm, rankdata

from coterie.errors import InvalidInput, require
from coterie.measure.intervals import Floats, Interval, lower_limit, proportion, upper_limit
from coterie.rng import Rng

CANDIDATES = 400
"""Thresholds tried on the first half."""


@dataclass(frozen=True)
class Scores:
    """What an attack said in independent trials; higher means "inside"."""

    inside: Floats
    outside: Floats

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            require(values.ndim == 1 and len(values) > 0, f"{name} scores", values.shape, "must be a non-empty vector")
            if not np.isfinite(values).all():
                at = int(np.flatnonzero(~np.isfinite(values))[0])
                raise InvalidInput(f"{name} scores[{at}]={values[at]} is not finite; clip infinite likelihood ratios")
            object.__setattr__(self, name, values)

    def halves(self, rng: Rng) -> tuple[Scores, Scores]:
        parts = []
        for name, values in (("inside", self.inside), ("outside", self.outside)):
            require(
                len(values) >= 2, f"{name} scores", len(values), "must be at least 2: half of them choose a threshold"
            )
            order = rng.child("threshold split", name).numpy().permutation(len(values))
            parts.append((values[order[: len(values) // 2]], values[order[len(values) // 2 :]]))
        (inside_a, inside_b), (outside_a, outside_b) = parts
        return Scores(inside_a, outside_a), Scores(inside_b, outside_b)


@dataclass(frozen=True)
class Roc:
    """False and true positive rates as the threshold falls, from (0, 0) to (1, 1)."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats  # a score above or equal is called "inside"


def roc(scores: Scores) -> Roc:
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([scores.inside, scores.outside]))[::-1]])
    return Roc(_share_from(scores.outside, thresholds), _share_from(scores.inside, thresholds), thresholds)


def _share_from(values: Floats, thresholds: Floats) -> Floats:
    return _count_from(values, thresholds) / len(values)


def _count_from(values: Floats, thresholds: Floats) -> Floats:
    """How many values are at or above each threshold."""
    return (len(values) - np.searchsorted(np.sort(values), thresholds, side="left")).astype(np.float64)


def auc(scores: Scores, confidence: float = 0.95) -> Interval:
    """The probability that an inside score beats an outside one, with DeLong's interval (1988)."""
    m, n = len(scores.inside), len(scores.outside)
    ranks = rankdata(np.concatenate([scores.inside, scores.outside]))
    beats_outside = (ranks[:m] - rankdata(scores.inside)) / n  # for each inside score
    beaten_by_inside = 1 - (ranks[m:] - rankdata(scores.outside)) / m  # for each outside score
    area = float(beats_outside.mean())
    if m < 2 or n < 2:
        return Interval(area, 0.0, 1.0, confidence)
    deviation = math.sqrt(beats_outside.var(ddof=1) / m + beaten_by_inside.var(ddof=1) / n)
    if deviation == 0:  # perfectly apart: DeLong says nothing, so take the trials of the smaller side as pairs
        exact = proportion(round(area * min(m, n)), min(m, n), confidence)
        return Interval(area, min(area, exact.low), max(area, exact.high), confidence)
    reach = float(norm.ppf(0.5 + confidence / 2)) * deviation
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach), confidence)


@dataclass(frozen=True)
class LowFpr:
    """The true positive rate at the largest observed false positive rate that is not above the one asked for."""

    tpr: Interval
    fpr: Interval
    asked: float

    @property
    def is_resolved(self) -> bool:
        """Whether there are enough outside trials to see so small a rate at all."""
        return self.fpr.estimate > 0


def tpr_at(scores: Scores, fpr: float, confidence: float = 0.95) -> LowFpr:
    require(0 < fpr < 1, "fpr", fpr, "must lie in (0, 1); 0.01 and 0.001 are usual")
    curve = roc(scores)
    at = int(np.flatnonzero(curve.fpr <= fpr)[-1])
    m, n = len(scores.inside), len(scores.outside)
    hits, alarms = round(float(curve.tpr[at]) * m), round(float(curve.fpr[at]) * n)
    return LowFpr(proportion(hits, m, confidence), proportion(alarms, n, confidence), fpr)


@dataclass(frozen=True)
class EpsilonBound:
    """Epsilon is at least this, with this confidence; and from what."""

    epsilon: float
    delta: float
    confidence: float
    method: str
    fpr_at_most: float
    tpr_at_least: float
    trials: int

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon:.3g} at delta={self.delta:.0e} with {self.confidence:.0%} confidence "
            f"({self.method}: FPR <= {self.fpr_at_most:.3g}, TPR >= {self.tpr_at_least:.3g}, {self.trials} trials)"
        )


Rates = Callable[[Floats, Floats], Floats]
"""From limits (FPR at most, TPR at least) to the least privacy loss that explains them; below zero, none is needed."""


def _require_audit(delta: float, confidence: float) -> None:
    require(0 <= delta < 1, "delta", delta, "must lie in [0, 1)")
    require(0 < confidence < 1, "confidence", confidence, "must lie in (0, 1); 0.95 is usual")


def _pure_rates(delta: float) -> Rates:
    def least(fpr: Floats, tpr: Floats) -> Floats:
        tiny = np.finfo(np.float64).tiny
        hit = np.log(np.maximum(tpr - delta, tiny) / np.maximum(fpr, tiny))
        miss = np.log(np.maximum(1 - fpr - delta, tiny) / np.maximum(1 - tpr, tiny))
        found: Floats = np.maximum(hit, miss)
        return found

    return least


def _gaussian_rates(fpr: Floats, tpr: Floats) -> Floats:
    """mu of Gaussian differential privacy: no test does better than Phi(Phi^-1(FPR) + mu) (Dong, Roth and Su 2022)."""
    with np.errstate(invalid="ignore"):
        mu = norm.ppf(tpr) - norm.ppf(fpr)
    found: Floats = np.where(np.isfinite(mu), mu, -np.inf)
    return found


def _judged(scores: Scores, rates: Rates, rng: Rng, confidence: float) -> tuple[float, float, float]:
    """The privacy loss shown on one half at the threshold that the other half likes best, and its two limits."""
    choose, judge = scores.halves(rng)
    pooled = np.unique(np.concatenate([choose.inside, choose.outside]))
    if len(pooled) > CANDIDATES:
        pooled = pooled[np.linspace(0, len(pooled) - 1, CANDIDATES).astype(int)]
    error = (1 - confidence) / 2  # half for each of the two rates
    # The luckiest of many thresholds is not the best one: stricter limits than the judge's tell them apart.
    best = pooled[int(rates(*_limits(choose, pooled, error / 25)).argmax())]
    fpr, tpr = _limits(judge, np.array([best]), error)
    return max(0.0, float(rates(fpr, tpr)[0])), float(fpr[0]), float(tpr[0])


def _limits(scores: Scores, thresholds: Floats, error: float) -> tuple[Floats, Floats]:
    fpr = upper_limit(_count_from(scores.outside, thresholds), len(scores.outside), error)
    tpr = lower_limit(_count_from(scores.inside, thresholds), len(scores.inside), error)
    return fpr, tpr


def epsilon_lower_bound(scores: Scores, delta: float, rng: Rng, confidence: float = 0.95) -> EpsilonBound:
    """For any mechanism. Needs many trials to come near a large epsilon: n trials cannot show more than about ln n."""
    _require_audit(delta, confidence)
    epsilon, fpr, tpr = _judged(scores, _pure_rates(delta), rng, confidence)
    trials = len(scores.inside) + len(scores.outside)
    return EpsilonBound(epsilon, delta, confidence, "any mechanism", fpr, tpr, trials)


def gaussian_epsilon_lower_bound(scores: Scores, delta: float, rng: Rng, confidence: float = 0.95) -> EpsilonBound:
    """For releases whose noise is Gaussian throughout, whose whole trade-off is one number, mu.

    Any threshold shows mu, also where both rates are large and quickly measured; epsilon at delta follows. It is a
    statement about the claim "this is a Gaussian mechanism of that strength"; for other noise use the general bound.
    """
    _require_audit(delta, confidence)
    require(delta > 0, "delta", delta, "must be positive: Gaussian noise has no finite epsilon at delta=0")
    mu, fpr, tpr = _judged(scores, _gaussian_rates, rng, confidence)
    epsilon = float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
    trials = len(scores.inside) + len(scores.outside)
    return EpsilonBound(epsilon, delta, confidence, "Gaussian noise", fpr, tpr, trials)


def epsilon_from_decisions(
    hits: int, inside: int, alarms: int, outside: int, delta: float, confidence: float = 0.95
) -> EpsilonBound:
    """For an attack that says yes or no: ``hits`` of ``inside`` trials and ``alarms`` of ``outside`` were "yes"."""
    _require_audit(delta, confidence)
    proportion(hits, inside), proportion(alarms, outside)  # checks the counts
    error = (1 - confidence) / 2
    fpr, tpr = upper_limit(alarms, outside, error), lower_limit(hits, inside, error)
    epsilon = max(0.0, float(_pure_rates(delta)(fpr, tpr)))
    return EpsilonBound(epsilon, delta, confidence, "yes or no", float(fpr), float(tpr), inside + outside)
