"""Property inference as configured: how much of a property does each client hold? Read by a curious server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from coterie.attacks.property_shares import CURIOUS_SERVER, PropertyShares, Shares
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.families.property_inference import imitation_of
from coterie.audit.family import Family
from coterie.audit.reference import ReferenceRun
from coterie.audit.rehearsals import updates_of
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.partition.dealing import value_of
from coterie.errors import InvalidInput
from coterie.measure import property_shares as judged
from coterie.measure.exhibits import Suspected
from coterie.protocols.base import Trainer
from coterie.wire.view import ThreatModel


class PropertyOfClients(Family):
    name = "property of clients"
    limit = "property_auc"
    chance = 0.5
    paper = "after Melis et al., S&P 2019, and Suri and Evans, PETS 2022 (distribution inference)"
    question = "Does the server learn how much of a property, which nobody trains for, each client's own data have?"
    threat = "A curious server, which sees what clients send; where that is sealed, what their clusters moved by."
    method = (
        "The server holds the test rows, on which the property is marked. From the models that were published it "
        "trains imagined clients, each with labels and a share of the property of its own, learns what a share does to "
        "an update, and reads every client's share. Scored over clients: are those who hold more of it than the median "
        "client told from those who hold less, as it is, and beyond what their labels lead one to expect? Where nobody "
        "holds less than the median client, or nobody more, they are told from all others. The controls "
        "are a coin, which is the property dealt to any rows, and a placebo, dealt to rows of the same label."
    )

    def admits(self, subject: Subject) -> str:
        if subject.audit.property is None:
            return "no property is named: set audit.property = { tag = ..., value = ... }"
        return "" if isinstance(subject.launched, Trainer) else "needs a trainer of models"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("dpsgd", clip=1.0, noise_multiplier=1.0)]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (CURIOUS_SERVER,)

    def read(self, run: ReferenceRun) -> Evidence:
        case, asked, wanted = run.case, run.subject.audit.property_of_clients, run.subject.audit.property
        trainer, model = case.protocol, case.model
        assert isinstance(trainer, Trainer)
        assert model is not None
        assert wanted is not None
        value = value_of(case.federation.examples, wanted.tag, wanted.value)
        has = case.federation.examples.tags[wanted.tag] == value
        federation = judged.marked(case.federation, has, run.rng.child("controls"))
        known = federation.test.rows.unique()
        known = known[~torch.isin(known, federation.train.rows)]
        if len(known) == 0:
            raise InvalidInput("no row is left to the server that nobody trains on; hold some back in [partition]")
        truth = judged.true_shares(federation)
        if len({round(shares[judged.PROPERTY], 9) for shares in truth.held.values()}) < 2:
            raise InvalidInput(f"property {wanted.tag}={wanted.value}: all clients hold it in the same share")
        view, sizes = run.view(CURIOUS_SERVER), federation.train.sizes
        attack = PropertyShares(
            imitation_of(model, trainer, case.defence),
            judged.MARKS,
            rows=int(sizes[sizes > 0].median()),
            rounds=tuple(updates_of(view.rounds(), asked.looks)),
            imagined=asked.imagined,
        )
        guess = attack.infer(view, Auxiliary(federation.examples.take(known)), run.rng.child("shares"))
        findings = [replace(one, adversary=CURIOUS_SERVER.name) for one in judged.findings(guess, truth)]
        shown = run.first and run.choice.kind == "none"
        said = [self.suspected(guess, truth)] if shown else []
        return replace(run.evidence(findings), suspected=said)

    def suspected(self, guess: Shares, truth: Shares) -> Suspected:
        """The clients that hold most of it, as they were read and as they are."""
        read, held = ({who: row[judged.PROPERTY] for who, row in one.held.items()} for one in (guess, truth))
        order = sorted(read, key=lambda client: -read[client])
        rows = [(f"client {one}", f"{min(max(read[one], 0.0), 1.0):.0%}; it is {held[one]:.0%}") for one in order]
        return Suspected(self.name, "share of the property", CURIOUS_SERVER.name, "client", "share as read", rows)


FAMILY = PropertyOfClients()
