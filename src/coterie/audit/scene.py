"""One federation trained for an attack: taped, witnessed and metered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coterie.audit.evidence import Evidence
from coterie.data.federation import Federation
from coterie.flow.adversary import Adversary
from coterie.flow.ask import AnyAsk
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.models.model import Model
from coterie.measure.claims import Promise, judge_guarantee
from coterie.measure.cost import Stopwatch, peak_memory
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.exhibits import Chart
from coterie.measure.findings import Finding
from coterie.measure.utility import Scores, evaluate
from coterie.measure.witness import Witness
from coterie.privacy.guarantee import Guarantee
from coterie.rng import Rng
from coterie.wire.messages import TRAIN
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

POINTS = 10  # of a curve over rounds


@dataclass(frozen=True)
class Played:
    """What there is after the run: for the attack the tape, for the judge the rest."""

    ring: AnyRing
    witness: Witness
    scores: Scores
    state: object
    seconds: float  # a round
    memory_bytes: float
    history: Sequence[tuple[int, float]] = ()  # round and accuracy

    @property
    def upload_bytes(self) -> float:
        """A client and round, what sets keys up included."""
        return self.ring.traffic.up_a_client

    def view(self, threat: ThreatModel) -> View:
        return self.ring.view(threat)

    def evidence(self, findings: Sequence[Finding], promise: Promise | None, charts: Sequence[Chart] = ()) -> Evidence:
        """What attacks found, beside what the run cost and how well it served its clients."""
        return Evidence(
            findings=findings,
            utility_measure=self.scores.measure,
            utility=self.scores.sample(),
            seconds=self.seconds,
            upload_bytes=self.upload_bytes,
            memory_bytes=self.memory_bytes,
            promise=promise,
            history=self.history,
            charts=charts,
        )


def play(
    protocol: AnyProtocol,
    federation: Federation,
    model: Model,
    defence: Defence,
    rng: Rng,
    threats: Sequence[ThreatModel],
    adversaries: Sequence[Adversary] = (),
) -> Played:
    witness = Witness()
    ring = Ring(protocol, federation, model, defence, Roots.same(rng), Tape(threats), adversaries, witness)
    with ring:
        watch = Watch(ring, max(1, getattr(protocol, "rounds", 1) // POINTS))
        state = ring.run(before_ask=watch)
        seconds = watch.stopwatch.seconds_a_round
        scores = watch.measure(getattr(state, "round", 0), state)
    return Played(ring, witness, scores, state, seconds, peak_memory(), watch.history)


@dataclass
class Watch:
    """Notes the accuracy on the way, and how long that took, which is no cost of the federation's."""

    ring: AnyRing
    every: int
    history: list[tuple[int, float]] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def __call__(self, ask: AnyAsk) -> None:
        self.stopwatch.note(ask)
        if ask.kind == TRAIN and ask.round % self.every == 0:
            started = time.monotonic()
            self.measure(ask.round, ask.state)
            self.stopwatch.paused += time.monotonic() - started

    def measure(self, round: int, state: object) -> Scores:
        scores = evaluate(self.ring, state)
        self.history.append((round, scores.mean))
        return scores


def claimed(guarantee: Guarantee | None, bounds: Sequence[EpsilonBound] = ()) -> Promise | None:
    """The guarantee judged by what was measured; None where nothing at all is said. All runs here are seeded."""
    return None if guarantee is None else judge_guarantee(replace(guarantee, simulated=True), bounds)
