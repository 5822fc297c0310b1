"""Preference profiling by a curious server (MingledPie), from identities and from models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from coterie.attacks.base import Attributions
from coterie.attacks.placing import Placing
from coterie.attacks.profiling import CURIOUS_SERVER, colluding_server
from coterie.attacks.profiling_by_model import Rankings, SensitivityProfiling
from coterie.attacks.updates import Imitation
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording, clusters_stand_for
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation
from coterie.errors import require
from coterie.measure.exhibits import Suspected
from coterie.measure.findings import Finding
from coterie.measure.judge import Labels, judge
from coterie.measure.preferences import Preferences
from coterie.protocols.base import Trainer
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

SERVER, KNEW = CURIOUS_SERVER.name, CURIOUS_SERVER.knows
BY_IDENTITY, BY_MODEL = "profiling by identity", "profiling by model"
TOGETHER = colluding_server(0)
Client = TypeVar("Client")
Known = TypeVar("Known")


def of_each_class(federation: Federation, per_class: int, rng: Rng) -> Examples:
    """Examples that the server holds: test rows, which nobody trains on, so that the federation stays as it is."""
    rows = federation.test.rows.unique()
    require(len(rows) > 0, "test rows", 0, "leave the server no examples of its own; hold some back in [partition]")
    order = rows[torch.randperm(len(rows), generator=rng.child("held by the server").torch())]
    labels = federation.examples.y[order]
    chosen = [order[labels == label][:per_class] for label in range(federation.examples.classes)]
    return federation.examples.take(torch.cat(chosen), f"{federation.examples.name} (the server's)")


def classes_of(serves: Mapping[int, int], groups: Labels, preferred: Preferences) -> dict[int, tuple[int, ...]]:
    """The classes that each cluster serves: those that most clients of its group prefer."""
    found = {}
    for cluster, group in serves.items():
        members = sum(own == group for own in groups.labels.values())
        votes = Counter(
            label for client, liked in preferred.labels.items() if groups.labels.get(client) == group for label in liked
        )
        found[cluster] = tuple(sorted(label for label, count in votes.items() if 2 * count > members))
    return found


@dataclass(frozen=True)
class Profiler:
    """Both attacks with what the server knows: which preference each cluster serves, and examples of every class."""

    serves: Mapping[int, int]
    imitation: Imitation
    classes: int
    auxiliary: Auxiliary
    rng: Rng
    preferred: Mapping[int, Sequence[int]] = field(default_factory=dict)  # the classes that each cluster serves

    def by_identity(self, view: View, upto: int | None = None) -> Attributions:
        attack = Placing(self.serves, view.threat, upto)
        return attack.infer(view, Auxiliary(), self.rng.child("A1"))

    def by_model(self, view: View, round: int | None = None) -> Rankings:
        attack = SensitivityProfiling(self.imitation, self.classes, view.threat, round, self.preferred)
        return attack.infer(view, self.auxiliary, self.rng.child("A2"))

    def findings(
        self, view: View, adversary: str, groups: Labels | None, preferred: Preferences, retrain: int
    ) -> list[Finding]:
        """Both attacks, at the end and on the way; the second, which trains, in some rounds only.

        Each has a control beside it: the same guesses, held against what is true of other clients.
        """
        rounds = view.rounds()
        some = sorted({rounds[place] for place in np.linspace(0, len(rounds) - 1, retrain + 1).astype(int)[1:]})
        found = []
        if groups is not None:
            seen = some if view.threat.keys else rounds  # who opens sums solves a program for each round
            guesses = {round: self.by_identity(view, round) for round in seen}
            scored = [(round, judge(guess, groups, BY_IDENTITY, KNEW)) for round, guess in guesses.items()]
            found += [_last(adversary, scored), self.others_groups(guesses[rounds[-1]], groups, adversary)]
        ranked = {round: self.by_model(view, round) for round in some}
        ranks = [(round, judge(guess, preferred, BY_MODEL, KNEW)) for round, guess in ranked.items()]
        return [*found, _last(adversary, ranks), self.others_classes(ranked[some[-1]], preferred, adversary)]

    def others_groups(self, guess: Attributions, groups: Labels, adversary: str) -> Finding:
        """The control of profiling by identity."""
        turned = Labels(self.others(groups.labels), groups.choices)
        return _control(adversary, judge(guess, turned, BY_IDENTITY, KNEW))

    def others_classes(self, guess: Rankings, preferred: Preferences, adversary: str) -> Finding:
        """That of profiling by model, over the clients that prefer anything."""
        known = {client: liked for client, liked in preferred.labels.items() if liked}
        return _control(adversary, judge(guess, Preferences(self.others(known), preferred.classes), BY_MODEL, KNEW))

    def others(self, truth: Mapping[Client, Known]) -> dict[Client, Known]:
        """What is true of other clients, drawn at random."""
        clients = list(truth)
        order = self.rng.child("control").numpy().permutation(len(clients))
        return {client: truth[clients[place]] for client, place in zip(clients, order.tolist(), strict=True)}


def _last(adversary: str, found: Sequence[tuple[int, Finding]]) -> Finding:
    """The last round's, with the scores on the way."""
    curve = [(round, finding.score) for round, finding in found]
    return replace(found[-1][1], adversary=adversary, by_round=curve)


