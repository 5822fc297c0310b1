"""Property inference by a curious client (paper 000), with a placebo beside it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

from coterie.attacks.contrast import Contrast
from coterie.attacks.others import Rules
from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.property_active import ActiveProperty, head_names
from coterie.attacks.updates import Features, Imitation, directions, magnitudes
from coterie.audit import replay_property
from coterie.audit.case import Subject
from coterie.audit.curves import auc_by_round
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording
from coterie.audit.scene import Played, claimed, play
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.data.federation import Examples, Federation
from coterie.data.partition.property import Control, PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.defences.robust import RobustServer
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.flow.imitated import imitated
from coterie.flow.stack import StackedServer, member_of
from coterie.learn.models.model import Model
from coterie.measure.aggregates import Steadiness
from coterie.measure.exhibits import Chart, Series
from coterie.measure.findings import Finding
from coterie.measure.judge import judge, over_victims
from coterie.protocols.base import ModelTrainer, Trainer
from coterie.protocols.fedem import FedEM
from coterie.protocols.fedprox import FedProx
from coterie.rng import Rng

KNEW = property_threat(PropertySplit.attacker).knows
GAMMAS: dict[str, float | None] = {"passive": None, "active": 1.0, "scaled": 5.0}
DENSE: Mapping[str, Features] = {"": directions, " by magnitudes": magnitudes}
CONVOLVED: Mapping[str, Features] = {"": directions, " by contrast": Contrast()}
RICHLY: Mapping[str, Any] = {
    "imagine_every": 1,
    "others": 8,
    "each": 8,
    "pairs": 24,
    "most_grown": 512,
}  # for contrasts
OF = {Control.NONE: "", Control.PLACEBO: " of a placebo", Control.ABSENT: " of what is absent"}


@dataclass(frozen=True)
class Attacked:
    """One run against one victim."""

    findings: Sequence[Finding]
    played: Played
    trainer: Trainer[object]
    federation: Federation


class PropertyInference(Family):
    name = "property inference"
    limit = "property_auc"
    chance = 0.5
    paper = "Kim et al., RAID 2023 (after Melis et al. 2019)"
    question = "Does another client learn that a client used examples with a property that nobody trains for?"
    threat = "A curious client, which sees the models that are published; or one that also tampers with its own upload."
    method = (
        "From published models the adversary has each cluster's aggregate update, and takes its own upload out of it; "
        "from its own data it makes updates with and without the property, learns to tell them apart, and scores every "
        "(round, cluster). The active one trains the model to tell the property apart, the scaled one uploads five "
        "times that. Each looks at updates in two ways: with their signs; and by magnitudes, as published, or, of "
        "convolutions, by contrast with what was imagined of the same round. The victim uses property data in some "
        "rounds; labels are matched. The placebo is a random tag with the property's size and label mix, absent a "
        "victim that never uses property data."
    )

    def admits(self, subject: Subject) -> str:
        if subject.audit.property is None and not has_victim(subject):
            return "no property is named: set audit.property = { tag = ..., value = ... }"
        trainer = subject.protocol(subject.trainers[0])
        if not isinstance(trainer, Trainer):
            return "needs a trainer of models"
        return replay_property.not_imagined(trainer) if has_victim(subject) else ""

    def defences(self, subject: Subject) -> Sequence[Choice]:
        """Dropout and L2, which the paper tries as well, promise nothing; whoever wants them names them."""
        return [Choice.of("dpsgd", clip=1.0, noise_multiplier=2.0)]

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [(Choice.of("dpsgd", clip=1.0, noise_multiplier=sigma), sigma) for sigma in (0.3, 1.0, 2.0)]

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        examples = subject.examples(seed)
        guard = subject.built_defence(defence, self.protocol(subject))
        asked, model = subject.audit.property_inference, subject.built_model(examples)
        attacks = [name for name in asked.attacks if name == "passive" or can_tamper(model, examples.classes)]
        controls = [Control.NONE, *(Control(name) for name in asked.controls)]
        rng, found = Rng.seeded(seed), list[Finding]()
        first: Attacked | None = None
        victims = [rng, *(rng.child("victim", number) for number in range(1, asked.victims))]
        for name, control in product(attacks, controls):
            by_victim = []
            for streams in victims:
                run = self.attacked(subject, examples, guard, control, name, streams)
                by_victim.append(run.findings)
                first = first or run
            found += [over_victims(same) for same in zip(*by_victim, strict=True)]
            if control is Control.NONE and (missing := sum(math.isnan(run[0].score) for run in by_victim)):
                warnings.warn(missed(name, missing, asked.victims), VictimsLeftOut, stacklevel=2)
        assert first is not None
        played, trainer, federation = first.played, first.trainer, first.federation
        shown = defence.kind == "none" and seed == subject.seed
        promise = claimed(guard.guarantee(trainer.facts(federation, subject.delta)))
        drawn = charts(played, federation, split_of(subject).warmup, Rng.seeded(seed)) if shown else ()
        return played.evidence(found, promise, drawn)

    def attacked(
        self, subject: Subject, examples: Examples, guard: Defence, control: Control, name: str, rng: Rng
    ) -> Attacked:
        """What one attack on one victim found, by each way of making features."""
        split = split_of(subject, control)
        federation = split.split(examples, rng.child("partition"))
        model = subject.built_model(examples)
        trainer = self.trainer(subject, guard)
        attack = replace(self.attack(split.every, model, trainer, guard, split.clients), warmup=split.warmup)
        if (gamma := GAMMAS[name]) is not None:
            settings = {one.name: getattr(attack, one.name) for one in fields(attack)}
            attack = ActiveProperty(**settings, data=split.auxiliary(federation), gamma=gamma)
        insiders = [attack] if isinstance(attack, ActiveProperty) else []
        played = play(trainer, federation, model, guard, rng, [attack.threat], insiders)
        view, known = played.view(attack.threat), split.auxiliary(federation)
        ways = ways_of(model)
        guesses = attack.infer_by(view, known, rng.child("attack"), tuple(ways.values()))
        truth = played.witness.property_truth(federation)
        findings = [
            replace(
                judge(guess, truth, f"{attacked}{OF[control]}", KNEW),
                adversary="curious client" if name == "passive" else "client that tampers",
                control=control is not Control.NONE,
                control_of="" if control is Control.NONE else attacked,
                by_round=auc_by_round(guess, truth),
            )
            for attacked, guess in zip([f"{name} inference{way}" for way in ways], guesses, strict=True)
        ]
        return Attacked(findings, played, trainer, federation)

    def admits_recording(self, recording: Recording) -> str:
        return replay_property.lacking(recording)

    def replay(self, recording: Recording, seed: int) -> Evidence:
        attack_on = partial(self.attack, recording.subject.audit.property_inference.every)
        return replay_property.replay(attack_on, ways_of, recording, seed)

    def trainer(self, subject: Subject, guard: Defence) -> Trainer[object]:
        """As configured; in a stress test for as many rounds as it needs, and with the sampling that DP-SGD needs.

        A sample of its few clients is of one or two, and in most rounds nobody looks on; and what is not imagined
        (``not_imagined``) would hide what is there, and bound nothing.
        """
        trainer = subject.protocol(subject.trainers[0])
        assert isinstance(trainer, Trainer)
        if has_victim(subject):
            return trainer
        asked = subject.audit.property_inference
        local = replace(trainer.local, poisson=member_of(guard, DpSgd) is not None, carry=False)
        return replace(trainer, rounds=asked.warmup + asked.scored + 1, local=local, participation=1.0)

    def protocol(self, subject: Subject) -> Trainer[object]:
        return self.trainer(subject, Defence())

    def differs(self, subject: Subject) -> str:
        if has_victim(subject):
            return ""
        asked, trainer = subject.audit.property_inference, subject.protocol(subject.trainers[0])
        changed = ""
        if isinstance(trainer, Trainer):
            changed += ", all of whom are asked in every round" if trainer.participation < 1 else ""
            changed += ", whose optimisers begin anew in every round" if replay_property.carries(trainer) else ""
        return (
            f"{asked.clients} clients with shares of all data{changed}, for {asked.warmup + asked.scored + 1} rounds; "
            f"one of them uses data with the property in one round of {asked.every}; {asked.victims} such runs a seed"
        )

    def attack(
        self, every: int, model: Model, trainer: Trainer[object], guard: Defence, clients: int
    ) -> PassiveProperty:
        imagined: Mapping[str, Any] = RICHLY if ways_of(model) is CONVOLVED else {"imagine_every": every}
        return PassiveProperty(
            imitation_of(model, trainer, guard),
            property_threat(PropertySplit.attacker),
            rules=rules_of(trainer, clients, guard),
            most_features=1024,
            **imagined,
        )


class VictimsLeftOut(UserWarning):
    """A score rests on fewer victims than were attacked."""


def missed(name: str, missing: int, victims: int) -> str:
    """What a score leaves out: nobody compares rounds of different clusters, which alone may tell all."""
    return (
        f"{name} inference: {missing} of {victims} victims are left out of the score, as no cluster was seen in rounds "
        "of both kinds; one whose cluster changes with its data is given away by that alone"
    )


def ways_of(model: Model) -> Mapping[str, Features]:
    """Two, for each is one more to be corrected for. Of convolutions a contrast finds more than the published forest;
    of dense networks it finds less, and costs more."""
    return CONVOLVED if any(leaf.dim() > 2 for leaf in model.init(0).values()) else DENSE


def imitation_of(model: Model, trainer: Trainer[object], guard: Defence) -> Imitation:
    """How clients train, to an adversary that knows which defence is in use, as everybody who takes part does."""
    client = guard.client
    model = model.with_dropout(client.dropout) if client.dropout else model
    proximal = trainer.mu if isinstance(trainer, FedProx) else 0.0
    return Imitation(model, trainer.local, imitated(client), proximal)


def has_victim(subject: Subject) -> bool:
    """Whether the configured federation itself has a client that uses property data in some rounds: no stress test."""
    return subject.partition.kind == "property"


def split_of(subject: Subject, control: Control = Control.NONE) -> PropertySplit:
    """The configured split where it has a victim, else the stress test's own."""
    if has_victim(subject):
        target = registry.look_up(subject.partition.kind, registry.PARTITIONS, "partition")
        split = registry.build(target, subject.partition.options, f"partition {subject.partition.kind!r}")
        assert isinstance(split, PropertySplit)
        return replace(split, control=control)
    assert subject.audit.property is not None
    asked, wanted = subject.audit.property_inference, subject.audit.property
    return PropertySplit(
        asked.clients, wanted.tag, wanted.value, every=asked.every, warmup=asked.warmup, control=control
    )


