"""The numerics audit beside a promise: a proof is about real numbers, and what runs is a program."""

from __future__ import annotations

from dataclasses import replace

from coterie.flow.guard import Defence
from coterie.measure.claims import Outcome, Promise, judge_guarantee
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.numerics.audit import NumericsAudit
from coterie.measure.numerics.ours import audit_defence
from coterie.rng import Rng

ONE_RELEASE = "a single release breaks what the proof says of it"
ERROR = 0.1 * (1 - CONFIDENCE)
"""Of all seeds together, a tenth of what attacks may err: an honest claim is refuted in at most 5.5 % of audits."""


def numerics_of(promise: Promise | None, defence: Defence, rng: Rng, seed: int = 0) -> NumericsAudit | None:
    """What is found of the program that keeps a promise; None where nothing is proven, or no noise is added.

    ``seed``: which of an audit's it is, from 0. Each has half of what the one before it may err, so that all of them
    together err no more often than is stated, however many there are.
    """
    if promise is None or not promise.guarantee.proven:
        return None
    confidence = 1 - ERROR / 2 ** (1 + seed)
    said = promise.guarantee
    return audit_defence(defence, rng.child("numerics"), said.delta, confidence=confidence, level=said.level)


def beside_numerics(promise: Promise | None, found: NumericsAudit | None) -> Promise | None:
    """The promise with what was found; broken numerics break it.

    One release is looked at, and the promise is of all: what breaks the claim of one may lie below that of many, and
    yet the proof, which goes from each release to all of them, is of another program.
    """
    if promise is None or found is None:
        return promise
    said = tuple(f"numerics: {sentence}" for sentence in found.sentences)
    if not found.broken:
        return replace(promise, evidence=(*promise.evidence, *said))
    judged = judge_guarantee(promise.guarantee, found.bounds)
    worse = max(promise, judged, key=lambda one: (one.outcome is Outcome.VIOLATED, one.lower_bound or 0.0))
    grounds = worse.evidence if worse.outcome is Outcome.VIOLATED else (ONE_RELEASE,)
    return replace(worse, outcome=Outcome.VIOLATED, evidence=(*grounds, *said))
