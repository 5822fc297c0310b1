"""Limits that stop a launch: what a pipeline asks of an audit.

A limit is met only by a whole interval: one from above by its upper end, one from below by its lower end. What nothing
measured, or nobody can bound, breaks it; and no claim of privacy is an epsilon of infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from coterie.audit.family import Family
from coterie.audit.tried import Tried
from coterie.measure.findings import Check, Defended, Limit, counted
from coterie.measure.intervals import Interval
from coterie.measure.verdicts import FAR, further_share

EPSILON, ACCURACY = "max_epsilon", "min_accuracy"


def known_limits(families: Sequence[Family]) -> list[str]:
    return [*(leakage_limit(family) for family in families), EPSILON, ACCURACY]


def leakage_limit(family: Family) -> str:
    return f"max_{family.limit}"


def limits_of(limits: Mapping[str, float]) -> list[Limit]:
    return [Limit(name, bound, at_least=name == ACCURACY) for name, bound in limits.items()]


def measured_by(family: Family, served: Defended, limit: Limit) -> bool:
    """Whether this family and this run can say anything about a limit at all."""
    useful = limit.name == ACCURACY and served.utility_measure == "accuracy"
    return useful or limit.name in (leakage_limit(family), EPSILON)


def checks(limits: Sequence[Limit], launched: Sequence[Tried], served: Sequence[Defended]) -> list[Check]:
    """Leakage against all families under what is to be launched; accuracy and epsilon against what it served."""
    seeds = launched[0].seeds if launched else 1
    return [_check(limit, _measured(limit, launched, served), seeds) for limit in limits]


def _check(limit: Limit, found: Sequence[Interval], seeds: int) -> Check:
    if not found or any(math.isnan(one.estimate) for one in found):
        nothing = "nothing measured it: the family was left out, or there was no truth to score by"
        return Check(limit, Interval.unknown(math.nan), False, nothing)
    worst = max(found, key=lambda one: (not one.is_known, limit.excess(limit.unsafe_end(one))))
    if math.isinf(worst.estimate) and limit.name == EPSILON:
        return Check(limit, worst, False, "there is no formal guarantee, so no epsilon that could meet it")
    passed = worst.is_known and limit.excess(limit.unsafe_end(worst)) <= 0
    return Check(limit, worst, passed, _reason(limit, worst, passed, seeds))


def _reason(limit: Limit, found: Interval, passed: bool, seeds: int) -> str:
    said = f"the limit of {'at least' if limit.at_least else 'at most'} {limit.bound:g}"
    if not found.is_known:
        return f"undecided: nobody knows how sure a single run is; more seeds would decide on {said}"
    if passed:
        return f"meets {said}"
    safer = found.high if limit.at_least else found.low
    if limit.excess(safer) > 0:
        return f"breaks {said}"
    further = further_share(found, limit.bound, limit.bound)
    more = (
        f"about {counted(math.ceil(further * seeds), 'more seed')}" if further <= FAR else "more than anybody can run"
    )
    return f"undecided: may break {said}; {more} would decide"


def _measured(limit: Limit, launched: Sequence[Tried], served: Sequence[Defended]) -> list[Interval]:
    if limit.name == EPSILON:
        return [_exactly(_epsilon(one)) for one in served]
    if limit.name == ACCURACY:
        return [one.utility for one in served if one.utility_measure == "accuracy"]
    here = [one for one in launched if leakage_limit(one.family) == limit.name]
    return [finding.interval for one in here for finding in one.findings if not finding.control]


def _epsilon(served: Defended) -> float:
    """What is proven; no less than what the ledger says was spent."""
    return math.inf if served.promise is None else max(served.promise.epsilon, served.spent or 0.0)


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