def rules_of(trainer: Trainer[object], clients: int, guard: Defence) -> Rules:
    """What the trainer's own rules, and the server's, tell each client about who is behind a model, and how."""
    weighted = trainer.weighting == "samples"
    if trainer.participation == 1 and isinstance(trainer, FedEM):  # everybody trains every model
        return Rules((clients, clients), weighted=weighted, averages=averages(guard))
    all_seen = isinstance(trainer, ModelTrainer)  # a server that clusters gives each client its own cluster's model
    models = trainer.slots if isinstance(trainer, ModelTrainer) else clients
    everybody = all_seen and trainer.participation == 1
    server = trainer.server_step if everybody and isinstance(trainer, ModelTrainer) else None
    return replace(Rules.of(clients, models, everybody, weighted, server), averages=averages(guard))


def averages(guard: Defence) -> bool:
    """Whether the server takes means of what clients send."""
    servers = guard.server.guards if isinstance(guard.server, StackedServer) else (guard.server,)
    return not any(isinstance(server, RobustServer) for server in servers)


def can_tamper(model: Model, classes: int) -> bool:
    """Whether a second head finds its place: beside a last dense layer."""
    try:
        head_names(model.init(0), classes)
    except InvalidInput:
        return False
    return True


def charts(played: Played, federation: Federation, warmup: int, rng: Rng) -> list[Chart]:
    """The paper's Figures 2 and 4 for this federation: what the attack works with."""
    steadiness = Steadiness(warmup, pictured=True)
    steadiness.look(played.view(property_threat(PropertySplit.attacker)))
    plane = steadiness.picture(played.witness.property_truth(federation), rng)
    kinds = {"without the property": 0, "with the property": 1}
    places = {name: [at for at, has in enumerate(plane["has"]) if has == wanted] for name, wanted in kinds.items()}
    scatter = Chart(
        "Aggregate updates, by t-SNE",
        "Each point is what one cluster's model moved in one round. Points that stand apart can be told apart.",
        "first coordinate",
        "second coordinate",
        [
            Series(name, [plane["x"][at] for at in here], [plane["y"][at] for at in here])
            for name, here in places.items()
        ],
        kind="scatter",
        family=PropertyInference.name,
    )
    lines = Chart(
        "Similarity of consecutive updates",
        "The cosine of each cluster's update with the one before it; steady updates make a property easier to see.",
        "round",
        "cosine",
        [Series(f"cluster {slot}", list(range(len(values))), values) for slot, values in steadiness.cosines.items()],
        reference=("unrelated", 0.0),
        family=PropertyInference.name,
    )
    return [scatter, lines]


FAMILY = PropertyInference()
