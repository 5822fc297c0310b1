"""The numerics audit beside a promise: a proof is about real numbers, and what runs is a program."""

from __future__ import annotations

from dataclasses import replace

from coterie.flow.guard import Defence
from coterie.measure.claims import Outcome, Promise, judge_guarantee
from coterie.measure.numerics.audit import NumericsAudit
from coterie.measure.numerics.ours import audit_defence
from coterie.rng import Rng


def numerics_of(promise: Promise | None, defence: Defence, rng: Rng) -> NumericsAudit | None:
    """What is found of the program that keeps a promise; None where nothing is proven, or no noise is added."""
    if promise is None or not promise.guarantee.proven:
        return None
    return audit_defence(defence, rng.child("numerics"), promise.guarantee.delta)


def beside_numerics(promise: Promise | None, found: NumericsAudit | None) -> Promise | None:
    """The promise with what was found; broken numerics break it."""
    if promise is None or found is None:
        return promise
    judged = judge_guarantee(promise.guarantee, found.bounds) if found.broken else promise
    worse = judged if judged.outcome is Outcome.VIOLATED else promise
    return replace(worse, evidence=(*worse.evidence, *(f"numerics: {sentence}" for sentence in found.sentences)))
