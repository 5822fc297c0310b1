"""Limits that stop a launch: what a pipeline asks of an audit.

A limit is met only by a whole interval: one from above by its upper end, one from below by its lower end. What nothing
measured, or nobody can bound, breaks it; and no claim of privacy is an epsilon of infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from coterie.audit.family import Family
from coterie.audit.tried import Tried
from coterie.measure import utility
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import Check, Defended, Finding, Limit, counted
from coterie.measure.intervals import Interval
from coterie.measure.members import RATE_NAMES
from coterie.measure.verdicts import FAR, further_share

EPSILON, ACCURACY, COST = "max_epsilon", "min_accuracy", "max_cost"
SERVED = {ACCURACY: utility.ACCURACY, COST: utility.COST}
"""Limits on how well clients are served, by the measure of utility that they limit."""

STRESS = "stress."


def known_limits(families: Sequence[Family]) -> list[str]:
    leakage = list(dict.fromkeys(leakage_limit(family) for family in families))
    return [*leakage, *(f"{STRESS}{name}" for name in leakage), EPSILON, *SERVED]


def shares(families: Sequence[Family]) -> list[str]:
    """The limits on scores between 0 and 1; of a family of one's own nobody knows the scale."""
    return [name for name in known_limits(families) if name not in (EPSILON, COST)]


def leakage_limit(family: Family, stress: bool = False) -> str:
    """A stress test is of another federation than the one that is launched: it is limited where a limit says so."""
    return f"{STRESS if stress else ''}max_{family.limit}"


def limits_of(limits: Mapping[str, float]) -> list[Limit]:
    return [Limit(name, bound, at_least=name.startswith("min_")) for name, bound in limits.items()]


def measured_by(tried: Tried, served: Defended, limit: Limit) -> bool:
    """Whether this attack and this run can say anything about a limit at all."""
    useful = SERVED.get(limit.name) == served.utility_measure
    return useful or limit.name in (leakage_limit(tried.family, tried.stress), EPSILON)


def checks(limits: Sequence[Limit], launched: Sequence[Tried], served: Sequence[Defended]) -> list[Check]:
    """Leakage against all families under what is to be launched; accuracy and epsilon against what it served."""
    seeds = launched[0].seeds if launched else 1
    tested = {leakage_limit(one.family) for one in launched if one.stress}
    broken = _contradicted([*served, *(one.defended for one in launched)])
    return [
        _violated(limit, broken)
        if limit.name == EPSILON and broken is not None
        else _check(limit, _measured(limit, launched, served), seeds, limit.name in tested)
        for limit in limits
    ]


def _contradicted(rows: Sequence[Defended]) -> Promise | None:
    """The claim of what is launched that measurement contradicts most, whichever run it was measured in."""
    promises = [one.promise for one in rows if one.promise and one.promise.outcome is Outcome.VIOLATED]
    return max(promises, key=lambda one: one.lower_bound or 0.0, default=None)


def _violated(limit: Limit, promise: Promise) -> Check:
    """Whatever is claimed: a proof whose implementation was refuted proves nothing."""
    at_least = promise.lower_bound or 0.0
    said = f"the claim of {promise.guarantee.epsilon:.4g} is violated by measurement: {'; '.join(promise.evidence)}"
    return Check(limit, Interval(math.inf, at_least, math.inf), False, said)


def _check(limit: Limit, found: Sequence[Interval], seeds: int, stress: bool) -> Check:
    if not found or any(math.isnan(one.estimate) for one in found):
        nothing = "nothing measured it: the family was left out, or there was no truth to score by"
        if stress:
            nothing = f"nothing measured it as configured; {STRESS}{limit.name} limits what the stress test finds"
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
    if limit.name in SERVED:
        return [one.utility for one in served if one.utility_measure == SERVED[limit.name]]
    here = [one for one in launched if leakage_limit(one.family, one.stress) == limit.name]
    return [finding.interval for one in here for finding in limited(one)]


def limited(tried: Tried) -> list[Finding]:
    """What a family's limit is on: its attacks, but for rates at few false alarms, which have a scale of their own."""
    return [one for one in tried.findings if not one.control and one.measure not in RATE_NAMES]


def _epsilon(served: Defended) -> float:
    """What is proven; no less than what the ledger says was spent."""
    return math.inf if served.promise is None else max(served.promise.epsilon, served.spent or 0.0)


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
