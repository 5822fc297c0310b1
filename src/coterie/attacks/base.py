"""The seam between an attack and everything else: it is handed a view and auxiliary data, and hands back a guess.

Attacks import ``wire``, ``learn`` and the auxiliary part of ``data``: never the simulator, a protocol or the truth.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from coterie.data.auxiliary import Auxiliary
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

Guess_co = TypeVar("Guess_co", covariant=True)


class Attack(Protocol[Guess_co]):
    """An adversary that only looks."""

    @property
    def threat(self) -> ThreatModel: ...

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Guess_co: ...


@dataclass(frozen=True)
class Suspicions:
    """A score for each of several yes-or-no questions; the higher, the likelier the yes.

    The keys name the questions: ``(round, cluster)`` for a property, a record's number for its membership.
    """

    scores: Mapping[Hashable, float]


@dataclass(frozen=True)
class Attributions:
    """One label out of several for each of several questions, such as a client's favourite class."""

    labels: Mapping[Hashable, int]


@dataclass(frozen=True)
class Pictures:
    """Several pictures for each of several questions: of a class as a client has it, or of the batch that it used."""

    of: Mapping[Hashable, Tensor]  # each (pictures, channels, rows, columns)
