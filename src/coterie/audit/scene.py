"""One federation trained for an attack: taped, witnessed and metered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coterie.audit.evidence import Evidence
from coterie.data.auxiliary import Auxiliary, reserve
from coterie.data.federation import Examples, Federation
from coterie.flow.drive import Tamperer, drive
from coterie.flow.guard import Defence
from coterie.flow.protocol import Ask, Protocol, Server
from coterie.flow.simulate import Simulator, population
from coterie.learn.models.model import Model
from coterie.measure.claims import Promise, judge_guarantee
from coterie.measure.cost import Meter, peak_memory
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.findings import Chart, Finding
from coterie.measure.intervals import Sample
from coterie.measure.utility import Scores, evaluate
from coterie.measure.witness import Witness
from coterie.privacy.guarantee import Guarantee
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

DELTA = 1e-5
PER_CLASS = 20  # examples of each class that a server holds
POINTS = 10  # of a curve over rounds


def held_back(examples: Examples, rng: Rng) -> tuple[Auxiliary, Examples]:
    """What the server has of its own, and what clients are made of: of a small class it has the smaller part."""
    smallest = int(torch.bincount(examples.y, minlength=examples.classes).min())
    return reserve(examples, max(1, min(PER_CLASS, smallest // 4)), rng)


@dataclass(frozen=True)
class Played:
    """What there is after the run: for the attack the tape, for the judge the rest."""

    tape: Tape
    witness: Witness
    scores: Scores
    state: Any
    seconds: float  # a round
    upload_bytes: float  # a client and round
    memory_bytes: float
    keys: dict[str, Any]
    history: Sequence[tuple[int, float]] = ()  # round and accuracy

    def view(self, threat: ThreatModel) -> View:
        return self.tape.view(threat, self.keys)

    def evidence(self, findings: Sequence[Finding], promise: Promise | None, charts: Sequence[Chart] = ()) -> Evidence:
        """What attacks found, beside what the run cost and how well it served its clients."""
        served = self.scores.accuracy[~self.scores.accuracy.isnan()]
        return Evidence(
            findings=findings,
            utility_measure="accuracy",
            utility=replace(Sample.average(served.tolist(), 0.0, 1.0), mean=self.scores.mean),
            seconds=self.seconds,
            upload_bytes=self.upload_bytes,
            memory_bytes=self.memory_bytes,
            promise=promise,
            history=self.history,
            charts=charts,
        )


def play(
    protocol: Protocol[Any],
    federation: Federation,
    model: Model,
    defence: Defence,
    rng: Rng,
    threats: Sequence[ThreatModel],
    tamperers: Sequence[Tamperer] = (),
) -> Played:
    tape = Tape(threats)
    server = Server(population(federation), model.init, defence.server, rng.child("server"))
    with Simulator(protocol, federation, model, defence.client, rng.child("clients")) as simulator:
        witness = Witness(simulator)
        meter = Meter(witness)
        watch = Watch(simulator, protocol, server, max(1, getattr(protocol, "rounds", 1) // POINTS))
        start = protocol.start(server)
        state = drive(protocol, start, server, meter, tape=tape, tamperers=tamperers, before_ask=watch)
        seconds = meter.seconds_a_round - watch.seconds / max(len(meter.rounds), 1)
        scores = watch.measure(getattr(state, "round", 0), state)
    keys = dict(getattr(defence, "keys", {}))
    return Played(tape, witness, scores, state, seconds, meter.bytes_a_client, peak_memory(), keys, watch.history)


@dataclass
class Watch:
    """Notes the accuracy on the way, and how long that took, which is no cost of the federation's."""

    simulator: Simulator
    protocol: Protocol[Any]
    server: Server
    every: int
    history: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0

    def __call__(self, ask: Ask[Any]) -> None:
        started = time.monotonic()
        if ask.kind == "train" and ask.round % self.every == 0:
            self.measure(ask.round, ask.state)
        self.seconds += time.monotonic() - started

    def measure(self, round: int, state: Any) -> Scores:
        scores = evaluate(self.simulator, self.protocol, state, self.server)
        self.history.append((round, scores.mean))
        return scores


def claimed(guarantee: Guarantee | None, bounds: Sequence[EpsilonBound] = ()) -> Promise | None:
    """The guarantee judged by what was measured; None where nothing at all is said."""
    return None if guarantee is None else judge_guarantee(guarantee, bounds)
