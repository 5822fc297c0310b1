"""Limits that stop a launch: what a pipeline asks of an audit.

A limit is met only by a whole interval: one from above by its upper end, one from below by its lower end. A score of
yes and no must meet it turned round, too. What nothing measured, or nobody can bound, breaks it, though others that
were measured keep to it; and no claim of privacy is an epsilon of infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.audit.family import Family, built_in
from coterie.audit.tried import Tried
from coterie.errors import InvalidInput, nearest, require
from coterie.measure import utility
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import Check, Defended, Finding, LeftOut, Limit
from coterie.measure.intervals import Interval
from coterie.measure.members import RATE_NAMES
from coterie.measure.verdicts import further_share, turned_round, undecided, yes_or_no

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


def chances(families: Sequence[Family]) -> dict[str, float]:
    """By limit, what guessing scores, where that is known before anything is run."""
    known = [(one, one.chance) for one in families if one.chance is not None]
    return {leakage_limit(one, stress): chance for one, chance in known for stress in (False, True)}


def require_sound(limits: Mapping[str, float], families: Sequence[Family]) -> None:
    """A limit of 60 on a share is a slip, and would be met by anything; one below what guessing scores, by nothing.

    So would one of 1, the most that such a score can be: a gate that cannot close looks like one that was passed.
    """
    known, between_0_and_1, guessing = known_limits(families), shares(built_in()), chances(families)
    for name, bound in limits.items():
        if name not in known:
            raise InvalidInput(f"limit {name!r} {nearest(name, known)}")
        require(not math.isnan(bound), f"limit {name}", bound, "is no number; nothing can be held against it")
        inside = name not in between_0_and_1 or 0 <= bound <= 1
        require(inside, f"limit {name}", bound, "must lie in 0..1, as the score does")
        end = _loosest(name, name in between_0_and_1)
        held = end is None or bound != end
        require(held, f"limit {name}", bound, f"is broken by nothing, for no score lies beyond {end}; tighten it")
        if (chance := guessing.get(name)) is not None and bound <= chance:
            raise InvalidInput(f"limit {name}={bound} must be above {chance:g}, which guessing scores; 0.6 leaves room")


def _loosest(name: str, is_share: bool) -> float | None:
    """The limit that nothing could break; None: there is none. An epsilon of infinity is what no proof is worth."""
    if name == COST:
        return math.inf
    return None if not is_share else 0 if name.startswith("min_") else 1


def leakage_limit(family: Family, stress: bool = False) -> str:
    """A stress test is of another federation than the one that is launched: it is limited where a limit says so."""
    return f"{STRESS if stress else ''}max_{family.limit}"


def limits_of(limits: Mapping[str, float]) -> list[Limit]:
    return [Limit(name, bound, at_least=name.startswith("min_")) for name, bound in limits.items()]


def measured_by(tried: Tried, served: Defended, limit: Limit) -> bool:
    """Whether this attack and this run can say anything about a limit at all."""
    useful = SERVED.get(limit.name) == served.utility_measure
    return useful or limit.name in (leakage_limit(tried.family, tried.stress), EPSILON)


def checks(
    limits: Sequence[Limit],
    launched: Sequence[Tried],
    served: Sequence[Defended],
    refuted: Defended | None = None,
    broke: Sequence[tuple[str, LeftOut]] = (),
) -> list[Check]:
    """Leakage against all families under what is to be launched; accuracy and epsilon against what it served.

    ``refuted``: a row of the same defence whose claim is violated, where that was measured by somebody else.
    ``broke``: what has a place under what is to be launched and broke, by the limit that is on it.
    """
    tested = {leakage_limit(one.family) for one in launched if one.stress}
    broken = _contradicted([*served, *(one.defended for one in launched), *([refuted] if refuted else [])])
    return [
        _violated(limit, broken)
        if limit.name == EPSILON and broken is not None
        else _check(
            limit, _measured(limit, launched, served), _unmeasured(limit, launched, broke), limit.name in tested
        )
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


@dataclass(frozen=True)
class Looked:
    """What a limit is held against, and what that rests on."""

    interval: Interval
    unit: str = "clients"
    units: int = 0  # of all seeds
    seeds: int = 1
    repeated: bool = False  # every seed has the same ones
    turned: bool = False  # of the opposite answers

    @staticmethod
    def at(finding: Finding) -> Iterator[Looked]:
        """A score as it is; and turned round, where it is of yes and no: who always errs knows as much."""
        found = Looked(finding.interval, finding.unit, finding.units, finding.seeds, finding.repeated)
        yield found
        if yes_or_no(finding.chance, finding.perfect) and found.interval.is_known:
            yield replace(found, interval=turned_round(found.interval), turned=True)

    def remedy(self, bound: float) -> str:
        """What would decide on this bound."""
        further = further_share(self.interval, bound, bound)
        return undecided(further, self.units, self.seeds, self.repeated).remedy(self.unit)


@dataclass(frozen=True)
class Unmeasured:
    """What a limit is on, too, and has no score."""

    unknown: Sequence[str] = ()  # what it would have been, nobody knows
    nothing: Sequence[str] = ()  # there was nothing to score

    def __str__(self) -> str:
        said = [*self.unknown, *self.nothing]
        more = len(said) - 1
        return "".join(said[:1]) + (f" (and {more} more)" if more > 0 else "")


def _not_run(limit: Limit) -> str:
    """Names of limits are alike: max_membership_auc is on clusterings alone."""
    on = [one.name for one in built_in() if leakage_limit(one) == limit.name.removeprefix(STRESS)]
    return f"what it is on ({', '.join(on)}) was not run" if on else "what it is on was not run"


def _check(limit: Limit, looked: Sequence[Looked], unmeasured: Unmeasured, stress: bool) -> Check:
    if not looked:
        nothing = f"nothing measured it: {str(unmeasured) or _not_run(limit)}"
        if stress and not str(unmeasured):
            nothing = f"nothing measured it as configured; {STRESS}{limit.name} limits what the stress test finds"
        return Check(limit, Interval.unknown(math.nan), False, nothing)
    worst = _worst(limit, looked)
    if math.isinf(worst.interval.estimate) and limit.name == EPSILON:
        return Check(limit, worst.interval, False, "there is no formal guarantee, so no epsilon that could meet it")
    passed = worst.interval.is_known and limit.excess(limit.unsafe_end(worst.interval)) <= 0
    if passed:  # then it is told as it was found
        worst = _worst(limit, [one for one in looked if not one.turned])
    undecided = "undecided: what was measured " if passed and unmeasured.unknown else ""
    reason = "; ".join(filter(None, [undecided + _reason(limit, worst, passed), str(unmeasured)]))
    return Check(limit, worst.interval, passed and not unmeasured.unknown, reason)


def _worst(limit: Limit, looked: Sequence[Looked]) -> Looked:
    return max(looked, key=lambda one: (not one.interval.is_known, limit.excess(limit.unsafe_end(one.interval))))


def _reason(limit: Limit, looked: Looked, passed: bool) -> str:
    found, turned = looked.interval, " if it is turned round" if looked.turned else ""
    said = f"the limit of {'at least' if limit.at_least else 'at most'} {limit.bound:g}{turned}"
    if not found.is_known:
        return f"undecided: nobody knows how sure a single run is; more seeds would decide on {said}"
    if passed:
        return f"meets {said}"
    safer = found.high if limit.at_least else found.low
    if limit.excess(safer) > 0:
        return f"breaks {said}"
    return f"undecided: may break {said}; {looked.remedy(limit.bound)}"


def _measured(limit: Limit, launched: Sequence[Tried], served: Sequence[Defended]) -> list[Looked]:
    if limit.name == EPSILON:
        return [Looked(_exactly(_epsilon(one))) for one in served]
    if limit.name in SERVED:
        measure = SERVED[limit.name]
        useful = [one for one in served if one.utility_measure == measure and not math.isnan(one.utility.estimate)]
        return [Looked(one.utility, "clients", one.units, one.seeds, one.repeated) for one in useful]
    scored = [one for one in _on(limit, launched) if not math.isnan(one.score)]
    return [looked for one in scored for looked in Looked.at(one)]


def _unmeasured(limit: Limit, launched: Sequence[Tried], broke: Sequence[tuple[str, LeftOut]]) -> Unmeasured:
    lost = [f"{one} broke ({one.reason})" for name, one in broke if name == limit.name]
    unscored = [one for one in _on(limit, launched) if math.isnan(one.score)]
    told = [(one.nothing_there, f"{one.named} was not scored: {one.unscored_for}") for one in unscored]
    return Unmeasured([*lost, *(said for there, said in told if not there)], [said for there, said in told if there])


def _on(limit: Limit, launched: Sequence[Tried]) -> list[Finding]:
    here = [one for one in launched if leakage_limit(one.family, one.stress) == limit.name]
    return [finding for one in here for finding in limited(one)]


def limited(tried: Tried) -> list[Finding]:
    """What a family's limit is on: its attacks, but for rates at few false alarms, which have a scale of their own."""
    return [one for one in tried.findings if not one.control and one.measure not in RATE_NAMES]


def _epsilon(served: Defended) -> float:
    """What is proven; no less than what the ledger says was spent."""
    return math.inf if served.promise is None else max(served.promise.epsilon, served.spent or 0.0)


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
