"""Trade-off curves: what a claim says about every test at once, and the least loss that explains a test's error rates.

(epsilon, delta)-DP bounds every test by TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta
(Kairouz, Oh and Viswanath 2015). A claim that follows from known noise says more: it has such a pair for every
epsilon, and together they are its trade-off curve (Dong, Roth and Su 2022). A test that is possible under *some*
mechanism with the claimed epsilon may be impossible under the claimed one, and the other way round: randomised response
that is exactly (1, 0)-DP does things that no Gaussian release of epsilon 1 allows. So the claim chooses the curve.

Every curve is convex and does not rise, so limits may stand in for rates, and means over runs for single runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import dp_accounting
import numpy as np
from scipy.stats import norm

from coterie.errors import InvalidInput, require
from coterie.measure.intervals import Floats
from coterie.privacy.accounting import PRECISION, deltas_of, gaussian_total
from coterie.privacy.guarantee import Guarantee

TINY = float(np.finfo(np.float64).tiny)
POINTS = 200
"""Epsilons at which a profile is kept. Fewer make the curve looser, never wrong."""


class Curve(ABC):
    """A family of claims, ordered by strength, of which the audited claim is one."""

    name: ClassVar[str]

    @abstractmethod
    def strength(self, fpr: Floats, tpr: Floats, delta: float) -> Floats:
        """The least member that explains (FPR at most, TPR at least) by TPR <= e^epsilon FPR + delta.

        The other inequality is this one for the mirrored test, which looks for trials without the unit.
        """

    @abstractmethod
    def epsilon(self, strength: float, delta: float) -> float:
        """What this member costs at delta; 0 if nothing needs an explanation."""


@dataclass(frozen=True)
class AnyMechanism(Curve):
    """Nothing is known but (epsilon, delta). Right for every claim; n trials show no more than about ln n."""

    name: ClassVar[str] = "any mechanism"

    def strength(self, fpr: Floats, tpr: Floats, delta: float) -> Floats:
        return log_excess(fpr, tpr, delta)

    def epsilon(self, strength: float, delta: float) -> float:
        return max(0.0, strength)


ANY_MECHANISM = AnyMechanism()


@dataclass(frozen=True)
class GaussianNoise(Curve):
    """Gaussian noise throughout: one number, mu. No test has TPR above Phi(Phi^-1(FPR) + mu).

    Any threshold shows mu, also where both rates are large and quickly measured; epsilon at delta follows.
    """

    name: ClassVar[str] = "Gaussian noise"

    def strength(self, fpr: Floats, tpr: Floats, delta: float) -> Floats:
        with np.errstate(invalid="ignore"):
            mu = norm.ppf(tpr) - norm.ppf(fpr)
        return np.where(np.isfinite(mu), mu, -np.inf)

    def epsilon(self, strength: float, delta: float) -> float:
        require(delta > 0, "delta", delta, "must be positive: Gaussian noise has no finite epsilon at delta=0")
        return float(dp_accounting.get_epsilon_gaussian(1 / strength, delta)) if strength > 0 else 0.0


@dataclass(frozen=True)
class Profile(Curve):
    """A claim known by its deltas at many epsilons, as composed privacy loss distributions give them.

    Its family is the claim beside a further release of pure cost s: (epsilon + s, delta(epsilon)) for all epsilon; a
    negative s is less than the claim. The least s that explains the rates is the largest over epsilon of
    ln((TPR - delta(epsilon)) / FPR) - epsilon. At the claimed pair alone this is the bound for any mechanism; the
    other pairs can only add to it. s > 0 exactly if the rates contradict the claim.
    """

    epsilons: tuple[float, ...] = field(repr=False)
    deltas: tuple[float, ...] = field(repr=False)

    name: ClassVar[str] = "the claim's own losses"

    def __post_init__(self) -> None:
        require(
            len(self.epsilons) == len(self.deltas) > 0,
            "profile",
            (len(self.epsilons), len(self.deltas)),
            "must have one delta for each of at least one epsilon",
        )
        require(min(self.epsilons) >= 0, "epsilons", min(self.epsilons), "must not be negative")
        require(0 <= min(self.deltas) <= max(self.deltas) <= 1, "deltas", self.deltas[0], "must lie in [0, 1]")

    @staticmethod
    def of(deltas_at: Callable[[Floats], Floats], epsilon: float, delta: float) -> Profile:
        """From upper bounds on delta, with the claimed pair itself among the points."""
        grid = np.linspace(0.0, 2 * epsilon + 1, POINTS)
        deltas = np.clip(deltas_at(grid), 0.0, 1.0)
        return Profile((epsilon, *grid.tolist()), (delta, *deltas.tolist()))

    def strength(self, fpr: Floats, tpr: Floats, delta: float) -> Floats:
        epsilons, deltas = (np.reshape(values, (-1,) + (1,) * fpr.ndim) for values in (self.epsilons, self.deltas))
        least: Floats = (log_excess(fpr, tpr, deltas) - epsilons).max(axis=0)
        return least

    def epsilon(self, strength: float, delta: float) -> float:
        dearer = [epsilon for epsilon, at in zip(self.epsilons, self.deltas, strict=True) if at >= delta]
        return max(0.0, max(dearer, default=0.0) + strength)


def log_excess(fpr: Floats, tpr: Floats, delta: float | Floats) -> Floats:
    """The least epsilon at delta that explains TPR <= e^epsilon FPR + delta; negative if none is needed."""
    found: Floats = np.log(np.maximum(tpr - delta, TINY) / np.maximum(fpr, TINY))
    return found


def curve_of(claim: Guarantee | None) -> Curve:
    """The claim's own curve, if it says which noise it follows from; otherwise the one that is right for all.

    A pure claim (delta = 0, as of randomised response or Laplace noise) is its one pair. So is one that is not proven.
    """
    if claim is None or not claim.events or not claim.proven or claim.delta == 0:
        return ANY_MECHANISM
    if gaussian_total(claim.events) is not None:
        return GaussianNoise()
    try:
        return Profile.of(
            lambda epsilons: np.array(deltas_of(claim.events, epsilons.tolist(), claim.neighbours, 10 * PRECISION)),
            claim.epsilon,
            claim.delta,
        )
    except InvalidInput:  # priced by somebody else's rule
        return ANY_MECHANISM
