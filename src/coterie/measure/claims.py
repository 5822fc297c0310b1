"""What was claimed against what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from coterie.errors import require
from coterie.measure.epsilon import EpsilonBound
from coterie.privacy.guarantee import Guarantee


class Outcome(Enum):
    """What became of a promise."""

    HOLDS = "holds"
    NOT_REFUTED = "not refuted"
    VIOLATED = "violated"


@dataclass(frozen=True)
class Promise:
    """What a defence guarantees, what was measured against it, and what became of it.

    No measurement can show that privacy holds: only a proof can, and only as long as nothing measured contradicts it.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("claim", "verdict")

    guarantee: Guarantee
    lower_bound: float | None  # on epsilon, with 95 % confidence; None: not audited
    outcome: Outcome
    evidence: Sequence[str]
    refuted_by: str = ""  # the test of the same audit that contradicts it, or what else the defence claims there

    def __post_init__(self) -> None:
        require(len(self.evidence) > 0, "evidence", self.evidence, "must give at least one ground")

    @property
    def claim(self) -> str:
        return str(self.guarantee)

    @property
    def epsilon(self) -> float:
        """What is proven; infinity where nothing is, whatever somebody states."""
        return self.guarantee.epsilon if self.guarantee.proven else math.inf

    @property
    def claims_nothing(self) -> bool:
        """No epsilon is stated, proven or not: there is nothing that measurement could refute."""
        return self.outcome is Outcome.NOT_REFUTED and math.isinf(self.guarantee.epsilon)

    @property
    def verdict(self) -> str:
        """In words: a row beside which the same defence broke what it claims does not read as if nothing had."""
        if self.outcome is Outcome.VIOLATED:
            return f"{self.outcome.value} by {self.refuted_by}" if self.refuted_by else self.outcome.value
        said = "no claim to judge" if self.claims_nothing else self.outcome.value
        return f"{said} here, but violated in {self.refuted_by}" if self.refuted_by else said

    def __str__(self) -> str:
        return f"{self.claim}: {self.verdict} ({'; '.join(self.evidence)})"


def worst_promise(promises: Sequence[Promise]) -> Promise | None:
    """Of all seeds: the largest epsilon, and the outcome, bound and evidence of the seed that says most against it.

    A claim that is violated is that seed's own: beside a larger one the bound may look as if it contradicted nothing.
    """
    if not promises:
        return None
    order = list(Outcome)
    worst = max(promises, key=lambda one: (order.index(one.outcome), one.lower_bound or 0.0))
    if worst.outcome is Outcome.VIOLATED:
        return worst
    largest = max(promises, key=lambda one: (one.epsilon, one.guarantee.epsilon))
    return replace(worst, guarantee=largest.guarantee)


def judge_guarantee(guarantee: Guarantee, bounds: Sequence[EpsilonBound]) -> Promise:
    """Whether lower bounds on epsilon contradict a guarantee.

    Without a proof, the best outcome is "not refuted"; and an implementation may not be what was proven. Several bounds
    at one confidence each raise more false alarms than one; give each its share of the error.
    """
    for bound in bounds:
        require(
            bound.delta >= guarantee.delta,
            "audit delta",
            bound.delta,
            f"must be at least the claimed delta={guarantee.delta}, or the claim is not what is tested",
        )
    guarantee = replace(guarantee, events=())  # of no use once bounds are there; a promise is plain values
    worst = max(bounds, key=lambda bound: bound.epsilon, default=None)
    largest = None if worst is None else worst.epsilon
    if worst is not None and worst.epsilon > guarantee.epsilon:
        return Promise(guarantee, largest, Outcome.VIOLATED, (f"claimed {guarantee.epsilon:.4g}, but {worst}",))
    measured = tuple(str(bound) for bound in bounds) or ("no lower bound was measured",)
    if guarantee.proven:
        return Promise(guarantee, largest, Outcome.HOLDS, ("proven by composition of its events", *measured))
    nothing = ("nothing is claimed",) if math.isinf(guarantee.epsilon) else ()
    return Promise(guarantee, largest, Outcome.NOT_REFUTED, (*nothing, *measured))
