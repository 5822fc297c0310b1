"""What guesses at clients' preferences are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coterie.attacks.profiling_by_model import Rankings
from coterie.data.federation import Federation
from coterie.errors import require
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.judge import judge


@dataclass(frozen=True)
class Preferences:
    """The classes that each client prefers, out of so many."""

    labels: Mapping[int, frozenset[int]]
    classes: int

    @staticmethod
    def of(federation: Federation) -> Preferences:
        """A class is preferred by whoever holds more of it than if all were equally frequent there."""
        labels = {}
        for client in federation.train.sizes.nonzero().flatten().tolist():
            held = torch.bincount(
                federation.examples.y[federation.train[client]], minlength=federation.examples.classes
            )
            labels[client] = frozenset((held > held.sum() / len(held)).nonzero().flatten().tolist())
        return Preferences(labels, federation.examples.classes)


@judge.register
def _top_one(guess: Rankings, truth: Preferences, attack: str = "A2", knew: str = "") -> Finding:
    """How often the class ranked first is one that the client prefers."""
    asked = _asked(guess, truth)
    right = sum(guess.orders[client][0] in truth.labels[client] for client in asked)
    chance = sum(len(truth.labels[client]) for client in asked) / len(asked) / truth.classes
    return Finding.of(attack, "top-1 preference", Sample.share(right, len(asked)), chance, "clients", knew)


def judge_top_k(guess: Rankings, truth: Preferences, attack: str = "A2", knew: str = "") -> Finding:
    """The share of a client's k preferred classes among the first k of its ranking.

    A client counts as one unit, however many classes it prefers, which errs to the wide side.
    """
    asked = _asked(guess, truth)
    right = tries = 0
    chance = 0.0
    for client in asked:
        preferred = truth.labels[client]
        right += len(preferred.intersection(guess.orders[client][: len(preferred)]))
        tries += len(preferred)
        chance += len(preferred) ** 2 / truth.classes
    run = Sample.share(right / tries * len(asked), len(asked))
    return Finding.of(attack, "top-k preferences", run, chance / tries, "clients", knew)


def _asked(guess: Rankings, truth: Preferences) -> list[int]:
    asked = [client for client in guess.orders if truth.labels.get(client)]
    require(len(asked) > 0, "guess", "no client", "has a preference in the truth")
    return asked
