"""Gradient inversion by a curious server: the pictures that a client trained on, from its first upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.attacks.base import Pictures
from coterie.attacks.inversion import CURIOUS_SERVER, GradientInversion
from coterie.audit.case import Subject
from coterie.audit.curves import PRIVATE, REBUILT
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.pictured import lacking, shown, span
from coterie.audit.recorded import Recording
from coterie.audit.scene import claimed, play
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.errors import NotPermitted
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.exhibits import Suspected
from coterie.measure.findings import Finding, counted
from coterie.measure.intervals import Sample
from coterie.measure.picture_quality import matched, ssim
from coterie.protocols.base import AnyTrainer, Trainer
from coterie.rng import Rng

ATTACK, SERVER = "gradient inversion", CURIOUS_SERVER.name


class Inversion(Family):
    name = "gradient inversion"
    limit = "inversion_ssim"
    paper = "Geiping et al. 2020; a baseline of Shi et al."
    question = "Does the server see the pictures that a client has just trained on?"
    threat = "A curious server, which is sent each client's model after its first round."
    method = (
        "Labels are read off the last layer. One picture alone is followed back through the layers, where they can be "
        "followed; else pictures are looked for whose gradient points the way the client's model moved (cosine and "
        "total variation, Adam). Scored by structural similarity with the client's pictures, "
        "each paired with the one that it is most like; chance is what the mean of other people's pictures scores, and "
        "in the control one client's pictures are compared with another's."
    )
    gallery = "One picture of each of several clients, and what a curious server makes of its first upload."

    def admits(self, subject: Subject) -> str:
        return lacking(subject)

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [
            Choice.of("dpsgd", clip=1.0, noise_multiplier=0.5),
            Choice.of("plain_ldp"),
            Choice.of("secure_sums"),
        ]

    def protocol(self, subject: Subject) -> Trainer[object]:
        trainer = subject.launched
        assert isinstance(trainer, Trainer)
        return replace(trainer, rounds=1, participation=1.0, local=self.local(trainer.local, subject))

    def local(self, configured: Local, subject: Subject) -> Local:
        """As configured where an update of so many pictures can be inverted at all; else one step over a few."""
        most = subject.audit.gradient_inversion.pictures
        small = configured.epochs is None and configured.steps * configured.batch_size <= most
        fewer = replace(configured, steps=1, epochs=None, batch_size=min(configured.batch_size, most))
        return replace(configured if small else fewer, poisson=False)

    def differs(self, subject: Subject) -> str:
        local = self.protocol(subject).local
        return (
            f"one round, in which a client takes {counted(local.steps, 'step')} over "
            f"{counted(local.batch_size, 'picture')}, which are all that it has; what is configured may mix "
            "so many that none can be told"
        )

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        rng, case, trainer = Rng.seeded(seed), subject.case_of(defence, seed), self.protocol(subject)
        guard, model = case.defence, case.model
        assert model is not None
        federation = cut(case.federation, trainer.local.steps * trainer.local.batch_size)
        examples = federation.examples
        played = play(trainer, federation, model, guard, rng, [CURIOUS_SERVER])
        victims = victims_of(federation, trainer.local, subject.audit.gradient_inversion.victims)
        blank = examples.x[federation.test.rows.unique()].mean(0)
        attack = attack_on(examples, trainer, victims, subject, model)
        try:
            guess = attack.infer(played.view(CURIOUS_SERVER), Auxiliary(), rng.child("attack"))
        except NotPermitted:  # sealed: all that is left is what anybody would say
            count = trainer.local.steps * trainer.local.batch_size
            guess = Pictures({client: blank.expand(count, *blank.shape) for client in victims})
        truth = {client: examples_of(federation, client) for client in victims}
        findings = scored(guess, truth, blank, span(examples))
        private = [truth[client][0] for client in victims]
        rebuilt = [guess.of[client][_like(guess.of[client], truth[client])] for client in victims]
        promise = claimed(guard.guarantee(trainer.facts(federation, subject.delta)))
        pictures = shown({PRIVATE: private, REBUILT: rebuilt}, *span(examples))
        return replace(played.evidence(findings, promise), pictures=pictures)

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        if not recording.has_uploads or not recording.has_published:
            return "needs what clients sent and what they were given, and not both were recorded"
        local, most = recording.trainer.local, recording.subject.audit.gradient_inversion.pictures
        if local.epochs is not None or local.steps * local.batch_size > most:
            return f"a client's update is of {local.steps} x {local.batch_size} pictures or more: too many to tell any"
        return ""

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """What is rebuilt of each client; nobody wrote down what was right."""
        examples, view = recording.subject.examples(seed), recording.view(CURIOUS_SERVER)
        attack = attack_on(examples, recording.trainer, None, recording.subject, recording.model(view, examples))
        guess = attack.infer(view, Auxiliary(), Rng.seeded(seed))
        finding = replace(Finding.unscored(ATTACK, "SSIM", 0.0, CURIOUS_SERVER.knows), adversary=SERVER)
        said = [(f"client {client}", counted(len(found), "picture")) for client, found in guess.of.items()]
        evidence = Evidence.of_recording([finding], [Suspected(self.name, ATTACK, SERVER, "client", "rebuilt", said)])
        pictures = shown({REBUILT: [found[0] for found in guess.of.values()]}, *span(examples))
        return replace(evidence, pictures={PRIVATE: [], **pictures} if pictures else {})


def attack_on(
    examples: Examples, trainer: AnyTrainer, victims: Sequence[int] | None, subject: Subject, model: Model
) -> GradientInversion:
    channels, rows, columns = examples.x.shape[1:]
    return GradientInversion(
        model,
        replace(trainer.local, poisson=False),
        (channels, rows, columns),
        clients=None if victims is None else tuple(victims),
        span=span(examples),
        iterations=subject.audit.gradient_inversion.iterations,
    )


def cut(federation: Federation, most: int) -> Federation:
    """Clients that have as many pictures as an update is of, at most: so it is known which ones it is of."""
    parts = [federation.train[client][:most] for client in range(federation.clients)]
    return replace(federation, train=Shards.of(parts), schedules={})


def victims_of(federation: Federation, local: Local, count: int) -> list[int]:
    """The first clients with whole batches, who are there from the start."""
    whole = federation.sizes >= local.steps * local.batch_size
    if federation.joins is not None:
        whole &= federation.joins == 0
    return [int(client) for client in whole.nonzero().flatten()[:count]]


def examples_of(federation: Federation, client: int) -> Tensor:
    return federation.examples.x[federation.train[client]]


def scored(guess: Pictures, truth: dict[int, Tensor], blank: Tensor, between: tuple[float, float]) -> list[Finding]:
    """The attack, and beside it one client's pictures compared with the next client's."""
    clients = list(truth)
    width = between[1] - between[0]
    real = [_alike(guess.of[client], truth[client], width) for client in clients]
    floor = [_alike(blank.expand_as(truth[client]), truth[client], width) for client in clients]
    chance = sum(floor) / len(floor)
    found = [replace(_finding(ATTACK, real, chance), adversary=SERVER)]
    if len(clients) > 1:
        turned = [*clients[1:], clients[0]]
        other = [_alike(guess.of[a], truth[b], width) for a, b in zip(clients, turned, strict=True)]
        control = _finding("gradient inversion of somebody else", other, chance)
        found.append(replace(control, adversary=SERVER, control=True))
    return found


def _finding(name: str, values: Sequence[float], chance: float) -> Finding:
    return Finding.of(name, "SSIM", Sample.average(values, -1.0, 1.0), chance, "clients", CURIOUS_SERVER.knows)


def _alike(found: Tensor, truth: Tensor, width: float) -> float:
    pairs = matched(found, truth, width)
    one, other = (torch.tensor(list(places)) for places in zip(*pairs, strict=True))
    return float(ssim(found[one], truth[other], width).mean())


def _like(found: Tensor, truth: Tensor) -> int:
    """Which of the rebuilt pictures stands for the first true one."""
    return next(one for one, other in matched(found, truth) if other == 0)


FAMILY = Inversion()
