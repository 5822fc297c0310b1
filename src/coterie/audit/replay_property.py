"""Property inference on a recording: the live attack, with the data that the user names as the adversary's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coterie.attacks.base import Suspicions
from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.updates import Features
from coterie.audit.evidence import Evidence
from coterie.audit.recorded import Recording
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.data.partition.dealing import value_of
from coterie.flow.guard import Defence
from coterie.learn.models.model import Model
from coterie.measure.exhibits import Chart, Series, Suspected
from coterie.measure.findings import Finding
from coterie.measure.judge import judge, over_victims
from coterie.protocols.base import AnyTrainer, ModelTrainer, Trainer
from coterie.rng import Rng

ATTACK, ADVERSARY, FAMILY = "passive inference", "curious client", "property inference"


def lacking(recording: Recording) -> str:
    """Why it cannot be run; empty if it can."""
    if recording.subject.audit.property is None:
        return "no property is named: set audit.property = { tag = ..., value = ... }"
    if not recording.has_published:
        return "needs published models, and none was recorded"
    trainer = recording.subject.launched
    return not_imagined(trainer) if isinstance(trainer, Trainer) else ""


def not_imagined(trainer: AnyTrainer) -> str:
    """What clients or the server do that the attack does not know of, so that finding nothing would bound nothing.

    A client's moments that go on from round to round are in every update. A server's are in every move, and can be
    undone by those alone who have seen every round.
    """
    if carries(trainer):
        return "needs clients whose optimisers begin anew in every round, as imagined ones do (local.carry = false)"
    if isinstance(trainer, ModelTrainer) and trainer.server_step is not None and trainer.participation < 1:
        return "needs participation = 1: whoever misses rounds cannot undo what the server's optimiser does"
    return ""


def carries(trainer: AnyTrainer) -> bool:
    """Whether clients keep an optimiser's moments from round to round."""
    return trainer.local.carry and bool(trainer.local.moments)


def replay(
    attack_on: Callable[[Model, AnyTrainer, Defence, int], PassiveProperty],
    ways_of: Callable[[Model], Mapping[str, Features]],
    recording: Recording,
    seed: int,
) -> Evidence:
    """``attack_on`` makes the family's own attack for a model, a trainer, a defence and so many clients."""
    threat = replace(property_threat(), clients=frozenset(recording.options.adversary))
    examples, view = recording.subject.examples(seed), recording.view(threat)
    model, guard = recording.model(view, examples), recording.defence
    attack = attack_on(model, recording.trainer, guard, recording.clients)
    attack = replace(attack, threat=threat, warmup=recording.options.warmup)
    ways = ways_of(model)
    known, streams = auxiliary(recording, examples), Rng.seeded(seed).child("attack")
    guesses = attack.infer_by(view, known, streams, tuple(ways.values()))
    truth = recording.truth.used_property()
    findings, suspected, charts = [], [], []
    for way, guess in zip(ways, guesses, strict=True):
        finding = Finding.unscored(ATTACK + way, "AUC", 0.5, threat.knows)
        if truth is not None:
            finding = over_victims([judge(guess, truth, ATTACK + way, threat.knows)])
        findings.append(replace(finding, adversary=ADVERSARY))
        suspected.append(_suspected(guess, ATTACK + way))
        charts.append(_chart(guess, way))
    return Evidence.of_recording(findings, suspected, charts)


def auxiliary(recording: Recording, examples: Examples) -> Auxiliary:
    asked = recording.subject.audit.property
    assert asked is not None
    value = value_of(examples, asked.tag, asked.value)
    return Auxiliary.by_property(examples, examples.tags[asked.tag] == value)


def _by_cluster(guess: Suspicions) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for key, score in guess.scores.items():
        assert isinstance(key, tuple)
        found.setdefault(key[1], []).append((key[0], score))
    return found


def _suspected(guess: Suspicions, attack: str) -> Suspected:
    rows = [
        (f"round {round}, cluster {slot}", f"{score:.3f}")
        for slot, scores in _by_cluster(guess).items()
        for round, score in scores
    ]
    rows.sort(key=lambda row: -float(row[1]))
    return Suspected(FAMILY, attack, ADVERSARY, "round and cluster", "suspicion", rows)


def _chart(guess: Suspicions, way: str) -> Chart:
    series = [
        Series(f"cluster {slot}", [float(round) for round, _ in scores], [score for _, score in scores])
        for slot, scores in sorted(_by_cluster(guess).items())
    ]
    caption = "How sure the attack is that somebody in the cluster used property data in this round."
    return Chart(f"Suspicion{way}, round by round", caption, "round", "suspicion", series, family=FAMILY)
