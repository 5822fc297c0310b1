"""Leakage against utility against cost, over the strength of a defence: which settings are worth considering."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.audit import gate, work
from coterie.audit.case import NAMES, Subject, in_words
from coterie.audit.family import Family
from coterie.audit.tried import Tried
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.findings import UNDEFENDED, Defended, Finding, Frontier, FrontierPoint, Limit, strongest
from coterie.measure.intervals import Interval
from coterie.measure.utility import HIGHER_IS_BETTER
from coterie.run.jobs import Progress


def frontier(
    subject: Subject, families: Sequence[Family], folder: Path, *, progress: Progress | None = None
) -> list[Frontier]:
    """One frontier a family that has a defence to sweep; jobs are shared with the audit's."""
    sweeps = {family.name: [(Choice(kind="none"), 0.0), *family.sweep(subject)] for family in families}
    swept = [family for family in families if len(sweeps[family.name]) > 1]
    if not swept:
        raise InvalidInput(
            f"families={[family.name for family in families]} have no defence whose strength can be swept"
        )
    wanted = [(family, choice) for family in swept for choice, _ in sweeps[family.name]]
    plan = work.Plan.of(subject, wanted, [choice for _, choice in wanted])
    shown = work.run(plan, subject, folder, progress=progress)
    strengths = {(name, choice): strength for name, sweep in sweeps.items() for choice, strength in sweep}
    return [
        of_family(
            subject,
            family,
            [(one, strengths[family.name, one.choice]) for one in shown.tried if one.family is family],
            shown.served,
        )
        for family in dict.fromkeys(one.family for one in shown.tried)
    ]


def of_family(
    subject: Subject, family: Family, settings: Sequence[tuple[Tried, float]], launched: Mapping[Choice, Defended]
) -> Frontier:
    """``launched``: what each setting serves where it can be launched; else what the family's own run serves."""
    first = settings[0][0]
    served = {one.choice: launched.get(one.choice, one.defended) for one, _ in settings}
    limits = [one for one in gate.limits_of(subject.limits) if gate.measured_by(first, served[first.choice], one)]
    swept = swept_options([tried.choice for tried, _ in settings])
    higher_is_better = HIGHER_IS_BETTER[first.defended.utility_measure]
    points = [_point(one, strength, swept, limits, served[one.choice]) for one, strength in settings]
    points = mark_dominated(points, higher_is_better)
    unmeasured = [one.name for one in gate.limits_of(subject.limits) if one not in limits]
    chosen, words = recommend(family, points, unmeasured)
    head = strongest(first.findings) or first.findings[0]
    return Frontier(
        title=f"{family.name}: leakage ({head.measure}) against {first.defended.utility_measure}",
        leakage_measure=head.measure,
        utility_measure=first.defended.utility_measure,
        chance=head.chance,
        points=[replace(point, recommended=point is chosen) for point in points],
        recommendation=words,
        family=family.name,
        higher_is_better=higher_is_better,
    )


def _point(
    tried: Tried, strength: float, swept: Sequence[str], limits: Sequence[Limit], served: Defended
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
        passes=all(check.passed for check in gate.checks(limits, [tried], [served])) if limits else None,
    )


def swept_options(choices: Sequence[Choice]) -> list[str]:
    """Those in which the settings of one defence differ."""
    own = [choice for choice in choices if choice.kind != "none"]
    names = dict.fromkeys(name for choice in own for name in choice.options)
    return [name for name in names if len({str(choice.options.get(name)) for choice in own}) > 1]


def mark_dominated(points: Sequence[FrontierPoint], higher_is_better: bool = True) -> list[FrontierPoint]:
    """A setting is dominated if another leaks no more, is no less useful, and is better in one of the two."""
    sign = 1 if higher_is_better else -1

    def beats(one: FrontierPoint, other: FrontierPoint) -> bool:
        leak = one.leakage.estimate - other.leakage.estimate
        gain = sign * (one.utility.estimate - other.utility.estimate)
        return leak <= 0 and gain >= 0 and (leak < 0 or gain > 0)

    return [replace(point, dominated=any(beats(other, point) for other in points)) for point in points]


def recommend(
    family: Family, points: Sequence[FrontierPoint], unmeasured: Sequence[str] = ()
) -> tuple[FrontierPoint | None, str]:
    """The weakest setting that passes the gate, as far as this family can tell; or a word that none does.

    ``unmeasured``: limits that it says nothing about. Without them nobody can say that no defence is needed.
    """
    name = family.name[:1].upper() + family.name[1:]
    but = f" (not measured here: {', '.join(unmeasured)}; an audit with it decides)" if unmeasured else ""
    if all(point.passes is None for point in points):
        return None, f"{name}: no limit is set; {gate.leakage_limit(family)} would give a recommendation."
    for point in sorted(points, key=lambda point: point.strength):
        if point.passes:
            if point.defence == UNDEFENDED:
                return point, f"{name}: no defence is needed to meet the limits{but}."
            return point, f"{name}: {point.setting} is the weakest setting that meets the limits{but}."
    return None, f"{name}: no setting meets the limits; a stronger defence, another one, or other limits are needed."
