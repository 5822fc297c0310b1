"""Model acquisition by newcomers (paper 000, Appendix A): obtaining the models of clusters that are not one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from coterie.attacks.acquisition import ModelAcquisition, acquisition_threat
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.scene import claimed, play
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.defences.dpsgd import DpSgd
from coterie.flow.stack import member_of
from coterie.measure.judge import ClusterCounts, judge
from coterie.protocols.base import Trainer
from coterie.protocols.sattler import Sattler
from coterie.rng import Rng


class Acquisition(Family):
    name = "model acquisition"
    limit = "acquired_share"
    paper = "Kim et al., RAID 2023, Appendix A"
    question = "Can newcomers obtain the models of all clusters, where each client is given only its own?"
    threat = "As many colluding newcomers as there are true clusters, which answer as they like."
    method = (
        "The server clusters by updates (Sattler et al.) and places newcomers by theirs. Each newcomer answers with "
        "the opposite of its update where an earlier one has been, and so steers where it is placed; scored by the "
        "share of the clusters' models that they obtain. The control's newcomers answer honestly."
    )

    def admits(self, subject: Subject) -> str:
        if not isinstance(subject.launched, Trainer):
            return "needs a trainer of models"
        if int(subject.federation().groups.max()) < 1:
            return "needs data of which it is known which clients belong together: a newcomer of each group joins"
        return ""

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("dpsgd", clip=1.0, noise_multiplier=1.0)]

    def protocol(self, subject: Subject) -> Sattler:
        return self.trainer(subject, 1)  # how many newcomers there are, the data say, and no defence must know

    def trainer(self, subject: Subject, newcomers: int) -> Sattler:
        """The configured one, if it is Sattler's, for at least as many rounds as the newcomers need to join."""
        base = subject.launched
        assert isinstance(base, Trainer)
        rounds = subject.audit.model_acquisition.join + 2 * newcomers + 2
        if isinstance(base, Sattler):
            return replace(base, rounds=max(base.rounds, rounds))
        return Sattler(rounds=rounds, local=base.local, most=newcomers, progress=0.0, least=1, separation=1.0)

    def differs(self, subject: Subject) -> str:
        """Where the server places newcomers as configured, newcomers are what an adversary adds, not a change."""
        if not isinstance(subject.launched, Sattler):
            return "Sattler's clustering in the place of the configured trainer, because it gives each client one model"
        groups = int(subject.federation().groups.max()) + 1
        longer = self.trainer(subject, groups).rounds - cast(int, getattr(subject.launched, "rounds", 0))
        return f"{longer} more rounds than configured, because newcomers need them to join" if longer else ""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        rng = Rng.seeded(seed)
        whole = subject.federation(seed)
        newcomers = int(whole.groups.max()) + 1
        federation = joined_late(whole, newcomers, subject.audit.model_acquisition.join)
        trainer = self.trainer(subject, newcomers)
        guard = subject.built_defence(defence, trainer)
        if member_of(guard, DpSgd) is not None:
            trainer = replace(trainer, local=replace(trainer.local, poisson=True))
        ids = frozenset(range(whole.clients - newcomers, whole.clients))
        attack = ModelAcquisition(acquisition_threat(ids))
        model = subject.built_model(whole.examples)
        findings = []
        for adversaries, control in (([attack], False), ([], True)):
            played = play(trainer, federation, model, guard, rng, [attack.threat], adversaries)
            guess = attack.infer(played.view(attack.threat), Auxiliary(), rng)
            name = "honest placement" if control else "steered placement"
            finding = judge(guess, ClusterCounts(played.witness.slots), name)
            named = replace(finding, adversary="group of newcomers", knew=attack.threat.knows, control=control)
            findings.append(named)
        return played.evidence(findings, claimed(guard.guarantee(trainer.facts(federation, subject.delta))))


def joined_late(federation: Federation, newcomers: int, join: int) -> Federation:
    """The last clients join one after the other, all of them with the first group's data."""
    first = int((federation.groups == federation.groups[0]).nonzero()[0])
    joins = torch.zeros(federation.clients, dtype=torch.int64)
    order = list(range(federation.clients))
    groups = federation.groups.clone()
    for number in range(newcomers):
        client = federation.clients - newcomers + number
        joins[client] = join + 2 * number
        order[client] = first
        groups[client] = groups[first]
    return replace(
        federation, train=federation.train.pick(order), test=federation.test.pick(order), groups=groups, joins=joins
    )


FAMILY = Acquisition()
