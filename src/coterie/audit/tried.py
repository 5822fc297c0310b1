"""One family under one defence, over all seeds: what the gate, the frontier and the report look at."""

from __future__ import annotations

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
from coterie.measure.intervals import Interval, Sample, pooled


@dataclass(frozen=True)
class Tried:
    family: Family
    choice: Choice
    evidence: Sequence[Evidence]  # one a seed
    stress: bool = False  # of something else than the configured federation
    repeated: frozenset[str] = frozenset()  # units that are, or would be, the same in every seed: "clients"

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
        found = [replace(over_seeds(same, same[0].unit in self.repeated), **named) for same in attacks]  # type: ignore[arg-type]
        return [replace(one, control_runs=_control_runs(one, found)) for one in found]

    @cached_property
    def defended(self) -> Defended:
        return defended(self.family.name, self.defence, self.evidence, repeated="clients" in self.repeated)


def _control_runs(attack: Finding, found: Sequence[Finding]) -> Sequence[Sample]:
    """Those of its control: by the same adversary, and of this very attack if there is one, else of the strongest."""
    if attack.control:
        return ()
    controls = [one for one in found if one.control and one.measure == attack.measure and one.interval.is_known]
    beside = [one for one in controls if one.adversary == attack.adversary] or controls
    named = [one for one in beside if one.control_of == attack.attack]
    named = named or [one for one in beside if not one.control_of] or beside
    strongest = max(named, key=lambda one: one.score, default=None)
    return () if strongest is None else strongest.runs


def _first_of(evidence: Sequence[Evidence]) -> str:
    """Who uses which model, of one run: models of different seeds have nothing to do with each other."""
    words = evidence[0].clusters
    return f"in the first of {len(evidence)} seeds, {words}" if words and len(evidence) > 1 else words


def defended(
    family: str,
    defence: str,
    evidence: Sequence[Evidence],
    undefended: Sequence[Evidence] = (),
    repeated: bool = False,
) -> Defended:
    """What was served, promised and spent, over all seeds: of a promise and of what was spent, the worst.

    ``undefended`` has what clients would have without the federation, seed by seed; ``repeated``: clients are the same
    in every seed, and count once.
    """

    def over(samples: Sequence[Sample]) -> Interval:
        return pooled([one.shared(len(samples)) for one in samples] if repeated else samples)

    measure = evidence[0].utility_measure
    pairs = list(zip(evidence, undefended, strict=True)) if undefended else []
    names = list(undefended[0].without) if undefended else []
    return Defended(
        family=family,
        defence=defence,
        utility_measure=measure,
        utility=over([one.utility for one in evidence]),
        seconds=float(np.mean([one.seconds for one in evidence])),
        upload_bytes=float(np.mean([one.upload_bytes for one in evidence])),
        memory_bytes=float(max(one.memory_bytes for one in evidence)),
        promise=worst_promise([one.promise for one in evidence if one.promise is not None]),
        spent=max((one.spent for one in evidence if one.spent is not None), default=None),
        baselines={name: over([level(measure, bare.without[name]) for bare in undefended]) for name in names},
        gains={name: over([gain(measure, one.by_client, bare.without[name]) for one, bare in pairs]) for name in names},
        clusters=_first_of(evidence),
        units=sum(one.utility.units for one in evidence),
        seeds=len(evidence),
        repeated=repeated,
    )
