"""Leakage against utility against cost, over the strength of a defence: which settings are worth considering."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.audit import gate, work
from coterie.audit.case import NAMES, Subject, in_words, label
from coterie.audit.engine import reading
from coterie.audit.family import Family
from coterie.audit.plugins import all_families
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.tried import Tried
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome
from coterie.measure.contradicted import settled
from coterie.measure.findings import (
    UNDEFENDED,
    AuditResult,
    Defended,
    Finding,
    Frontier,
    FrontierPoint,
    LeftOut,
    Limit,
    strongest,
)
from coterie.measure.intervals import Interval
from coterie.measure.utility import HIGHER_IS_BETTER
from coterie.measure.verdicts import yes_or_no
from coterie.run.jobs import Progress


def frontier(
    subject: Subject,
    families: Sequence[Family],
    folder: Path,
    *,
    progress: Progress | None = None,
    known: Sequence[Defended] = (),
) -> list[Frontier]:
    """One frontier a family that has a defence to sweep; what broke or did not fit is handed back in it (``left_out``).

    ``families``: all of the audit's; the reference runs that they read are the audit's, too.
    ``known``: what the audit says of defences. A claim that any test refutes meets no limit on epsilon here either.
    """
    sweeps = {family.name: [(Choice(kind="none"), 0.0), *family.sweep(subject)] for family in families}
    swept = sweeping(subject, families)
    wanted = [(family, choice) for family in swept for choice, _ in sweeps[family.name]]
    plan = work.Plan.of(subject, wanted, [choice for _, choice in wanted], reading(families, subject))
    shown = work.run(plan, subject, folder, progress=progress)
    rows = settled([*shown.served.values(), *(one.defended for one in shown.tried), *known])
    served = dict(zip(shown.served, rows[: len(shown.served)], strict=True))
    broken = {one.defence: one for one in rows if one.promise and one.promise.outcome is Outcome.VIOLATED}
    found = []
    for family in swept:
        strengths = dict(sweeps[family.name])
        settings = [(one, strengths[one.choice]) for one in shown.tried if one.family is family]
        missing = _missing(family, list(strengths), shown.left_out)
        if settings:
            found.append(of_family(subject, family, settings, served, broken, missing))
        elif missing:
            found.append(_nothing(family, missing))
    return found


def sweeping(subject: Subject, families: Sequence[Family], left_out: Sequence[LeftOut] = ()) -> list[Family]:
    """Those that have a defence to sweep; it is an error if nobody has. ``left_out``: who might have had one."""
    found = [family for family in families if family.sweep(subject)]
    if not found:
        able = {one.name for one in all_families(subject.audit.attacks) if type(one).sweep is not Family.sweep}
        could = [one for one in left_out if one.family in able]
        why = "; ".join(f"{one.family}, which has one, is left out: {one.reason}" for one in could)
        raise InvalidInput(
            f"families={[family.name for family in families]} have no defence whose strength can be swept; "
            f"{f'{why}; ' if why else ''}`coterie audit` goes without"
        )
    return found


def beside(result: AuditResult, found: Sequence[Frontier]) -> AuditResult:
    """The audit with these frontiers. What broke in a sweep is as unknown as what broke in the audit, and as bad."""
    told = {(one.family, one.defence, one.failed) for one in result.left_out}
    new = dict.fromkeys(one for swept in found for one in swept.left_out)
    more = [one for one in new if (one.family, one.defence, one.failed) not in told]
    return replace(result, frontiers=found, left_out=[*result.left_out, *more])


def _missing(family: Family, swept: Sequence[Choice], left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Of this family's sweep: what was not measured, and what cannot be launched as configured."""
    names = {"" if choice == work.NONE else label(choice) for choice in swept}
    return [one for one in left_out if one.family in (family.name, AS_CONFIGURED) and one.defence in names]


def _nothing(family: Family, missing: Sequence[LeftOut]) -> Frontier:
    words = f"{_name(family)}: {NOTHING}{_unknown(missing)}"
    return Frontier(
        f"{family.name}: not measured", "leakage", "utility", math.nan, [], words, family.name, left_out=missing
    )


