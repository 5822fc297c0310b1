"""Leakage against utility against cost, over the strength of a defence: which settings are worth considering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.audit import work
from coterie.audit.case import NAMES, Subject, in_words, label
from coterie.audit.engine import capital, score_of, utility_of
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.findings import Frontier, FrontierPoint
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
    plan = [(family, choice) for family in swept for choice, _ in sweeps[family.name]]
    shown = work.run(plan, subject, folder, progress=progress)
    strengths = {(name, choice): strength for name, sweep in sweeps.items() for choice, strength in sweep}
    return [
        of_family(
            subject,
            family,
            [
                (choice, strengths[family.name, choice], evidence)
                for one, choice, evidence in shown.found
                if one is family
            ],
        )
        for family in dict.fromkeys(family for family, _, _ in shown.found)
    ]


def of_family(
    subject: Subject, family: Family, settings: Sequence[tuple[Choice, float, Sequence[Evidence]]]
) -> Frontier:
    swept = swept_options([choice for choice, _, _ in settings])
    heads = [[family.headline(one.scored) for one in evidence] for _, _, evidence in settings]
    points = [
        FrontierPoint(
            defence=NAMES.get(choice.kind, choice.kind),
            strength=strength,
            leakage=score_of(found),
            utility=utility_of(evidence),
            seconds=float(np.mean([one.seconds for one in evidence])),
            setting=label(choice),
            note=in_words({name: choice.options[name] for name in swept if name in choice.options}),
        )
        for (choice, strength, evidence), found in zip(settings, heads)
    ]
    first = settings[0][2][0]
    higher_is_better = first.utility_measure == "accuracy"
    points = mark_dominated(points, higher_is_better)
    chosen, words = recommend(subject, family, points, higher_is_better)
    return Frontier(
        title=f"{family.name}: leakage ({heads[0][0].measure}) against {first.utility_measure}",
        leakage_measure=heads[0][0].measure,
        utility_measure=first.utility_measure,
        chance=heads[0][0].chance,
        points=[replace(point, recommended=point is chosen) for point in points],
        recommendation=words,
        family=family.name,
        higher_is_better=higher_is_better,
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
        leak = one.leakage.value - other.leakage.value
        gain = sign * (one.utility.value - other.utility.value)
        return leak <= 0 and gain >= 0 and (leak < 0 or gain > 0)

    return [replace(point, dominated=any(beats(other, point) for other in points)) for point in points]


def recommend(
    subject: Subject, family: Family, points: Sequence[FrontierPoint], higher_is_better: bool = True
) -> tuple[FrontierPoint | None, str]:
    """The weakest setting that meets the user's limits, or a word that none does."""
    most_leak = subject.limits.get(f"max_{family.limit}")
    least_use = subject.limits.get("min_accuracy") if higher_is_better else None
    if most_leak is None and least_use is None:
        return None, f"{capital(family.name)}: no limit is set; max_{family.limit} would give a recommendation."
    for point in sorted(points, key=lambda point: point.strength):
        leaks = most_leak is not None and point.leakage.value > most_leak
        useless = least_use is not None and point.utility.value < least_use
        if not leaks and not useless:
            if point.defence == "none":
                return point, f"{capital(family.name)}: no defence is needed to meet the limits."
            return point, f"{capital(family.name)}: {point.setting} is the weakest setting that meets the limits."
    needed = "a stronger defence, another one, or other limits are needed"
    return None, f"{capital(family.name)}: no setting meets the limits; {needed}."
