"""Poisoning: how much accuracy one client can take from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from coterie.attacks.poisoning import Poisoning, poisoner
from coterie.audit import reference
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.data.federation import Federation, Shards
from coterie.errors import Diverged
from coterie.measure.poisoned import accuracy_lost
from coterie.measure.utility import Scores
from coterie.rng import Rng
from coterie.run.training import train


class Poisoned(Family):
    name = "poisoning"
    limit = "accuracy_lost"
    paper = "Blanchard et al., NeurIPS 2017; Yin et al., ICML 2018"
    question = "How much accuracy can one client take from the others?"
    threat = "One client that answers as it likes."
    method = (
        "The first client with data answers with the reverse of its update, twenty times over. Scored by the mean over "
        "the other clients of what each loses on its own test data, against the same federation in which that client "
        "is honest. In the control it is honest, and its rows are drawn in another order."
    )

    def admits(self, subject: Subject) -> str:
        if not subject.launched.trains:
            return "needs a trainer of models"
        return "" if subject.federation().clients > 1 else "needs a second client, from which something could be taken"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        rules = ("median", "krum")
        return [Choice.of("robust", rule=rule) for rule in rules]

    def differs(self, subject: Subject) -> str:
        """It is no leak, so it stands apart from the headline, and a limit must name it."""
        return "one client that answers as it likes, because this is about what a client does, not about what it learns"

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        with reference.run(subject, defence, seed) as run:
            honest, federation = run.done.scores, run.case.federation
            bad = int(federation.train.sizes.nonzero()[0])
            threat = poisoner(bad)
            attacked = _scores(run, federation, Poisoning(threat))
            again = _scores(run, _reordered(federation, bad, run.rng), None)
            found = accuracy_lost(honest, attacked, bad, "reversed updates", threat.knows)
            control = accuracy_lost(honest, again, bad, "other draws", threat.knows)
            findings = [found, replace(control, control=True)]
            return run.evidence([replace(one, adversary="bad client") for one in findings])


def _scores(run: ReferenceRun, federation: Federation, adversary: Poisoning | None) -> Scores | None:
    """Of a run that ends as the honest one does. None where it ended in NaN, which is the most one can want."""
    case, subject = run.case, run.subject
    try:
        done = train(
            case.protocol,
            federation,
            case.model,
            seed=case.seed,
            defence=case.defence,
            evaluate_every=subject.evaluate_every if subject.stop else max(1, getattr(case.protocol, "rounds", 1)),
            adversaries=[adversary] if adversary else (),
            stop=subject.stop,
            device=subject.device,
        )
    except Diverged:
        return None
    return done.scores


def _reordered(federation: Federation, client: int, rng: Rng) -> Federation:
    """The same, of which nothing is to be lost: this client trains on the same rows, by other draws."""
    parts = [federation.train[one] for one in range(federation.clients)]
    order = rng.child("reordered").numpy().permutation(len(parts[client]))
    parts[client] = parts[client][torch.from_numpy(order)]
    return replace(federation, train=Shards.of(parts))


FAMILY = Poisoned()
