"""Preference profiling by a curious server (MingledPie), from identities and from models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.attacks.base import Attributions
from coterie.attacks.profiling import (
    CURIOUS_SERVER,
    IdentityProfiling,
    Rankings,
    SensitivityProfiling,
    colluding_server,
)
from coterie.attacks.updates import Imitation
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording, clusters_stand_for
from coterie.audit.scene import DELTA, claimed, held_back, play
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.measure.findings import Finding, Suspected
from coterie.measure.judge import Labels, judge
from coterie.measure.preferences import Preferences
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.view import View

SERVER, KNEW = CURIOUS_SERVER.name, CURIOUS_SERVER.knows
BY_IDENTITY, BY_MODEL = "profiling by identity", "profiling by model"


@dataclass(frozen=True)
class Profiler:
    """Both attacks with what the server knows: which preference each cluster serves, and examples of every class."""

    serves: Mapping[int, int]
    imitation: Imitation
    classes: int
    auxiliary: Auxiliary
    rng: Rng

    def by_identity(self, view: View, upto: int | None = None) -> Attributions:
        attack = IdentityProfiling(self.serves, view.threat, upto, intersect=True)
        return attack.infer(view, Auxiliary(), self.rng.child("A1"))

    def by_model(self, view: View, round: int | None = None) -> Rankings:
        attack = SensitivityProfiling(self.imitation, self.classes, view.threat, round)
        return attack.infer(view, self.auxiliary, self.rng.child("A2"))

    def findings(self, view: View, adversary: str, groups: Labels, preferred: Preferences, every: int) -> list[Finding]:
        """Both attacks, at the end and on the way; the second, which trains, in some rounds only."""
        rounds = view.rounds()
        some = sorted({*rounds[::every], rounds[-1]})
        identities = [(round, judge(self.by_identity(view, round), groups, BY_IDENTITY, KNEW)) for round in rounds]
        models = [(round, judge(self.by_model(view, round), preferred, BY_MODEL, KNEW)) for round in some]
        return [_last(adversary, identities), _last(adversary, models)]


def _last(adversary: str, found: Sequence[tuple[int, Finding]]) -> Finding:
    """The last round's, with the scores on the way."""
    curve = [(round, finding.score) for round, finding in found]
    return replace(found[-1][1], adversary=adversary, by_round=curve)


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

    def protocol(self, subject: Subject) -> Ifca:
        trainer = subject.protocol(subject.trainers[0])
        assert isinstance(trainer, Ifca)
        return replace(trainer, rounds=min(trainer.rounds, subject.audit.preference_profiling.rounds))

    def differs(self, subject: Subject) -> str:
        return (
            f"at most {subject.audit.preference_profiling.rounds} rounds, on what is left where the server holds back "
            "some examples of each class"
        )

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        rng = Rng.seeded(seed)
        auxiliary, examples = held_back(subject.examples(seed), rng)
        federation = subject.partitioned(examples, seed)
        model = subject.built_model(examples)
        trainer = self.protocol(subject)
        guard = registry.build_defence(defence)
        together = colluding_server(0)
        played = play(trainer, federation, model, guard, rng, [CURIOUS_SERVER, together])
        groups = Labels(dict(enumerate(federation.groups.tolist())), int(federation.groups.max()) + 1)
        serves = clusters_stand_for(played.scores.choices.argmax(1), federation.groups)
        imitation = Imitation(model, replace(trainer.local, poisson=False))
        profiler = Profiler(serves, imitation, examples.classes, auxiliary, rng)
        findings: list[Finding] = []
        for adversary, threat in ((SERVER, CURIOUS_SERVER), ("server with one client", together)):
            view = played.view(threat)
            every = subject.audit.preference_profiling.retrain_every
            findings += profiler.findings(view, adversary, groups, Preferences.of(federation), every)
        return played.evidence(findings, claimed(guard.guarantee(trainer.facts(federation, DELTA))))

    def admits_recording(self, recording: Recording) -> str:
        return "" if recording.has_uploads else "needs what clients sent, and none of it was recorded"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        examples, view = recording.subject.examples(seed), recording.view(CURIOUS_SERVER)
        trainer = recording.trainer
        slots = view.sent(view.rounds()[-1]).membership.shape[1]
        serves = {cluster: cluster for cluster in range(slots)} | recording.options.serves
        imitation = Imitation(recording.model(view, examples), replace(trainer.local, poisson=False))
        profiler = Profiler(serves, imitation, examples.classes, Auxiliary(examples), Rng.seeded(seed))
        identity, ranked = profiler.by_identity(view), profiler.by_model(view)
        groups, preferred = recording.truth.labels(), recording.truth.preferences(examples.classes)
        by_identity = Finding.unscored(BY_IDENTITY, "accuracy", 1 / len({*serves.values()}), KNEW)
        by_model = Finding.unscored(BY_MODEL, "top-1 preference", 1 / examples.classes, KNEW)
        found = [
            judge(identity, groups, BY_IDENTITY, KNEW) if groups else by_identity,
            judge(ranked, preferred, BY_MODEL, KNEW) if preferred else by_model,
        ]
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
