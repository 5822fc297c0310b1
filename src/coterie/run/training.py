"""Train a federation, in memory or in a run folder that survives being killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from coterie.data.federation import Federation
from coterie.errors import require
from coterie.flow.adversary import Adversary
from coterie.flow.ask import AnyAsk
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.models.model import Model, as_model
from coterie.learn.params import Params
from coterie.measure.cost import Stopwatch
from coterie.measure.utility import ACCURACY, Scores, evaluate
from coterie.measure.witness import Witness
from coterie.privacy.ledger import Ledger
from coterie.run.folder import Checkpoint, Measured, RunFolder
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic
from coterie.wire.view import ThreatModel, View

State = Any
"""A protocol's, which only the protocol understands."""

Progress = Callable[[int, Measured | None], None]
"""(rounds done, the newest measurement): called before each round and at the end."""


@dataclass(frozen=True)
class Outcome:
    """A trained federation."""

    models: Params  # leaves (slots, ...), as the clients have them
    scores: Scores
    history: list[Measured]
    state: State
    ledger: Ledger  # what was spent
    traffic: Traffic  # what travelled
    seconds: float  # a round of this session, without what was measured and saved on the way
    view: Callable[[ThreatModel], View] = field(repr=False)  # what an adversary saw, where a tape listened

    @property
    def accuracy(self) -> float:
        """The mean over clients of the accuracy on their own test data; a clustering has none (``scores.measure``)."""
        require(self.scores.measure == ACCURACY, "measure", self.scores.measure, "is no accuracy; use scores.mean")
        return self.scores.mean

    @property
    def cluster_sizes(self) -> list[int]:
        return self.scores.sizes


def train(
    protocol: AnyProtocol,
    federation: Federation,
    model: Model | nn.Module | Callable[[], nn.Module] | None = None,
    *,
    seed: int = 0,
    defence: Defence | None = None,
    evaluate_every: int = 10,
    folder: RunFolder | None = None,
    tape: Tape | None = None,
    adversaries: Sequence[Adversary] = (),
    witness: Witness | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run the protocol to its end, going on from the folder's checkpoint if it has one. Clusterings need no model."""
    defence = defence or Defence()
    if folder is not None:
        defence = defence.kept_in(folder.path)
    ring = Ring(
        protocol,
        federation,
        None if model is None else as_model(model),
        defence,
        Roots.seeded(seed),
        tape,
        adversaries,
        witness,
        processes=processes,
    )
    with folder.held() if folder else nullcontext(), ring:
        saved = folder.load() if folder else None
        watcher = _Watcher(ring, evaluate_every, folder, progress, list(saved.history) if saved else [], witness)
        if saved is None:
            state = ring.run(before_ask=watcher)
        else:
            ring.ledger.enter(saved.spent)
            ring.metrics.enter(saved.metrics)
            ring.traffic = saved.traffic
            if witness is not None and saved.witness is not None:
                witness.slots, witness.members = saved.witness.slots, saved.witness.members
            state = ring.run(saved.state, saved.memory, watcher)
        seconds = watcher.stopwatch.seconds_a_round
        scores = watcher.finish(state)
        models = ring.models(state)
        if folder is not None:
            folder.save(watcher.checkpoint(state))
            folder.finish(models)
    return Outcome(models, scores, watcher.history, state, ring.ledger, ring.traffic, seconds, ring.view)


@dataclass
class _Watcher:
    """Measures, saves and tells, before each request goes out."""

    ring: AnyRing
    every: int
    folder: RunFolder | None
    progress: Progress | None
    history: list[Measured]
    witness: Witness | None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def __call__(self, ask: AnyAsk) -> None:
        started = time.monotonic()
        self.stopwatch.note(ask)
        measured = self.history[-1]["round"] if self.history else 0
        due = ask.round > measured and ask.round % self.every == 0  # a round may have several requests
        if due and self.ring.protocol.serves(ask.state):
            self._measure(ask.round, ask.state)
        if self.folder is not None:
            self.folder.save(self.checkpoint(ask.state))
        if self.progress is not None:
            self.progress(ask.round, self.history[-1] if self.history else None)
        self.stopwatch.paused += time.monotonic() - started

    def checkpoint(self, state: State) -> Checkpoint:
        ring = self.ring
        return Checkpoint(
            state, ring.memory, self.history, ring.ledger.rows, ring.metrics.rows, ring.traffic, self.witness
        )

    def finish(self, state: State) -> Scores:
        scores = self._measure(state.round, state)
        if self.progress is not None:
            self.progress(state.round, self.history[-1])
        return scores

    def _measure(self, round: int, state: State) -> Scores:
        scores = evaluate(self.ring, state)
        if not self.history or self.history[-1]["round"] < round:
            row = {"round": round, scores.measure: scores.mean, "sizes": scores.sizes}
            self.history.append(row | self.ring.metrics.means())
        return scores
