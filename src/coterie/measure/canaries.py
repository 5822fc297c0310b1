"""The epsilon that canaries of one single run prove (Steinke, Nasr and Jagielski 2023).

Each of m canaries (records or clients) is put in or left out by a coin of its own. Whoever sees what the mechanism
releases says of some of them "in" or "out". Under (epsilon, delta)-DP for one unit added or removed, however the
answers are found, their number of right ones is hardly larger than that of coins that fall right with probability
e^epsilon / (1 + e^epsilon) (Theorem 5.2). So one run gives a bound with a stated confidence; the units need not be
independent of each other, and how many answers are given must be fixed beforehand.

``gaussian_estimate`` is the estimate of Andrew et al. 2023, which has no confidence: it takes both kinds of score to be
normal. It never contradicts a claim.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from coterie.attacks.base import Suspicions
from coterie.errors import require
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.intervals import CONFIDENCE, Floats

SHARE = 0.2
"""Of the canaries, about so many are answered: the surest. More answers of which more are wrong prove less."""

MOST = 50.0  # no run of fewer than e^50 canaries proves more


@dataclass(frozen=True)
class Tally:
    """So many canaries, of which so many were answered, so many of them rightly."""

    canaries: int
    answered: int
    right: int

    def __post_init__(self) -> None:
        require(
            0 <= self.right <= self.answered <= self.canaries,
            "right, answered, canaries",
            (self.right, self.answered, self.canaries),
            "must be in rising order",
        )

    def __add__(self, other: Tally) -> Tally:
        """Of several runs: their canaries are canaries of one, larger mechanism that costs no more."""
        return Tally(self.canaries + other.canaries, self.answered + other.answered, self.right + other.right)


@dataclass(frozen=True)
class CanaryBound(EpsilonBound):
    """A bound from the canaries of one run, or of several seeds pooled."""

    tally: Tally = Tally(0, 0, 0)

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon:.3g} at delta={self.delta:.0e} with {self.confidence:.0%} confidence "
            f"({self.method}: {self.tally.right} of {self.tally.answered} answers about {self.tally.canaries} canaries "
            f"are right; had all been, it would have shown {self.power:.3g})"
        )


def canary_bound(tally: Tally, delta: float, method: str, confidence: float = CONFIDENCE) -> CanaryBound:
    """Epsilon is at least this at delta; and the most that as many answers could have shown."""
    require(0 <= delta < 1, "delta", delta, "must lie in [0, 1)")
    epsilon = _least(tally, delta, 1 - confidence)
    power = _least(Tally(tally.canaries, tally.answered, tally.answered), delta, 1 - confidence)
    return CanaryBound(epsilon, delta, confidence, method, math.nan, math.nan, tally.canaries, power=power, tally=tally)


def p_value(tally: Tally, epsilon: float, delta: float) -> float:
    """The most likely that so many right answers, or more, are under (epsilon, delta)-DP: beta + 2 m delta alpha.

    beta is P[X >= v] and alpha the largest over i of P[v > X >= v - i] / i, for X of r coins that fall right with
    probability e^epsilon / (1 + e^epsilon).
    """
    right, answered = tally.right, tally.answered
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, answered, chance))
    if right == 0 or delta == 0:
        return min(1.0, beta)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), answered, chance))  # P[v > X >= v - i], i = 1, 2, ...
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, beta + 2 * tally.canaries * delta * alpha)


def _least(tally: Tally, delta: float, error: float) -> float:
    """The epsilon up to which the answers are too good to be true; 0 if none is contradicted."""
    if tally.answered == 0 or p_value(tally, 0.0, delta) >= error:
        return 0.0
    if p_value(tally, MOST, delta) < error:
        return MOST
    return float(brentq(lambda epsilon: p_value(tally, epsilon, delta) - error, 0.0, MOST, xtol=1e-6)) - 1e-6


def tally(guess: Suspicions, included: Mapping[Hashable, bool], share: float = SHARE) -> Tally:
    """Of a share of the canaries: half of it, those that look most like being in, and as many that look least so."""
    require(0 < share <= 1, "share", share, "must lie in (0, 1]")
    known = [key for key in included if key in guess.scores]
    require(len(known) > 0, "guess", "no canary", "has an answer in the truth")
    order = sorted(known, key=lambda key: guess.scores[key])  # canaries left unanswered count as canaries all the same
    half = max(1, round(share * len(included) / 2))
    half = min(half, len(order) // 2)
    right = sum(not included[key] for key in order[:half]) + sum(included[key] for key in order[len(order) - half :])
    return Tally(len(included), 2 * half, right)


def gaussian_estimate(inside: Floats | Sequence[float], outside: Floats | Sequence[float], delta: float) -> float:
    """Andrew et al. 2023, Section 4: the epsilon at delta between two normal laws with these means and variances.

    Theirs takes the law outside to be N(0, 1/d), which holds for directions on a sphere; ours is measured. An estimate:
    it can lie on either side of the truth.
    """
    one, other = (np.asarray(side, dtype=np.float64) for side in (inside, outside))
    require(min(len(one), len(other)) >= 2, "canaries", (len(one), len(other)), "must be at least 2 on either side")
    first, second = ((float(side.mean()), max(float(side.std(ddof=1)), 1e-300)) for side in (one, other))

    def excess(epsilon: float) -> float:
        return max(_delta(first, second, epsilon), _delta(second, first, epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    return MOST if excess(MOST) > 0 else float(brentq(excess, 0.0, MOST, xtol=1e-9))


def _delta(first: tuple[float, float], second: tuple[float, float], epsilon: float) -> float:
    """sup over sets of P1 - e^epsilon P2 for two normal laws: over where the log ratio, a parabola, exceeds epsilon."""
    (m1, s1), (m2, s2) = first, second
    a = 1 / (2 * s2**2) - 1 / (2 * s1**2)
    b = m1 / s1**2 - m2 / s2**2
    c = m2**2 / (2 * s2**2) - m1**2 / (2 * s1**2) + math.log(s2 / s1) - epsilon
    if abs(a) < 1e-12 * (1 / s1**2 + 1 / s2**2):
        if b == 0:
            return 0.0
        cut = -c / b
        tails = [norm.sf((cut - m) / s) if b > 0 else norm.cdf((cut - m) / s) for m, s in (first, second)]
    else:
        root = b**2 - 4 * a * c
        if root <= 0:
            tails = [1.0, 1.0] if a > 0 else [0.0, 0.0]
        else:
            low, high = sorted([(-b - math.sqrt(root)) / (2 * a), (-b + math.sqrt(root)) / (2 * a)])
            between = [norm.cdf((high - m) / s) - norm.cdf((low - m) / s) for m, s in (first, second)]
            tails = [1 - one for one in between] if a > 0 else between
    return float(max(0.0, tails[0] - math.exp(epsilon) * tails[1]))
