"""The reference run: the federation exactly as it is configured, trained as ``coterie train`` trains it.

How well it serves its clients, what it costs and what it spends is read off this run, and so is every attack that asks
for no more than what travelled: one run for each defence and seed serves them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.numerics import beside_numerics, numerics_of
from coterie.config.built import Case
from coterie.config.schema import Choice
from coterie.measure.baselines import without_federation
from coterie.measure.claims import judge_guarantee
from coterie.measure.cost import peak_memory
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.exhibits import Chart
from coterie.measure.findings import UNDEFENDED, Finding
from coterie.measure.numerics.audit import NumericsAudit
from coterie.measure.utility import utility_in
from coterie.measure.witness import Witness
from coterie.rng import Rng
from coterie.run.training import Outcome, train
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

AS_CONFIGURED = "the federation as configured"
POINTS = 10  # of a curve over rounds
IN_MEMORY = 1 << 29  # bytes of messages; a tape that may grow beyond lies on disk


@dataclass(frozen=True)
class ReferenceRun:
    """What there is after the run: for attacks the tape, for judges the rest."""

    subject: Subject
    choice: Choice  # the defence, in words
    case: Case
    done: Outcome
    witness: Witness
    memory_bytes: float

    @property
    def rng(self) -> Rng:
        """For what an adversary draws."""
        return Rng.seeded(self.case.seed).child("attack")

    @property
    def first(self) -> bool:
        """Whether this is the first seed: pictures and plots are drawn of one run."""
        return self.case.seed == self.subject.seed

    def view(self, threat: ThreatModel) -> View:
        return self.done.view(threat)

    @cached_property
    def numerics(self) -> NumericsAudit | None:
        return numerics_of(self.case.promise, self.case.defence, self.rng, self.case.seed - self.subject.seed)

    @cached_property
    def without(self) -> dict[str, list[float]]:
        """By baseline, what each client would have without the federation: of the undefended run, for all."""
        if self.choice.kind != UNDEFENDED:
            return {}
        case = self.case
        found = without_federation(case.protocol, case.federation, case.model, case.seed)
        return {name: values.tolist() for name, values in found.items()}

    def evidence(
        self,
        findings: Sequence[Finding] = (),
        bounds: Sequence[EpsilonBound] = (),
        charts: Sequence[Chart] = (),
        pictures: Mapping[str, Sequence[str]] | None = None,
    ) -> Evidence:
        """What attacks found, beside what the run cost and how it served; ``bounds`` are held against the claim."""
        promise, scores = self.case.promise, self.done.scores
        if promise is not None and bounds:
            promise = judge_guarantee(promise.guarantee, bounds)
        promise = beside_numerics(promise, self.numerics)
        rows = [(row["round"], found) for row in self.done.history if (found := utility_in(row)) is not None]
        return Evidence(
            findings=findings,
            utility_measure=scores.measure,
            utility=scores.sample(),
            seconds=self.done.seconds,
            upload_bytes=self.done.traffic.up_a_client,
            memory_bytes=self.memory_bytes,
            promise=promise,
            history=[(round, found[1]) for round, found in rows],
            charts=charts,
            pictures=pictures or {},
            spent=self.case.spent(self.done.ledger),
            by_client=scores.values.tolist(),
            without=self.without,
            clusters="" if self.case.model is None else self.done.clusters.words,
        )


@contextmanager
def run(subject: Subject, defence: Choice, seed: int, threats: Sequence[ThreatModel] = ()) -> Iterator[ReferenceRun]:
    """The first trainer's: what an audit is of. ``threats``: who listens."""
    case = subject.case_of(defence, seed)
    every = subject.evaluate_every if subject.stop else max(1, getattr(case.protocol, "rounds", 1) // POINTS)
    witness = Witness()
    with tempfile.TemporaryDirectory(prefix="coterie-tape-") as folder:
        large = _bytes(case) > IN_MEMORY
        tape = Tape(list(dict.fromkeys(threats)), Path(folder) if large else None) if threats else None
        done = train(
            case.protocol,
            case.federation,
            case.model,
            seed=seed,
            defence=case.defence,
            evaluate_every=every,
            tape=tape,
            witness=witness,
            stop=subject.stop,
            device=subject.device,
        )
        yield ReferenceRun(subject, defence, case, done, witness, peak_memory())


def _bytes(case: Case) -> int:
    """About what clients send in all of a run: every model of everybody."""
    if case.model is None:
        return 0
    size = 4 * sum(leaf.numel() for leaf in case.model.init(0).values())
    return size * case.protocol.models_a_round * case.federation.clients * int(getattr(case.protocol, "rounds", 1))
