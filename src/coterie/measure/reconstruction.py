"""How near a rebuilt vector is to the truth: the cosine of the two, over trials."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.reconstruction import Rebuilt
from coterie.errors import require
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import labels_of
from coterie.learn.params import Params
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.judge import judge


@dataclass(frozen=True)
class Originals:
    """The right vectors."""

    vectors: Mapping[Hashable, Tensor]


def cosine(guess: Tensor, truth: Tensor) -> float:
    """0 where either has no length."""
    return float(torch.nn.functional.cosine_similarity(guess.double(), truth.double(), dim=0))


def cosines(guess: Rebuilt, truth: Originals) -> list[float]:
    keys = [key for key in guess.vectors if key in truth.vectors]
    require(len(keys) > 0, "guess", "no question", "has an answer in the truth")
    return [cosine(guess.vectors[key], truth.vectors[key] - guess.origins[key]) for key in keys]


@judge.register
def _rebuilt(guess: Rebuilt, truth: Originals, attack: str = "attack", knew: str = "") -> Finding:
    return finding(cosines(guess, truth), attack, knew)


def finding(found: Sequence[float], attack: str, knew: str = "") -> Finding:
    """The mean cosine of several trials with Student's interval; a vector that says nothing scores 0."""
    return Finding.of(attack, "cosine", Sample.average(found, -1.0, 1.0), 0.0, "records", knew)


def client_shift(points: Tensor, public: Params) -> Tensor:
    """How far a client's mean lies from what the centres of its points would make it, (features,)."""
    return (points - public["centres"][labels_of(Points.of([points]), public)]).mean(0)
