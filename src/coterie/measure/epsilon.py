"""The epsilon that an auditor can prove from an attack, and the curves that say how well the attack did.

An attack scores independent trials, some with the audited unit inside and some without. The claim's trade-off curve
(``measure.curves``) bounds the error rates of every test on them, so exact confidence limits on both rates give a
lower bound on epsilon. The threshold, and whether the test looks for trials inside or outside, are chosen on one half
of the trials and judged on the other, so that choosing costs no confidence.

False alarms: the bound exceeds the epsilon of a correct mechanism with probability at most 1 - confidence. The two
limits take half of that error each, and for a large epsilon only one of them matters: in practice it happens in half as
many audits, and where both limits matter in far fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm, rankdata

from coterie.errors import InvalidInput, require
from coterie.measure.curves import ANY_MECHANISM, Curve
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
class Decisions:
    """What a test said where it was judged: so many times "inside", rightly (hits) and wrongly (alarms).

    Of a test that looks for trials without the unit, ``inside`` are those. Which side it looks for must be chosen on
    other trials; where nobody chose, ``either`` reading counts, and both rest on the same two limits.
    """

    hits: int
    inside: int
    alarms: int
    outside: int
    either: bool = False

    def __post_init__(self) -> None:
        proportion(self.hits, self.inside), proportion(self.alarms, self.outside)  # checks the counts

    def __add__(self, other: Decisions) -> Decisions:
        return Decisions(
            self.hits + other.hits,
            self.inside + other.inside,
            self.alarms + other.alarms,
            self.outside + other.outside,
            self.either or other.either,
        )

    @property
    def mirrored(self) -> Decisions:
        """The same test, looking for the other side."""
        correct, missed = self.outside - self.alarms, self.inside - self.hits
        return Decisions(correct, self.outside, missed, self.inside, self.either)

    @property
    def perfect(self) -> Decisions:
        return Decisions(self.inside, self.inside, 0, self.outside, self.either)


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
    power: float | None = None  # what a perfect attack would have shown in as many trials
    decisions: Decisions | None = None
    curve: Curve = ANY_MECHANISM

    def __str__(self) -> str:
        rates = f"FPR <= {self.fpr_at_most:.3g}, TPR >= {self.tpr_at_least:.3g}, {self.trials} trials"
        most = "" if self.power is None else f"; a perfect attack would have shown {self.power:.3g}"
        return (
            f"epsilon >= {self.epsilon:.3g} at delta={self.delta:.0e} with {self.confidence:.0%} confidence "
            f"({self.method}: {rates}{most})"
        )


def epsilon_lower_bound(
    scores: Scores, delta: float, rng: Rng, confidence: float = 0.95, curve: Curve = ANY_MECHANISM
) -> EpsilonBound:
    """What the scores show, under the claim's own curve (``curve_of(claim)``) or as for any mechanism.

    A bound under a curve contradicts a claim of that curve and no other.
    """
    _require_audit(delta, confidence)
    choose, judge = scores.halves(rng)
    decided = _best_test(choose, curve, delta, confidence).decide(judge)
    trials = len(scores.inside) + len(scores.outside)
    return _bound(decided, delta, confidence, curve, curve.name, trials)


def epsilon_from_decisions(
    hits: int,
    inside: int,
    alarms: int,
    outside: int,
    delta: float,
    confidence: float = 0.95,
    curve: Curve = ANY_MECHANISM,
) -> EpsilonBound:
    """For an attack that says yes or no: ``hits`` of ``inside`` trials and ``alarms`` of ``outside`` were "yes"."""
    _require_audit(delta, confidence)
    decided = Decisions(hits, inside, alarms, outside, either=True)
    return _bound(decided, delta, confidence, curve, "yes or no", inside + outside)


def epsilon_power(
    inside: int, outside: int, delta: float, confidence: float = 0.95, curve: Curve = ANY_MECHANISM
) -> float:
    """The most that an audit of so many trials could show: its bound if every judged trial were decided rightly.

    Half of the trials choose the threshold. An audit whose power is below the claim cannot contradict it.
    """
    _require_audit(delta, confidence)
    require(min(inside, outside) >= 2, "trials", min(inside, outside), "must be at least 2 inside and outside")
    inside, outside = inside - inside // 2, outside - outside // 2
    return _shown(Decisions(inside, inside, 0, outside), delta, confidence, curve)


def combined(bounds: Sequence[EpsilonBound], confidence: float = 0.95) -> EpsilonBound:
    """One bound from several runs of one audit, such as its seeds. The largest of them would be no bound at all.

    The judged trials are pooled, each run at the threshold that its own other half chose. Curves are convex, so the
    mean rates obey whatever each run's rates obey; and the limits hold for a mean of unequal rates as for equal ones
    (Hoeffding 1956; but for a hundredth of the error where a count is one off its end).
    """
    require(len(bounds) > 0, "bounds", 0, "must be at least one")
    first = bounds[0]
    for bound in bounds:
        require(
            (bound.delta, bound.curve) == (first.delta, first.curve),
            "bound",
            (bound.delta, bound.curve),
            f"must be under the same delta and curve as the others, {(first.delta, first.curve)}",
        )
    known = [bound.decisions for bound in bounds if bound.decisions is not None]
    require(len(known) == len(bounds), "decisions", None, "must be kept with every bound; use largest_of(bounds)")
    decided = sum(known[1:], start=known[0])
    return _bound(decided, first.delta, confidence, first.curve, first.method, sum(bound.trials for bound in bounds))


def largest_of(bounds: Sequence[EpsilonBound]) -> EpsilonBound:
    """The largest of several different tests' bounds, with the confidence that all of them hold together.

    Ask for ``shared(confidence, tests)`` in each.
    """
    require(len(bounds) > 0, "bounds", 0, "must be at least one")
    worst = max(bounds, key=lambda bound: bound.epsilon)
    confidence = max(0.0, 1 - sum(1 - bound.confidence for bound in bounds))
    return replace(worst, confidence=confidence)


def shared(confidence: float, tests: int) -> float:
    """The confidence that each of several tests needs for all together to have this one (Bonferroni)."""
    require(tests >= 1, "tests", tests, "must be at least 1")
    return 1 - (1 - confidence) / tests


def _require_audit(delta: float, confidence: float) -> None:
    require(0 <= delta < 1, "delta", delta, "must lie in [0, 1)")
    require(0 < confidence < 1, "confidence", confidence, "must lie in (0, 1); 0.95 is usual")


@dataclass(frozen=True)
class _Test:
    """Says "inside" from this score on; or, mirrored, "outside" below it."""

    threshold: float
    mirrored: bool

    def decide(self, scores: Scores) -> Decisions:
        hits, alarms = (int((side >= self.threshold).sum()) for side in (scores.inside, scores.outside))
        decided = Decisions(hits, len(scores.inside), alarms, len(scores.outside))
        return decided.mirrored if self.mirrored else decided


def _best_test(scores: Scores, curve: Curve, delta: float, confidence: float) -> _Test:
    pooled = np.unique(np.concatenate([scores.inside, scores.outside]))
    if len(pooled) > CANDIDATES:
        pooled = pooled[np.linspace(0, len(pooled) - 1, CANDIDATES).astype(int)]
    hits, alarms = _count_from(scores.inside, pooled), _count_from(scores.outside, pooled)
    # The luckiest of many thresholds is not the best one: stricter limits than the judge's tell them apart.
    error = (1 - confidence) / 2 / 25
    fpr, tpr = upper_limit(alarms, len(scores.outside), error), lower_limit(hits, len(scores.inside), error)
    strengths = np.stack([curve.strength(fpr, tpr, delta), curve.strength(1 - tpr, 1 - fpr, delta)])
    mirrored, at = np.unravel_index(int(strengths.argmax()), strengths.shape)
    return _Test(float(pooled[at]), bool(mirrored))


def _limits(decided: Decisions, confidence: float) -> tuple[float, float]:
    """The most that FPR can be, and the least that TPR can be: half of the error for each."""
    error = (1 - confidence) / 2
    fpr = upper_limit(decided.alarms, decided.outside, error)
    return float(fpr), float(lower_limit(decided.hits, decided.inside, error))


def _shown(decided: Decisions, delta: float, confidence: float, curve: Curve) -> float:
    fpr, tpr = map(np.array, _limits(decided, confidence))
    strength = float(curve.strength(fpr, tpr, delta))
    if decided.either:
        strength = max(strength, float(curve.strength(1 - tpr, 1 - fpr, delta)))
    return curve.epsilon(strength, delta)


def _bound(decided: Decisions, delta: float, confidence: float, curve: Curve, method: str, trials: int) -> EpsilonBound:
    epsilon, power = (_shown(one, delta, confidence, curve) for one in (decided, decided.perfect))
    fpr, tpr = _limits(decided, confidence)
    return EpsilonBound(epsilon, delta, confidence, method, fpr, tpr, trials, power, decided, curve)
