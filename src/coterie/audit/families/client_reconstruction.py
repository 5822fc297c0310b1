"""Reconstruction of a client's classes by another client of its cluster (paper 004), with chance that is exact."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from torch import Tensor

from coterie.attacks.base import Pictures
from coterie.attacks.cgan import CganReconstruction, eavesdropper
from coterie.audit.case import Subject
from coterie.audit.curves import PRIVATE, REBUILT
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.pictured import lacking, shown, span
from coterie.audit.scene import claimed, play
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.learn.generative.duel import Bout
from coterie.measure.findings import Finding
from coterie.measure.judge import judge
from coterie.measure.likeness import STRANGERS, Holders, difference
from coterie.protocols.base import Trainer
from coterie.rng import Rng

ATTACK = "conditional GAN"
MOST_OTHERS = 4  # further clients of the cluster whose pictures stand beside the victim's


class ClientReconstruction(Family):
    name = "client reconstruction"
    limit = "reconstruction_identifiability"
    paper = "Shi et al., client-level cGAN reconstruction in clustered federated learning (after Hitaj et al. 2017)"
    question = "Does another client of the same cluster learn what a client's data look like?"
    threat = "A malicious client of the victim's cluster, which also taps the victim's uploads where they are open."
    method = (
        "Every round it trains a generator against a discriminator made of the cluster's model and of what it tapped, "
        "and to draw what would have moved the victim's model as it moved; from the third round on it puts mislabelled "
        "fakes into its uploads. Scored by how often the victim's pictures are the nearest to what it draws, among "
        "pools of equal size of the victim, of other clients of the cluster and of strangers; in the control strangers "
        "stand in the victim's place."
    )
    gallery = (
        "A picture of each of several classes as the victim has it, and as another client of its cluster draws it."
    )

    def admits(self, subject: Subject) -> str:
        return lacking(subject)

    def defences(self, subject: Subject) -> Sequence[Choice]:
        """Without the paper's own, adaptive LDP: it trains a generator a client, and takes longer than all the rest."""
        return [Choice(kind="plain_ldp"), Choice(kind="secure_sums")]

    def protocol(self, subject: Subject) -> Trainer[object]:
        trainer = subject.launched
        assert isinstance(trainer, Trainer)
        return replace(trainer, rounds=min(trainer.rounds, subject.audit.client_reconstruction.rounds))

    def differs(self, subject: Subject) -> str:
        return f"at most {subject.audit.client_reconstruction.rounds} rounds, in which one client is malicious"

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        rng, asked, case = Rng.seeded(seed), subject.audit.client_reconstruction, subject.case_of(defence, seed)
        federation, model, guard, trainer = case.federation, case.model, case.defence, self.protocol(subject)
        assert model is not None
        low, high = span(federation.examples)
        attacker, victim, others = pair(federation)
        own = Auxiliary(federation.examples.take(federation.train[attacker]))
        threat = eavesdropper(attacker, victim, asked.tapped)
        local = replace(trainer.local, poisson=False)
        attack = CganReconstruction(threat, victim, model, local, own, Bout(asked.steps, batch=40))
        played = play(trainer, federation, model, guard, rng, [threat], [attack])
        made = attack.pictures(played.ring.memory[-1], rng.child("pictures")).of
        guess = Pictures({name: (found - low) / (high - low) for name, found in made.items()})
        truth = holders(brought(federation, low, high), victim, [attacker, *others])
        knew, adversary = threat.knows, "client that taps the victim" if asked.tapped else "client of the same cluster"
        beyond = replace(difference(guess, truth, STRANGERS), knew=knew)
        control = judge(guess, without_the_victim(truth), f"{ATTACK}, strangers in the victim's place", knew)
        real: list[Finding] = [judge(guess, truth, ATTACK, knew), beyond]
        findings = [*real, replace(control, control=True, control_of=ATTACK)]
        classes = [name for name in guess.of if len(truth.victim.get(name, ()))][:10]
        rows = {PRIVATE: [truth.victim[name][0] for name in classes], REBUILT: [guess.of[name][0] for name in classes]}
        promise = claimed(guard.guarantee(trainer.facts(federation, subject.delta)))
        evidence = played.evidence([replace(one, adversary=adversary) for one in findings], promise)
        return replace(evidence, pictures=shown(rows, 0.0, 1.0))


def brought(federation: Federation, low: float, high: float) -> Federation:
    """With pixels in 0..1: cosines depend on where black is."""
    examples = federation.examples
    return replace(federation, examples=replace(examples, x=(examples.x - low) / (high - low)))


def pair(federation: Federation) -> tuple[int, int, list[int]]:
    """An attacker and its victim in the largest group, and some others of it."""
    groups = federation.groups.masked_fill(federation.sizes == 0, -2)
    if federation.joins is not None:
        groups = groups.masked_fill(federation.joins > 0, -2)
    largest = groups[groups > -2].mode().values
    attacker, *rest = (groups == largest).nonzero().flatten().tolist()
    if not rest:  # all are alone: somebody of another group
        rest = [int(client) for client in (groups > -2).nonzero().flatten() if int(client) != attacker]
    return attacker, rest[0], rest[1 : 1 + MOST_OTHERS]


def holders(federation: Federation, victim: int, others: Sequence[int]) -> Holders:
    """By class: the victim's, other clients', and strangers' pictures, who are the victim's test examples."""
    classes = range(federation.examples.classes)
    mine = _by_class(federation, federation.train[victim])
    theirs = [_by_class(federation, federation.train[client]) for client in others]
    strange = _by_class(federation, federation.test[victim])
    return Holders(mine, {name: [other[name] for other in theirs if len(other[name])] for name in classes}, strange)


def _by_class(federation: Federation, rows: Tensor) -> dict[Hashable, Tensor]:
    x, y = federation.examples.x[rows], federation.examples.y[rows]
    return {name: x[y == name] for name in range(federation.examples.classes)}


def without_the_victim(truth: Holders) -> Holders:
    """Half of the strangers in the victim's place, and the other half as themselves: nobody here was trained on."""
    halves = {name: pool.chunk(2) for name, pool in truth.strangers.items() if len(pool) > 1}
    first = {name: parts[0] for name, parts in halves.items()}
    nobody: dict[Hashable, list[Tensor]] = {name: [] for name in halves}
    return Holders(first, nobody, {name: parts[1] for name, parts in halves.items()})


FAMILY = ClientReconstruction()
