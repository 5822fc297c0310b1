"""What was done (``DpEvent``), what it costs (the accountant), and what may be said about it (``Guarantee``).

A mechanism describes itself by events; only this file prices them. Prices are upper bounds from composed
privacy loss distributions; events that these do not cover are priced by Renyi accounting, and what neither
covers raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PrivacyAccountant, UnsupportedEventError
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import erfinv, ndtri_exp
from scipy.stats import norm

from coterie.errors import InvalidInput, require
from coterie.privacy.guarantee import Guarantee as Guarantee
from coterie.privacy.guarantee import Level as Level
from coterie.privacy.guarantee import Neighbours as Neighbours
from coterie.privacy.guarantee import Trust as Trust

PRECISION = 1e-4
"""Width of the grid of privacy losses. Rounding is upward, so a coarser grid costs epsilon, never truth."""

TOLERANCE = 1e-4
"""Of a noise scale that is looked for: the part by which it may be too large."""


PLACES = 1e-5
"""Noise multipliers below which the analytic formula runs out of places; composed ones are smaller than each."""


_RELATIONS = {
    Neighbours.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Neighbours.REPLACE: NeighboringRelation.REPLACE_ONE,
    Neighbours.ZERO_OUT: NeighboringRelation.ADD_OR_REMOVE_ONE,  # the unit's share of a sum is there, or is not
}


def guarantee_of(
    events: Sequence[DpEvent],
    delta: float,
    level: Level,
    trust: Trust,
    clip: float | None,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
    ripple: float = 0.0,
) -> Guarantee:
    """Price the events. Without a finite clipping bound, behind which the noise hides, there is no claim.

    ``ripple``: how far, in the logarithm, probabilities are from those that the events describe (``epsilon_near``).
    """
    if clip is None or not 0 < clip < math.inf:
        why = f"contributions are not clipped (clip={clip}), so no noise covers what one unit can change"
        return Guarantee.none(why, level, trust)
    epsilon = epsilon_near(events, delta, ripple, neighbours)
    if math.isinf(epsilon):
        return Guarantee.none("a release without noise, or delta=0 with Gaussian noise, costs infinity", level, trust)
    return Guarantee(epsilon, delta, level, trust, neighbours, events=tuple(events), ripple=ripple)


def epsilon_of(
    events: Sequence[DpEvent],
    delta: float,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
    precision: float = PRECISION,
) -> float:
    """The epsilon that all events together cost at this delta; infinity if any of them adds no noise."""
    require(0 <= delta < 1, "delta", delta, "must lie in [0, 1); 1e-6 is usual")
    if not events:
        return 0.0
    doubled = 2 if neighbours is Neighbours.REPLACE else 1  # one unit goes and another comes
    if delta == 0:
        return sum(_pure_epsilon(event, doubled) for event in events)
    if (total := gaussian_total(events)) is not None:
        return _gaussian_epsilon(total / doubled, delta)
    key = (tuple(events), delta, neighbours, precision)
    try:
        hash(key)
    except TypeError:  # events that hold lists of others
        return _composed.__wrapped__(*key)
    return _composed(*key)


@lru_cache(maxsize=256)
def _composed(events: tuple[DpEvent, ...], delta: float, neighbours: Neighbours, precision: float) -> float:
    """Half a second, and the same run is priced as a claim, as a ledger and for every attack on it."""
    return float(_accountant(events, neighbours, precision).get_epsilon(delta))


def _gaussian_epsilon(multiplier: float, delta: float) -> float:
    """By the analytic formula, delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu), mu = 1 / z.

    Where mu is so large that floats take one term for the other, the second is left out: epsilon is above the truth
    then, by a part below 1e-9.
    """
    if not 0 < multiplier < PLACES:
        return float(dp_accounting.get_epsilon_gaussian(multiplier, delta))
    mu = 1 / multiplier
    return mu * (mu / 2 + float(norm.isf(delta))) * (1 + 1e-14)


def epsilon_near(
    events: Sequence[DpEvent],
    delta: float,
    ripple: float,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
) -> float:
    """The epsilon of what has the probabilities of a mechanism that these events describe, up to factors e^(+-ripple).

    If the mechanism costs (epsilon, delta'), this costs (epsilon + 2 ripple, e^ripple delta'), whatever epsilon is.
    Discrete noise (``coterie.privacy.grid.NoiseGrid``) has ripples around 1e-33 an entry.
    """
    require(ripple >= 0, "ripple", ripple, "must not be negative")
    return epsilon_of(events, delta * math.exp(-ripple), neighbours) + (2 * ripple if events else 0.0)


def _pure_epsilon(event: DpEvent, doubled: int) -> float:
    """What an event costs at delta = 0, where a grid of losses with cut tails has no answer; it adds up."""
    match event:
        case dp_accounting.NoOpDpEvent():
            return 0.0
        case dp_accounting.LaplaceDpEvent(noise_multiplier=b):
            return doubled / float(b) if b > 0 else math.inf
        case dp_accounting.RandomizedResponseDpEvent(noise_parameter=p, num_buckets=k):
            return math.log1p((1 - p) * k / p) if p > 0 else math.inf
        case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
            return int(count) * _pure_epsilon(inner, doubled)
        case dp_accounting.ComposedDpEvent(events=inner):
            return sum(_pure_epsilon(part, doubled) for part in inner)
        case _:
            return math.inf


def delta_of(
    events: Sequence[DpEvent],
    epsilon: float,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
    precision: float = PRECISION,
) -> float:
    """The delta that all events together cost at this epsilon."""
    return deltas_of(events, [epsilon], neighbours, precision)[0]


def deltas_of(
    events: Sequence[DpEvent],
    epsilons: Sequence[float],
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
    precision: float = PRECISION,
) -> list[float]:
    """The delta at each of many epsilons; the events are composed once."""
    require(min(epsilons) >= 0, "epsilon", min(epsilons), "must not be negative")
    if not events:
        return [0.0] * len(epsilons)
    accountant = _accountant(events, neighbours, precision)
    if isinstance(accountant, PLDAccountant) and len(epsilons) > 1:  # it takes all at once
        found = accountant.get_delta(list(epsilons))
        return [1.0] * len(epsilons) if isinstance(found, int) else [float(delta) for delta in found]
    return [float(accountant.get_delta(epsilon)) for epsilon in epsilons]


class _PldAccountant(PLDAccountant):  # type: ignore[misc]  # the library is untyped
    """dp-accounting 0.6.0 prices a self-composed randomised response as a single one; here each one counts."""

    _pld: PrivacyLossDistribution

    def _maybe_compose(
        self, event: DpEvent, count: int, do_compose: bool
    ) -> PrivacyAccountant.CompositionErrorDetails | None:
        if not isinstance(event, dp_accounting.RandomizedResponseDpEvent) or count == 1:
            return super()._maybe_compose(event, count, do_compose)
        once = _PldAccountant(self.neighboring_relation, self._value_discretization_interval)
        problem = once._maybe_compose(event, 1, do_compose)
        if do_compose and problem is None:
            self._contains_non_dp_event |= once._contains_non_dp_event
            self._pld = self._pld.compose(once._pld.self_compose(count))
        return problem


def _accountant(events: Sequence[DpEvent], neighbours: Neighbours, precision: float) -> PrivacyAccountant:
    """Privacy loss distributions if they cover every event, else Renyi.

    Noise multipliers are relative to what one *added* unit changes. Under replacement the library's privacy
    loss distributions double that and its Renyi accountant does not, so the latter may not stand in there.
    """
    makers: list[Callable[[], PrivacyAccountant]] = [lambda: _PldAccountant(_RELATIONS[neighbours], precision)]
    if neighbours is not Neighbours.REPLACE:
        makers.append(lambda: RdpAccountant(neighboring_relation=_RELATIONS[neighbours]))
    reasons = []
    for make in makers:
        accountant = make()
        try:
            for event in events:
                accountant.compose(event)
        except UnsupportedEventError as error:
            reasons.append(str(error).splitlines()[0])
            continue
        return accountant
    raise InvalidInput(
        f"events={list(events)!r} cannot be priced when neighbours are {neighbours.value}: {reasons[0]} "
        "Describe the mechanism by Gaussian, Laplace, randomised response or Poisson-sampled events."
    )


def gaussian_total(events: Sequence[DpEvent]) -> float | None:
    """The noise multiplier of the one Gaussian release that equals these; None unless all are Gaussian.

    Gaussian releases with multipliers z_i compose to exactly one with 1/z^2 = sum of 1/z_i^2 (Dong, Roth and
    Su 2022, Corollary 2), which the analytic formula of Balle and Wang (2018) prices without a grid.
    """
    information = 0.0
    for event in events:
        match event:
            case GaussianDpEvent(noise_multiplier=0):
                return 0.0
            case GaussianDpEvent(noise_multiplier=z):
                information += z**-2
            case dp_accounting.SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=z), count=count) if z > 0:
                information += count * z**-2
            case _:
                return None
    return information**-0.5 if information > 0 else math.inf


def dpsgd_events(sample_rate: float, noise_multiplier: float, steps: int) -> list[DpEvent]:
    """DP-SGD (Abadi et al. 2016): Poisson sampling at this rate, Gaussian noise, this many steps."""
    require(0 < sample_rate <= 1, "sample_rate", sample_rate, "must lie in (0, 1]: expected batch / examples")
    require(noise_multiplier >= 0, "noise_multiplier", noise_multiplier, "must not be negative")
    require(steps >= 0, "steps", steps, "must not be negative")
    noise = GaussianDpEvent(noise_multiplier)
    step = noise if sample_rate == 1 else dp_accounting.PoissonSampledDpEvent(sample_rate, noise)
    return [dp_accounting.SelfComposedDpEvent(step, steps)] if steps else []


def pure_events(epsilon: float, times: int) -> list[DpEvent]:
    """So many answers of a mechanism that is (epsilon, 0)-DP under replacement.

    Whatever it is, randomised response over two values with the same epsilon tells at least as much (Kairouz, Oh and
    Viswanath 2015), so that is what is priced.
    """
    require(epsilon >= 0, "epsilon", epsilon, "must not be negative")
    if times == 0:
        return []
    if math.isinf(epsilon):
        return [GaussianDpEvent(0)]
    answer = dp_accounting.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)
    return [dp_accounting.SelfComposedDpEvent(answer, times)]


LEAST_DISTANCE = 1e-300  # of which the inverse is a number


def as_gaussian(epsilon: float) -> float:
    """The multiplier of a Gaussian that tells at least as much as what is (epsilon, 0)-DP under replacement.

    The latter's trade-off is two straight lines that meet at 1 / (1 + e^epsilon); that of a Gaussian through the same
    point is convex, so it runs below them (Dong, Roth and Su 2022). Thousands of answers of a tiny epsilon then compose
    without a grid, on which each would be rounded upward. Multipliers are relative to one added unit, hence the 2.
    """
    require(epsilon > 0, "epsilon", epsilon, "must be positive")
    if epsilon < 1:  # here the meeting point is close to a half, and there to 0
        distance = math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2)))
    else:
        distance = -float(ndtri_exp(-np.logaddexp(0.0, epsilon)))
    return 1 / max(distance * (1 + 1e-12), LEAST_DISTANCE)


MOST_EPSILON = 1e6  # which promises nothing; far beyond it numbers run out of places


def require_budget(epsilon: float, delta: float) -> None:
    require(epsilon > 0, "epsilon", epsilon, "must be positive; to switch privacy off, pass epsilon=math.inf")
    promises = epsilon <= MOST_EPSILON or epsilon == math.inf
    require(promises, "epsilon", epsilon, f"is beyond {MOST_EPSILON:g}; to switch privacy off, pass epsilon=math.inf")
    require(0 < delta < 1, "delta", delta, "must lie in (0, 1); 1e-6 is usual, and below 1/units is needed")


def noise_for(
    epsilon: float,
    delta: float,
    plan: Callable[[float], Sequence[DpEvent]],
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
) -> float:
    """The smallest noise scale, up to a part of ``TOLERANCE``, whose ``plan(scale)`` costs at most (epsilon, delta).

    A plan maps one scale to all the events of a run; larger scales must cost less. The answer always errs on
    the private side.
    """
    require_budget(epsilon, delta)
    if math.isinf(epsilon):
        return 0.0

    def excess(log_scale: float, grid: float) -> float:
        cost = epsilon_of(plan(math.exp(log_scale)), delta, neighbours, grid)
        return math.log(max(cost, 1e-12) / epsilon) if math.isfinite(cost) else 100.0

    rough, _ = _crossing(lambda scale: excess(scale, 100 * PRECISION), 0.0, 1.0, 0.01)  # a coarse grid is fast
    _, private = _crossing(lambda scale: excess(scale, 10 * PRECISION), rough, 0.02, TOLERANCE)
    return math.exp(private)


def _crossing(excess: Callable[[float], float], start: float, step: float, tolerance: float) -> tuple[float, float]:
    """The points just before and just after a decreasing function falls to zero."""
    high = start
    while excess(high) > 0:
        high += step
        step *= 1.5
        require(high < 30, "log noise scale", high, "is not enough for this epsilon; does the plan use its scale?")
    low = high - step
    while excess(low) <= 0:
        low, high = low - step, low
        if high < -30:
            return high, high
    root = float(brentq(excess, low, high, xtol=tolerance / 4))
    while excess(root) > 0:
        root += tolerance / 4
    return root - tolerance, root


def split_gaussian(epsilon: float, delta: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Noise multipliers, one for each named Gaussian release, that together cost exactly (epsilon, delta).

    A share is a part of the total squared signal-to-noise ratio: release i gets z_i = z / sqrt(share_i), where
    z is what the whole budget would buy for one release. Shares are divided by their sum.
    Splitting epsilon itself, as FedDP-KMeans does, and composing afterwards wastes part of the budget.
    """
    require(len(shares) > 0, "shares", dict(shares), "must name at least one release")
    for name, share in shares.items():
        require(share > 0, f"shares[{name!r}]", share, "must be positive; leave a release out to give it nothing")
    require_budget(epsilon, delta)
    whole = float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9)  # the root may lie just below
    total = sum(shares.values())
    return {name: whole * math.sqrt(total / share) for name, share in shares.items()}
