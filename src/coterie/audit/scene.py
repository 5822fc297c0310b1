"""One federation trained for an attack: taped, witnessed and metered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.audit.family import Claimed, Evidence, Scored
from coterie.data.federation import Federation
from coterie.flow.drive import Tamperer, drive
from coterie.flow.guarantee import Guarantee
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol, Server
from coterie.flow.rng import Rng
from coterie.flow.simulate import Simulator, population
from coterie.learn.model import Model
from coterie.measure.claims import judge_guarantee
from coterie.measure.cost import Meter, peak_memory
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.utility import Scores, evaluate
from coterie.measure.witness import Witness
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

DELTA = 1e-5


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

    def view(self, threat: ThreatModel) -> View:
        return self.tape.view(threat, self.keys)

    def evidence(self, scored: Sequence[Scored], claim: Claimed | None, **more: Any) -> Evidence:
        """What an attack scored, beside what the run cost and how well it served its clients."""
        return Evidence(
            scored=scored,
            utility_measure="accuracy",
            utility=self.scores.mean,
            seconds=self.seconds,
            upload_bytes=self.upload_bytes,
            memory_bytes=self.memory_bytes,
            claim=claim,
            **more,
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
        state = drive(protocol, protocol.start(server), server, meter, tape=tape, tamperers=tamperers)
        seconds = meter.seconds_a_round
        scores = evaluate(simulator, protocol, state)
    keys = dict(getattr(defence, "keys", {}))
    return Played(tape, witness, scores, state, seconds, meter.bytes_a_client, peak_memory(), keys)


def claimed(guarantee: Guarantee | None, bounds: Sequence[EpsilonBound] = ()) -> Claimed | None:
    """The guarantee judged by what was measured; None where nothing at all is said."""
    if guarantee is None:
        return None
    verdict = judge_guarantee(guarantee, bounds)
    return Claimed(
        text=str(guarantee),
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        level=guarantee.level.value,
        trust=guarantee.trust.value,
        outcome=verdict.outcome.value,
        evidence=verdict.evidence,
        lower_bound=max((bound.epsilon for bound in bounds), default=None),
    )
