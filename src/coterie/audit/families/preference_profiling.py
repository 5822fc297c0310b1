"""Preference profiling by a curious server (MingledPie), from identities and from models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.attacks.profiling import CURIOUS_SERVER, IdentityProfiling, SensitivityProfiling, colluding_server
from coterie.attacks.updates import Imitation
from coterie.audit.family import Evidence, Family, Scored
from coterie.audit.scene import DELTA, claimed, play
from coterie.audit.subject import Subject
from coterie.data.auxiliary import Auxiliary, reserve
from coterie.flow.rng import Rng
from coterie.measure.judge import Finding, Labels, judge
from coterie.measure.preferences import Preferences
from coterie.protocols.base import Trainer
from coterie.protocols.ifca import Ifca
from coterie.run import registry
from coterie.run.config import Choice

PER_CLASS = 20  # examples of each class that the server holds
ROUNDS = 12


class PreferenceProfiling(Family):
    name = "preference profiling"
    limit = "profiling_accuracy"
    paper = "MingledPie (Zhang et al., NDSS 2025); model-based profiling after Zhou et al. 2023"
    question = "Does the server learn which classes a client holds most of?"
    threat = "A curious server, alone or with one client that hands it its keys."
    method = (
        "A1 reads the clusters that a client joins; A2 trains each client's model further on each class and ranks the "
        "classes by how little it moves. Scored by the share of clients whose preference is named."
    )

    def admits(self, subject: Subject) -> str:
        if not isinstance(subject.protocol(subject.trainers[0]), Ifca):
            return "needs a trainer whose clients choose their cluster (ifca)"
        return "" if subject.partition.kind == "label_sets" else "needs clients that prefer classes (label_sets)"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [
            Choice.model_validate({"kind": "mingling", "cipher": "mock"}),
            Choice.model_validate({"kind": "mingling", "cipher": "mock", "exact": True}),
            Choice.model_validate({"kind": "mingling", "cipher": "secure_sums", "exact": True}),
        ]

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        rng = Rng.seeded(seed)
        auxiliary, examples = reserve(subject.examples(seed), PER_CLASS, rng)
        federation = subject.partitioned(examples, seed)
        model = subject.built_model(examples)
        trainer = subject.protocol(subject.trainers[0])
        assert isinstance(trainer, Ifca)
        trainer = replace(trainer, rounds=min(trainer.rounds, ROUNDS))
        guard = registry.build_defence(defence)
        together = colluding_server(0)
        played = play(trainer, federation, model, guard, rng, [CURIOUS_SERVER, together])
        groups = Labels(dict(enumerate(federation.groups.tolist())), int(federation.groups.max()) + 1)
        stands_for = clusters_stand_for(played.scores.choices.argmax(1), federation.groups)
        imitation = Imitation(model, replace(trainer.local, poisson=False))
        scored = []
        for adversary, threat in (("curious server", CURIOUS_SERVER), ("server with one client", together)):
            view = played.view(threat)
            identity = IdentityProfiling(stands_for, threat, intersect=True)
            by_identity = judge(identity.infer(view, Auxiliary(), rng.child("A1")), groups)
            by_model = SensitivityProfiling(imitation, examples.classes, threat)
            ranked = judge(by_model.infer(view, auxiliary, rng.child("A2")), Preferences.of(federation))
            scored += [_scored("by identity", adversary, by_identity, threat.knows)]
            scored += [_scored("by model", adversary, ranked, threat.knows)]
        return Evidence(
            scored=scored,
            utility_measure="accuracy",
            utility=played.scores.mean,
            seconds=played.seconds,
            upload_bytes=played.upload_bytes,
            memory_bytes=played.memory_bytes,
            claim=claimed(guard.guarantee(_facts(trainer, federation))),
        )


def _scored(attack: str, adversary: str, finding: Finding, knew: str) -> Scored:
    return Scored(f"profiling {attack}", adversary, finding.measure, finding.score, finding.chance, knew=knew)


def _facts(trainer: Trainer[Any], federation: Any) -> Any:
    return trainer.facts(federation, DELTA)


def clusters_stand_for(choice: Tensor, groups: Tensor) -> Mapping[int, int]:
    """The group that most of each cluster's clients belong to: what the server knows from setting the task up."""
    found = {}
    for cluster in range(int(groups.max()) + 1):
        members = groups[choice == cluster]
        found[cluster] = int(torch.bincount(members).argmax()) if len(members) else cluster
    return found


FAMILY = PreferenceProfiling()
