"""Limits that stop a launch: what a pipeline asks of an audit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.measure.findings import Check


def known_limits(families: Sequence[Family]) -> list[str]:
    return [*(f"max_{family.limit}" for family in families), "max_epsilon", "min_accuracy"]


def checks(subject: Subject, own: Sequence[tuple[Family, Sequence[Evidence]]]) -> list[Check]:
    """Each limit against the federation as configured; a limit that nothing measured is broken, not met."""
    return [_check(name, limit, own) for name, limit in subject.limits.items()]


def _check(name: str, limit: float, own: Sequence[tuple[Family, Sequence[Evidence]]]) -> Check:
    text = f"{name} = {limit:g}"
    values = _values(name, own)
    if not values or any(math.isnan(value) for value in values):
        return Check(text, math.nan, False, "nothing measured it: the family was left out, or no defence claims it")
    if math.inf in values:
        return Check(text, math.inf, False, "there is no formal guarantee, so no epsilon that could meet it")
    worst = min(values) if name.startswith("min_") else max(values)
    passed = worst >= limit if name.startswith("min_") else worst <= limit
    side = "at least" if name.startswith("min_") else "at most"
    word = "meets" if passed else "breaks"
    return Check(text, worst, passed, f"measured {worst:.4g}, which {word} the limit of {side} {limit:g}")


def _values(name: str, own: Sequence[tuple[Family, Sequence[Evidence]]]) -> list[float]:
    if name == "max_epsilon":
        claims = [one.claim for _, evidence in own for one in evidence if one.claim is not None]
        return [float(claim.epsilon) if claim.proven else math.inf for claim in claims]
    if name == "min_accuracy":
        return [
            float(np.mean([one.utility for one in evidence]))
            for _, evidence in own
            if evidence[0].utility_measure == "accuracy"
        ]
    return [
        float(np.mean([family.headline(one.scored).score for one in evidence]))
        for family, evidence in own
        if f"max_{family.limit}" == name
    ]
