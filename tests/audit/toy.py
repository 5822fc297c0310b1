"""A family without training: its scores follow from the defence by a formula, so results can be worked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.audit.case import Subject, parse
from coterie.audit.evidence import Claimed, Evidence, Scored
from coterie.audit.family import Family
from coterie.config.schema import Choice


class Toy(Family):
    name = "toy"
    limit = "toy_auc"
    paper = "none"
    question = "Does the engine add up?"
    threat = "nobody"
    method = "a formula"

    def admits(self, subject: Subject) -> str:
        return "" if subject.model.kind == "fcnn" else "needs fcnn"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [noise(1.0), noise(4.0)]

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        strength = defence.options.get("strength", 0.0)
        score = 0.5 + 0.4 / (1 + strength) + 0.01 * seed
        suspicions = [0.1, 0.9, score], [False, True, True]
        curve = [(0, 0.5), (5, score)]
        scored = [
            Scored("guess", "curious server", "AUC", score, 0.5, suspicions=suspicions, by_round=curve),
            Scored("guess", "curious server", "AUC", 0.5 + 0.01 * (seed - 1), 0.5, control=True),
        ]
        claim = None
        if strength:
            claim = Claimed(
                "a promise", 10 / strength, 1e-5, "record", "trusted server", "not refuted", ["none"], 0.1 * seed
            )
        use, seconds = 0.95 - 0.05 * strength, 0.1 * (1 + strength)
        return Evidence(scored, "accuracy", use, seconds, 100.0, 1000.0, claim, history=[(0, 0.1 * seed), (5, use)])

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [(noise(strength), strength) for strength in (0.5, 1.0, 4.0)]


def noise(strength: float) -> Choice:
    return Choice.model_validate({"kind": "noise", "strength": strength})


def subject(**values: Any) -> Subject:
    return parse(values, "test")


FAMILY = Toy()
