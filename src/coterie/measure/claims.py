"""What was claimed against what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coterie.errors import require
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.intervals import Interval
from coterie.privacy.accounting import Guarantee


class Outcome(Enum):
    HOLDS = "holds"
    NOT_REFUTED = "not refuted"
    VIOLATED = "violated"


@dataclass(frozen=True)
class Verdict:
    """One claim, what became of it, and on what grounds."""

    claim: str
    outcome: Outcome
    evidence: tuple[str, ...]

    def __post_init__(self) -> None:
        require(len(self.evidence) > 0, "evidence", self.evidence, "must give at least one ground")

    def __str__(self) -> str:
        return f"{self.claim}: {self.outcome.value} ({'; '.join(self.evidence)})"


def judge_guarantee(guarantee: Guarantee, bounds: Sequence[EpsilonBound]) -> Verdict:
    """Whether lower bounds on epsilon contradict a guarantee.

    No measurement can show that privacy holds: only a proof can, and only as long as nothing measured contradicts it
    (an implementation may not be what was proven). Without a proof, the best outcome is "not refuted". Several bounds
    at one confidence each raise more false alarms than one; give each its share of the error.
    """
    for bound in bounds:
        require(
            bound.delta >= guarantee.delta,
            "audit delta",
            bound.delta,
            f"must be at least the claimed delta={guarantee.delta}, or the claim is not what is tested",
        )
    broken = [bound for bound in bounds if bound.epsilon > guarantee.epsilon]
    measured = tuple(str(bound) for bound in bounds) or ("no attack was run",)
    if broken:
        worst = max(broken, key=lambda bound: bound.epsilon)
        return Verdict(str(guarantee), Outcome.VIOLATED, (f"claimed {guarantee.epsilon:.4g}, but {worst}",))
    if guarantee.proven:
        return Verdict(str(guarantee), Outcome.HOLDS, ("proven by composition of its events", *measured))
    nothing = ("nothing is claimed",) if math.isinf(guarantee.epsilon) else ()
    return Verdict(str(guarantee), Outcome.NOT_REFUTED, (*nothing, *measured))


def judge_at_most(claim: str, measured: Interval, limit: float) -> Verdict:
    """A quantity is claimed to be at most this: shown, contradicted, or neither, at the interval's confidence."""
    ground = f"measured {measured} at {measured.confidence:.0%} confidence, limit {limit:.4g}"
    if measured.high <= limit:
        return Verdict(claim, Outcome.HOLDS, (ground,))
    return Verdict(claim, Outcome.VIOLATED if measured.low > limit else Outcome.NOT_REFUTED, (ground,))


def judge_at_least(claim: str, measured: Interval, limit: float) -> Verdict:
    """A quantity is claimed to be at least this."""
    mirrored = Interval(-measured.estimate, -measured.high, -measured.low, measured.confidence)
    outcome = judge_at_most(claim, mirrored, -limit).outcome
    ground = f"measured {measured} at {measured.confidence:.0%} confidence, limit {limit:.4g}"
    return Verdict(claim, outcome, (ground,))
