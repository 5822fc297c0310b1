"""A family without training: its scores follow from the defence by a formula, so results can be worked out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.audit.case import Subject, parse
from coterie.audit.engine import audit
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.config.schema import Choice
from coterie.flow.guard import Defence
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import AuditResult, Finding
from coterie.measure.intervals import Sample
from coterie.measure.roc import Curve
from coterie.privacy.guarantee import Guarantee, Level, Trust

UNITS = 1000


@dataclass(frozen=True)
class Noise(Defence):
    """A defence that the configuration can name; the toy's formula does the rest."""

    strength: float = 1.0


class Toy(Family):
    name = "toy"
    limit = "toy_auc"
    paper = "none"
    question = "Does the engine add up?"
    threat = "nobody"
    method = "a formula"

    def admits(self, subject: Subject) -> str:
        return "" if subject.trainers[0].kind == "ifca" else "needs ifca"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [noise(1.0), noise(4.0)]

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        strength = defence.options.get("strength", 0.0)
        score = 0.5 + 0.4 / (1 + strength) + 0.01 * seed
        real = replace(found(score), roc=Curve([0, 0, 1], [0, 2 * score - 1, 1]), by_round=[(0, 0.5), (5, score)])
        control = replace(found(0.5 + 0.01 * (seed - 1)), control=True)
        promise = None
        if strength:
            guarantee = Guarantee(10 / strength, 1e-5, Level.RECORD, Trust.TRUSTED_AGGREGATOR)
            promise = Promise(guarantee, 0.1 * seed, Outcome.HOLDS, [f"seed {seed}"])
        use, seconds = 0.95 - 0.05 * strength, 0.1 * (1 + strength)
        utility = Sample.average([use - 0.01, use, use + 0.01], 0.0, 1.0)
        history = [(0, 0.1 * seed), (5, use)]
        return Evidence([real, control], "accuracy", utility, seconds, 100.0, 1000.0, promise, history)

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [(noise(strength), strength) for strength in (0.5, 1.0, 4.0)]


@dataclass(frozen=True)
class AsConfigured:
    """The reference run, by the same formula."""

    subject: Subject
    defence: Choice
    seed: int

    def evidence(self) -> Evidence:
        return replace(FAMILY.measure(self.subject, self.defence, self.seed), findings=(), history=())


@contextmanager
def as_configured(subject: Subject, defence: Choice, seed: int, threats: Sequence[object]) -> Iterator[AsConfigured]:
    yield AsConfigured(subject, defence, seed)


def found(score: float, units: int = UNITS) -> Finding:
    finding = Finding.of("guess", "AUC", Sample.share(score * units, units), 0.5, "clients", "nothing")
    return replace(finding, adversary="curious server")


def noise(strength: float) -> Choice:
    return Choice.model_validate({"kind": "noise", "strength": strength})


PLAIN = {
    "data": {"kind": "digits"},
    "partition": {"kind": "label_sets", "clients": 10},
    "model": {"kind": "fcnn", "hidden": 4},
}


def subject(**values: Any) -> Subject:
    return parse(PLAIN | values, "test")


FAMILY = Toy()


def run(folder: Path, **values: object) -> AuditResult:
    return audit(subject(**values), folder, processes=1)
