"""A family of attacks. A file in ``families/`` with an object ``FAMILY`` joins by itself; ``plugins`` has one's own."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

from coterie.audit import families, reference
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.flow.protocol import AnyProtocol
from coterie.wire.view import ThreatModel


class Family(ABC):
    """One kind of attack: on what it can be run, against which defences, and how."""

    name: ClassVar[str]
    limit: ClassVar[str]  # what the gate calls its score: "property_auc" gives the limit max_property_auc
    chance: ClassVar[float | None] = None  # what guessing scores, where that is so on any data
    paper: ClassVar[str]
    question: ClassVar[str]
    threat: ClassVar[str]
    method: ClassVar[str]
    gallery: ClassVar[str] = ""  # the caption of its pictures, if it rebuilds any
    target: str = ""  # where a family of one's own was found; empty: it is ours

    @abstractmethod
    def admits(self, subject: Subject) -> str:
        """Why this federation cannot be attacked in this way; empty if it can."""

    @abstractmethod
    def defences(self, subject: Subject) -> Sequence[Choice]:
        """What to compare; ``none`` comes first."""

    def protocol(self, subject: Subject) -> AnyProtocol:
        """What it runs, as far as a defence must know it: a family may attack another than the configured trainer."""
        return subject.protocol(subject.trainers[0])

    def misfit(self, subject: Subject, choice: Choice) -> str:
        """Why a defence has no place in what this family runs; empty if it has."""
        return subject.why_not(choice, self.protocol(subject))

    def differs(self, subject: Subject) -> str:
        """Of a stress test, what it changed in the configured federation and why; empty: it attacks that very one.

        What a stress test finds stands apart: it enters the gate only by a limit that names it, and never the headline.
        """
        return ""

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        """Who listens to the reference run, for a family that reads its tape; empty: it runs something of its own."""
        return ()

    def read(self, run: ReferenceRun) -> Evidence:
        """What the tape of the reference run tells these adversaries."""
        raise NotImplementedError(f"family {self.name!r} names threats and does not read")

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        """What one run under one defence with one seed showed; a family without threats makes its own."""
        with reference.run(subject, defence, seed, self.threats(subject)) as run:
            return self.read(run)

    def admits_recording(self, recording: Recording) -> str:
        """Why what was written down cannot be attacked in this way; empty if it can."""
        return "needs to take part, and what was written down is over"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """The same attack on what was written down; nothing is trained but what the adversary imagines."""
        raise InvalidInput(f"family {self.name!r} {self.admits_recording(recording)}")

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        """Settings of one defence from weak to strong, with their strength, for the frontier; none by default."""
        return ()


def built_in() -> list[Family]:
    modules = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    return [import_module(f"{families.__name__}.{name}").FAMILY for name in modules]
