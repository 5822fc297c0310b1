"""Train a federation, in memory or in a run folder that survives being killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from coterie.data.federation import Federation
from coterie.flow.drive import Tamperer, drive
from coterie.flow.guard import Defence, Turn
from coterie.flow.protocol import Ask, Protocol, Server
from coterie.flow.simulate import Simulator, population
from coterie.learn.models.model import Model, as_model
from coterie.learn.params import Params
from coterie.measure.utility import Scores, evaluate
from coterie.rng import Rng
from coterie.run.folder import Checkpoint, RunFolder
from coterie.wire.tape import Tape

Progress = Callable[[int, dict[str, Any] | None], None]
"""(rounds done, the newest measurement): called before each round and at the end."""


@dataclass(frozen=True)
class Outcome:
    """A trained federation."""

    models: Params  # leaves (slots, ...), as the clients have them
    scores: Scores
    history: list[dict[str, Any]]
    state: Any

    @property
    def accuracy(self) -> float:
        """The mean over clients of the accuracy on their own test data."""
        return self.scores.mean

    @property
    def cluster_sizes(self) -> list[int]:
        return self.scores.sizes


def train(
    protocol: Protocol[Any],
    federation: Federation,
    model: Model | nn.Module | Callable[[], nn.Module],
    *,
    seed: int = 0,
    defence: Defence | None = None,
    evaluate_every: int = 10,
    folder: RunFolder | None = None,
    tape: Tape | None = None,
    tamperers: Sequence[Tamperer] = (),
    processes: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run the protocol to its end, going on from the folder's checkpoint if it has one."""
    model, defence, rng = as_model(model), defence or Defence(), Rng.seeded(seed)
    if folder is not None:
        defence = defence.kept_in(folder.path)
    server = Server(population(federation), model.init, defence.server, rng.child("server"))
    simulator = Simulator(protocol, federation, model, defence.client, rng.child("clients"), processes=processes)
    with folder.held() if folder else nullcontext(), simulator:
        saved = folder.load() if folder else None
        if saved is not None:
            simulator.memory = dict(saved.memory)
        history = list(saved.history) if saved else []
        watcher = _Watcher(protocol, simulator, server, evaluate_every, folder, progress, history)
        state = protocol.start(server) if saved is None else saved.state
        state = drive(protocol, state, server, simulator, tape=tape, tamperers=tamperers, before_ask=watcher)
        scores = watcher.finish(state)
        models = simulator.guard.receive(protocol.result(state), Turn(state.round, simulator.rng))
        if folder is not None:
            folder.save(Checkpoint(state, simulator.memory, watcher.history))
            folder.finish(models)
    return Outcome(models, scores, watcher.history, state)


@dataclass
class _Watcher:
    """Measures, saves and tells, before each request goes out."""

    protocol: Protocol[Any]
    simulator: Simulator
    server: Server
    every: int
    folder: RunFolder | None
    progress: Progress | None
    history: list[dict[str, Any]]

    def __call__(self, ask: Ask[Any]) -> None:
        measured = self.history[-1]["round"] if self.history else 0
        if ask.round > measured and ask.round % self.every == 0:  # a round may have several requests
            self._measure(ask.round, ask.state)
        if self.folder is not None:
            self.folder.save(Checkpoint(ask.state, self.simulator.memory, self.history))
        if self.progress is not None:
            self.progress(ask.round, self.history[-1] if self.history else None)

    def finish(self, state: Any) -> Scores:
        scores = self._measure(state.round, state)
        if self.progress is not None:
            self.progress(state.round, self.history[-1])
        return scores

    def _measure(self, round: int, state: Any) -> Scores:
        scores = evaluate(self.simulator, self.protocol, state, self.server)
        if not self.history or self.history[-1]["round"] < round:
            self.history.append({"round": round, "accuracy": scores.mean, "sizes": scores.sizes})
        return scores
