"""The reference run: the federation exactly as it is configured, trained as ``coterie train`` trains it.

Families attack what their papers attack, which is often another federation. How well the launched one serves its
clients, what it costs and what it spends is read off this run.
"""

from __future__ import annotations

import math

from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.scene import DELTA, claimed
from coterie.config.schema import Choice
from coterie.data.federation import Federation
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.measure.claims import Promise
from coterie.measure.cost import peak_memory
from coterie.protocols.base import Trainer
from coterie.protocols.clusterings.base import Clusterer
from coterie.run.training import Outcome, train

AS_CONFIGURED = "the federation as configured"


def measure(subject: Subject, defence: Choice, seed: int) -> Evidence:
    """The first trainer's: what an audit is of."""
    config = subject.model_copy(update={"seed": seed, "defence": defence})
    trainer, federation = config.trainers[0], config.federation()
    protocol, guard = config.protocol(trainer), config.fitting_defence(trainer)
    once = max(1, getattr(protocol, "rounds", 1))  # measured at the end alone
    model = config.built_model(federation.examples)
    done = train(protocol, federation, model, seed=seed, defence=guard, evaluate_every=once)
    promise = promised(protocol, guard, federation)
    return Evidence(
        findings=(),
        utility_measure=done.scores.measure,
        utility=done.scores.sample(),
        seconds=done.seconds,
        upload_bytes=done.traffic.up_a_client,
        memory_bytes=peak_memory(),
        promise=promise,
        spent=spent(done, promise),
    )


def promised(protocol: AnyProtocol, defence: Defence, federation: Federation) -> Promise | None:
    """What the defence guarantees about this run; nothing is known of a protocol that does not tell its facts."""
    if not isinstance(protocol, Trainer | Clusterer):
        return None
    return claimed(defence.guarantee(protocol.facts(federation, DELTA)))


def spent(done: Outcome, promise: Promise | None) -> float | None:
    """By the ledger. Where a defence states no epsilon, the ledger's price rests on nothing, and is none either."""
    stated = promise is not None and math.isfinite(promise.guarantee.epsilon)
    return done.ledger.epsilon(DELTA) if stated and done.ledger.rows else None