def of_family(
    subject: Subject,
    family: Family,
    settings: Sequence[tuple[Tried, float]],
    launched: Mapping[Choice, Defended],
    broken: Mapping[str, Defended] | None = None,
    missing: Sequence[LeftOut] = (),
) -> Frontier:
    """``launched``: what each setting serves where it can be launched; else what the family's own run serves.

    ``broken``: by defence, where its claim is refuted, in whichever family. ``missing``: settings that are no point.
    """
    first = settings[0][0]
    served = {one.choice: launched.get(one.choice, one.defended) for one, _ in settings}
    limits = [one for one in gate.limits_of(subject.limits) if gate.measured_by(first, served[first.choice], one)]
    swept = swept_options([tried.choice for tried, _ in settings])
    higher_is_better = HIGHER_IS_BETTER[first.defended.utility_measure]
    refuted = broken or {}
    points = [
        _point(one, strength, swept, limits, served[one.choice], refuted.get(one.defence)) for one, strength in settings
    ]
    head = strongest(first.findings) or first.findings[0]
    points = mark_dominated(points, higher_is_better, yes_or_no(head.chance, head.perfect))
    unmeasured = [one.name for one in gate.limits_of(subject.limits) if one not in limits]
    chosen, words = recommend(family, points, unmeasured, first.stress, missing)
    return Frontier(
        title=f"{family.name}: leakage ({head.measure}) against {first.defended.utility_measure}",
        leakage_measure=head.measure,
        utility_measure=first.defended.utility_measure,
        chance=head.chance,
        points=[replace(point, recommended=point is chosen) for point in points],
        recommendation=words,
        family=family.name,
        higher_is_better=higher_is_better,
        left_out=missing,
    )


def _point(
    tried: Tried,
    strength: float,
    swept: Sequence[str],
    limits: Sequence[Limit],
    served: Defended,
    broken: Defended | None,
) -> FrontierPoint:
    head: Finding | None = strongest(tried.findings)
    options = {name: tried.choice.options[name] for name in swept if name in tried.choice.options}
    return FrontierPoint(
        defence=NAMES.get(tried.choice.kind, tried.choice.kind),
        strength=strength,
        leakage=head.interval if head else Interval.unknown(math.nan),
        utility=tried.defended.utility,
        seconds=tried.defended.seconds,
        setting=tried.defence,
        note=in_words(options),
        passes=all(check.passed for check in gate.checks(limits, [tried], [served], broken)) if limits else None,
    )


def swept_options(choices: Sequence[Choice]) -> list[str]:
    """Those in which the settings of one defence differ."""
    own = [choice for choice in choices if choice.kind != "none"]
    names = dict.fromkeys(name for choice in own for name in choice.options)
    return [name for name in names if len({str(choice.options.get(name)) for choice in own}) > 1]


def mark_dominated(
    points: Sequence[FrontierPoint], higher_is_better: bool = True, turns: bool = False
) -> list[FrontierPoint]:
    """A setting is dominated if another leaks no more, is no less useful, and is better in one of the two.

    ``turns``: the score is of yes and no, and tells as much turned round.
    """
    sign = 1 if higher_is_better else -1

    def leaks(one: FrontierPoint) -> float:
        found = one.leakage.estimate
        return max(found, 1 - found) if turns else found

    def beats(one: FrontierPoint, other: FrontierPoint) -> bool:
        leak = leaks(one) - leaks(other)
        gain = sign * (one.utility.estimate - other.utility.estimate)
        return leak <= 0 and gain >= 0 and (leak < 0 or gain > 0)

    return [replace(point, dominated=any(beats(other, point) for other in points)) for point in points]


NOTHING = "no setting was measured, and none can be recommended."


def recommend(
    family: Family,
    points: Sequence[FrontierPoint],
    unmeasured: Sequence[str] = (),
    stress: bool = False,
    missing: Sequence[LeftOut] = (),
) -> tuple[FrontierPoint | None, str]:
    """The weakest setting that passes the gate, as far as this family can tell; or a word that none does.

    ``unmeasured``: limits that it says nothing about. Without them nobody can say that no defence is needed.
    ``stress``: it is limited as a stress test. ``missing``: settings that are no point, those that broke among them.
    """
    name, unknown = _name(family), _unknown(missing)
    but = f" (not measured here: {', '.join(unmeasured)}; an audit with it decides)" if unmeasured else ""
    if all(point.passes is None for point in points):
        limit = gate.leakage_limit(family, stress)
        return None, f"{name}: no limit is set on it; {limit} would give a recommendation.{unknown}"
    weakest = "the weakest setting that was measured and" if unknown else "the weakest setting that"
    for point in sorted(points, key=lambda point: point.strength):
        if point.passes:
            if point.defence == UNDEFENDED:
                return point, f"{name}: no defence is needed to meet the limits{but}.{unknown}"
            return point, f"{name}: {point.setting} is {weakest} meets the limits{but}.{unknown}"
    none = "no setting meets the limits; a stronger defence, another one, or other limits are needed."
    return None, f"{name}: {none}{unknown}"


def _name(family: Family) -> str:
    return family.name[:1].upper() + family.name[1:]


def _unknown(missing: Sequence[LeftOut]) -> str:
    """A sentence on the settings under which the attack broke; empty: under none."""
    names = [one.defence or "no defence" for one in missing if one.failed]
    return f" The attack broke under {', '.join(names)}: what it would have found there, nobody knows." if names else ""
