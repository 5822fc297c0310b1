"""Property inference by a curious client (paper 000), with a placebo beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.updates import Imitation, directions
from coterie.audit import replay_property
from coterie.audit.case import Subject
from coterie.audit.curves import auc_by_round
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording
from coterie.audit.scene import DELTA, Played, claimed, play
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.data.federation import Examples, Federation
from coterie.data.partition.property import Control, PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.flow.guard import Defence
from coterie.learn.models.model import Model
from coterie.measure.aggregates import consecutive_cosines, pictured
from coterie.measure.findings import Chart, Finding, Series
from coterie.measure.judge import judge
from coterie.protocols.base import Trainer
from coterie.rng import Rng

KNEW = property_threat(PropertySplit.attacker).knows


class PropertyInference(Family):
    name = "property inference"
    limit = "property_auc"
    paper = "Kim et al., RAID 2023 (after Melis et al. 2019)"
    question = "Does another client learn that a client used examples with a property that nobody trains for?"
    threat = "A curious client, which sees the models that are published."
    method = (
        "From published models the adversary has each cluster's aggregate update; from its own data it makes updates "
        "with and without the property, learns to tell them apart, and scores every (round, cluster). The victim uses "
        "property data in some rounds; labels are matched; features have signs. The placebo is a random tag with the "
        "property's size and label mix."
    )

    def admits(self, subject: Subject) -> str:
        if subject.audit.property is None:
            return "no property is named: set audit.property = { tag = ..., value = ... }"
        if not isinstance(subject.protocol(subject.trainers[0]), Trainer):
            return "needs a trainer of models"
        return ""

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [
            Choice.model_validate({"kind": "dropout", "rate": 0.2}),
            Choice.model_validate({"kind": "l2", "penalty": 0.01}),
            Choice.model_validate({"kind": "dpsgd", "clip": 1.0, "noise_multiplier": 2.0}),
        ]

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [
            (Choice.model_validate({"kind": "dpsgd", "clip": 1.0, "noise_multiplier": sigma}), sigma)
            for sigma in (0.3, 1.0, 2.0)
        ]

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        examples = subject.examples(seed)
        guard = registry.build_defence(defence)
        real, played, trainer, federation = self.attacked(subject, examples, guard, Control.NONE, seed)
        placebo, _, _, _ = self.attacked(subject, examples, guard, Control.PLACEBO, seed)
        shown = defence.kind == "none" and seed == subject.seed
        promise = claimed(guard.guarantee(trainer.facts(federation, DELTA)))
        warmup = subject.audit.property_inference.warmup
        drawn = charts(played, federation, warmup, Rng.seeded(seed)) if shown else ()
        return played.evidence([real, placebo], promise, drawn)

    def attacked(
        self, subject: Subject, examples: Examples, guard: Defence, control: Control, seed: int
    ) -> tuple[Finding, Played, Trainer[object], Federation]:
        assert subject.audit.property is not None
        rng = Rng.seeded(seed)
        tag, value = subject.audit.property.tag, subject.audit.property.value
        asked = subject.audit.property_inference
        split = PropertySplit(asked.clients, tag, value, every=asked.every, warmup=asked.warmup, control=control)
        federation = split.split(examples, rng.child("partition"))
        model = subject.built_model(examples)
        trainer = self.trainer(subject, guard)
        attack = self.attack(subject, model, trainer, guard)
        played = play(trainer, federation, model, guard, rng, [attack.threat])
        guess = attack.infer(played.view(attack.threat), split.auxiliary(federation), rng.child("attack"))
        truth = played.witness.property_truth(federation)
        name = "passive inference" if control is Control.NONE else "passive inference of a placebo"
        finding = replace(
            judge(guess, truth, name, KNEW),
            adversary="curious client",
            control=control is not Control.NONE,
            by_round=auc_by_round(guess, truth),
        )
        return finding, played, trainer, federation

    def admits_recording(self, recording: Recording) -> str:
        return replay_property.lacking(recording)

    def replay(self, recording: Recording, seed: int) -> Evidence:
        return replay_property.replay(partial(self.attack, recording.subject), recording, seed)

    def trainer(self, subject: Subject, guard: Defence) -> Trainer[object]:
        """As configured, but for as many rounds as the attack needs, and with the sampling that DP-SGD needs."""
        trainer = subject.protocol(subject.trainers[0])
        assert isinstance(trainer, Trainer)
        local = replace(trainer.local, poisson=isinstance(guard, DpSgd))
        asked = subject.audit.property_inference
        return replace(trainer, rounds=asked.warmup + asked.scored + 1, local=local)

    def protocol(self, subject: Subject) -> Trainer[object]:
        return self.trainer(subject, Defence())

    def differs(self, subject: Subject) -> str:
        asked = subject.audit.property_inference
        return (
            f"{asked.clients} clients with shares of all data, for {asked.warmup + asked.scored + 1} rounds; one of "
            f"them uses data with the property in one round of {asked.every}"
        )

    def attack(self, subject: Subject, model: Model, trainer: Trainer[object], guard: Defence) -> PassiveProperty:
        """The adversary knows which defence is in use, as everybody who takes part does."""
        asked = subject.audit.property_inference
        clip, sigma = (guard.clip, guard.noise_multiplier) if isinstance(guard, DpSgd) else (None, 0.0)
        model = model.with_dropout(guard.client.dropout) if guard.client.dropout else model
        imitation = Imitation(model, replace(trainer.local, poisson=False), clip, sigma)
        threat = property_threat(PropertySplit.attacker)
        return PassiveProperty(
            imitation,
            threat,
            asked.warmup,
            imagine_every=asked.every,
            sizes=(2, asked.clients),
            most_features=1024,
            features=directions,
        )


def charts(played: Played, federation: Federation, warmup: int, rng: Rng) -> list[Chart]:
    """The paper's Figures 2 and 4 for this federation: what the attack works with."""
    view = played.view(property_threat(PropertySplit.attacker))
    plane = pictured(view, played.witness, federation, warmup, rng)
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
    similar = consecutive_cosines(view, warmup)
    lines = Chart(
        "Similarity of consecutive updates",
        "The cosine of each cluster's update with the one before it; steady updates make a property easier to see.",
        "round",
        "cosine",
        [Series(f"cluster {slot}", list(range(len(values))), values) for slot, values in similar.items()],
        reference=("unrelated", 0.0),
        family=PropertyInference.name,
    )
    return [scatter, lines]


FAMILY = PropertyInference()
