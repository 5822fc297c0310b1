"""What guesses at clients' preferences are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """How often the class ranked first is one that the client prefers.

    Chance is what the best answer scores that is the same for everybody: where clients share an imbalance of labels,
    whoever names the commonest class is mostly right and has learnt nothing of any client.
    """
    asked = _asked(guess, truth)
    right = sum(guess.orders[client][0] in truth.labels[client] for client in asked)
    _, most = _liked(truth, asked)[0]
    chance = most / len(asked)
    return Finding.of(attack, "top-1 preference", Sample.share(right, len(asked)), chance, "clients", knew)


def judge_top_k(guess: Rankings, truth: Preferences, attack: str = "A2", knew: str = "") -> Finding:
    """The share of a client's k preferred classes among the first k of its ranking.

    A client counts as one unit, however many classes it prefers, which errs to the wide side. Chance is what the
    classes score in the order of how many clients prefer them, the same for everybody, or at random if that is more.
    """
    asked = _asked(guess, truth)
    common = [label for label, _ in _liked(truth, asked)]
    right = same = tries = 0
    blind = 0.0
    for client in asked:
        preferred = truth.labels[client]
        right += len(preferred.intersection(guess.orders[client][: len(preferred)]))
        same += len(preferred.intersection(common[: len(preferred)]))
        tries += len(preferred)
        blind += len(preferred) ** 2 / truth.classes
    run = Sample.share(right / tries * len(asked), len(asked))
    return Finding.of(attack, "top-k preferences", run, max(same, blind) / tries, "clients", knew)


def _liked(truth: Preferences, asked: Sequence[int]) -> list[tuple[int, int]]:
    """Classes, and how many of these clients prefer each: the commonest first."""
    counts = Counter(label for client in asked for label in truth.labels[client])
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def _asked(guess: Rankings, truth: Preferences) -> list[int]:
    asked = [client for client in guess.orders if truth.labels.get(client)]
    require(len(asked) > 0, "guess", "no client", "has a preference in the truth")
    return asked
