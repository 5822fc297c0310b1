"""A claim that one test of an audit refutes does not stand beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import Defended


def settled(rows: Sequence[Defended]) -> list[Defended]:
    """The same rows. Where one refutes what a defence claims, all that claim it say so, and which it was.

    Rows in which the same defence claims something else, or nothing, name it, too, and stay what they are.
    """
    refuted = [one for one in rows if one.promise and one.promise.outcome is Outcome.VIOLATED]
    refuted.sort(key=lambda one: (one.promise and one.promise.lower_bound) or 0.0)
    return [_beside(one, [other for other in refuted if other.defence == one.defence]) for one in rows]


def _beside(one: Defended, others: Sequence[Defended]) -> Defended:
    """``others``: what is refuted of the same defence, the one that says most against it last."""
    promise = one.promise
    told = [(other.family, other.promise) for other in others if other.promise]
    if promise is None or promise.outcome is Outcome.VIOLATED or not told:
        return one  # it says so itself, or there is nothing to contradict
    against = [(family, said) for family, said in told if _refutes(said, promise)]
    if not against:
        family, said = told[-1]
        beside = f"what it claims in {family} ({said.claim}) is violated"
        return replace(one, promise=replace(promise, evidence=(*promise.evidence, beside), refuted_by=family))
    family, said = against[-1]
    evidence = (f"refuted by {family}: {'; '.join(said.evidence)}", *promise.evidence)
    return replace(one, promise=replace(promise, outcome=Outcome.VIOLATED, evidence=evidence, refuted_by=family))


def _refutes(refuted: Promise, other: Promise) -> bool:
    """Whether one refuted claim takes another with it: of the same unit, neighbours and trust, and no looser.

    One program keeps all that is proven of a defence: where it breaks one proof, it keeps none, whatever their epsilons
    are. What is only stated is refuted by a bound above it. A claim about clients, or against somebody who sees less,
    may be true where one about records is not.
    """
    ours, theirs = refuted.guarantee, other.guarantee
    if (ours.level, ours.trust, ours.neighbours) != (theirs.level, theirs.trust, theirs.neighbours):
        return False
    return (ours.proven and theirs.proven) or (refuted.lower_bound or 0.0) > theirs.epsilon