def _control(adversary: str, finding: Finding) -> Finding:
    named = f"{finding.attack}, of other clients"
    return replace(finding, attack=named, adversary=adversary, control=True, control_of=finding.attack)


class PreferenceProfiling(Family):
    name = "preference profiling"
    limit = "profiling_accuracy"
    paper = "MingledPie (Zhang et al., NDSS 2025); model-based profiling after Zhou et al. 2023"
    question = "Does the server learn which classes a client holds most of?"
    threat = "A curious server, alone or with one client that hands it its keys."
    method = (
        "By identity: from the clusters that a client joins, where clients choose one; different sets stand for "
        "different clusters, and where sums can be opened, the sizes of clusters over rounds tell who is in them. "
        "By model: a client's model is trained further on each class, and the classes are ranked by how little it "
        "moves; where it is sealed, those of the clusters that the client may be in are named. The server holds some "
        "test rows of each class. Scored by the share of clients whose preference is named. The control holds the same "
        "guesses against what is true of other clients, drawn at random."
    )

    def admits(self, subject: Subject) -> str:
        return "" if isinstance(subject.launched, Trainer) else "needs a trainer of models"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        mingling = Choice.of("mingling")
        return [] if subject.why_not(mingling, subject.launched) else [mingling]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (CURIOUS_SERVER, TOGETHER)

    def read(self, run: ReferenceRun) -> Evidence:
        federation, trainer, model = run.case.federation, run.case.protocol, run.case.model
        assert isinstance(trainer, Trainer)
        assert model is not None
        asked = run.subject.audit.preference_profiling
        groups = None
        if trainer.choices > 1 and int(federation.groups.max()) > 0:
            groups = Labels(dict(enumerate(federation.groups.tolist())), int(federation.groups.max()) + 1)
        serves = clusters_stand_for(run.done.scores.choices.argmax(1), federation.groups) if groups else {}
        imitation = Imitation(model, replace(trainer.local, poisson=False))
        auxiliary = Auxiliary(of_each_class(federation, asked.per_class, run.rng))
        liked = classes_of(serves, groups, Preferences.of(federation)) if groups else {}
        profiler = Profiler(serves, imitation, federation.examples.classes, auxiliary, run.rng, liked)
        findings: list[Finding] = []
        for adversary, threat in ((SERVER, CURIOUS_SERVER), ("server with one client", TOGETHER)):
            view = run.view(threat)
            findings += profiler.findings(view, adversary, groups, Preferences.of(federation), asked.retrain)
        return run.evidence(findings)

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        return "" if recording.has_uploads else "needs what clients sent, and none of it was recorded"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        examples, view = recording.subject.examples(seed), recording.view(CURIOUS_SERVER)
        trainer, rng = recording.trainer, Rng.seeded(seed).child("attack")
        slots = view.sent(view.rounds()[-1]).membership.shape[1]
        serves = {cluster: cluster for cluster in range(slots)} | recording.options.serves
        imitation = Imitation(recording.model(view, examples), replace(trainer.local, poisson=False))
        groups, preferred = recording.truth.labels(), recording.truth.preferences(examples.classes)
        liked = classes_of(serves, groups, preferred) if groups and preferred else {}
        profiler = Profiler(serves, imitation, examples.classes, Auxiliary(examples), rng, liked)
        identity, ranked = profiler.by_identity(view), profiler.by_model(view)
        by_identity = Finding.unscored(BY_IDENTITY, "accuracy", 1 / len({*serves.values()}), KNEW)
        by_model = Finding.unscored(BY_MODEL, "top-1 preference", 1 / examples.classes, KNEW)
        found = [
            judge(identity, groups, BY_IDENTITY, KNEW) if groups else by_identity,
            judge(ranked, preferred, BY_MODEL, KNEW) if preferred else by_model,
        ]
        found += [profiler.others_groups(identity, groups, SERVER)] if groups else []
        found += [profiler.others_classes(ranked, preferred, SERVER)] if preferred else []
        named = [replace(one, adversary=SERVER) for one in found]
        return Evidence.of_recording(named, self.suspected(identity, ranked, examples))

    def suspected(self, identity: Attributions, ranked: Rankings, examples: Examples) -> list[Suspected]:
        """What either attack says of each client."""
        names = examples.label_names or tuple(map(str, range(examples.classes)))
        favourites = [(f"client {client}", str(label)) for client, label in identity.labels.items()]
        orders = [(f"client {c}", ", ".join(names[one] for one in order[:3])) for c, order in ranked.orders.items()]
        return [
            Suspected(self.name, BY_IDENTITY, SERVER, "client", "preference", favourites),
            Suspected(self.name, BY_MODEL, SERVER, "client", "classes, likeliest first", orders),
        ]


FAMILY = PreferenceProfiling()
