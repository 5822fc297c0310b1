"""One family under one defence, over all seeds: what the gate, the frontier and the report look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.audit.case import label
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.config.schema import Choice
from coterie.measure.baselines import gain, level
from coterie.measure.claims import worst_promise
from coterie.measure.findings import Defended, Finding, over_seeds
from coterie.measure.intervals import pooled
from coterie.measure.verdicts import Verdict


@dataclass(frozen=True)
class Tried:
    family: Family
    choice: Choice
    evidence: Sequence[Evidence]  # one a seed
    stress: bool = False  # of something else than the configured federation

    @property
    def defence(self) -> str:
        return label(self.choice)

    @property
    def seeds(self) -> int:
        return len(self.evidence)

    @cached_property
    def findings(self) -> list[Finding]:
        """One an attack, over all seeds."""
        attacks = zip(*(one.findings for one in self.evidence), strict=True)
        named = {"family": self.family.name, "defence": self.defence, "stress": self.stress}
        found = [replace(over_seeds(same), **named) for same in attacks]  # type: ignore[arg-type]
        return [replace(one, floor=_floor(one, found)) for one in found]

    @cached_property
    def defended(self) -> Defended:
        return defended(self.family.name, self.defence, self.evidence)


def _floor(attack: Finding, found: Sequence[Finding]) -> float:
    """What the same adversary's controls may score, where they find what is not there: no attack proves less."""
    if attack.control:
        return math.nan
    controls = [one for one in found if one.control and one.measure == attack.measure]
    beside = [one for one in controls if one.adversary == attack.adversary] or controls
    return max((one.interval.high for one in beside if one.verdict is Verdict.LEAKS), default=math.nan)


def defended(family: str, defence: str, evidence: Sequence[Evidence], undefended: Sequence[Evidence] = ()) -> Defended:
    """What was served, promised and spent, over all seeds: of a promise and of what was spent, the worst.

    ``undefended`` has what clients would have without the federation, seed by seed.
    """
    measure = evidence[0].utility_measure
    pairs = list(zip(evidence, undefended, strict=True)) if undefended else []
    names = list(undefended[0].without) if undefended else []
    return Defended(
        family=family,
        defence=defence,
        utility_measure=measure,
        utility=pooled([one.utility for one in evidence]),
        seconds=float(np.mean([one.seconds for one in evidence])),
        upload_bytes=float(np.mean([one.upload_bytes for one in evidence])),
        memory_bytes=float(max(one.memory_bytes for one in evidence)),
        promise=worst_promise([one.promise for one in evidence if one.promise is not None]),
        spent=max((one.spent for one in evidence if one.spent is not None), default=None),
        baselines={name: pooled([level(measure, bare.without[name]) for bare in undefended]) for name in names},
        gains={
            name: pooled([gain(measure, one.by_client, bare.without[name]) for one, bare in pairs]) for name in names
        },
        clusters=evidence[0].clusters,
    )
