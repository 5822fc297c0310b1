"""Train a federation, in memory or in a run folder that survives being killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coterie.data.federation import as_tensor
from coterie.data.lazy import AnyFederation, shown_by
from coterie.errors import InvalidInput, require
from coterie.flow.adversary import Adversary
from coterie.flow.ask import AnyAsk
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.models.device import OnDevice, usable
from coterie.learn.models.mixture import Mixture
from coterie.learn.models.model import Model, as_model
from coterie.learn.params import Params, pick
from coterie.learn.targets import CLASSES, MULTI_LABEL, Targets, targets
from coterie.measure.cost import Stopwatch
from coterie.measure.groups import Clusters
from coterie.measure.own_metrics import Metric, mean_of
from coterie.measure.stopping import Patience
from coterie.measure.utility import ACCURACY, COST, HIGHER_IS_BETTER, Scores, evaluate, utility_in
from coterie.measure.witness import Witness
from coterie.privacy.ledger import Ledger
from coterie.protocols.base import Trainer
from coterie.protocols.starts import Start
from coterie.run.fitting import require_fit
from coterie.run.folder import SECRETS, Checkpoint, Measured, RunFolder
from coterie.run.origin import root_of, set_to
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic
from coterie.wire.view import ThreatModel, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    simulated: bool = True  # whether the noise came from a seed: then it hides nothing from whoever has that
    model: Model | None = None  # the architecture; clusterings have none
    groups: Tensor = field(default_factory=lambda: torch.empty(0))  # (clients,): the true ones, -1 where there is none
    kind: Targets = CLASSES  # what is predicted

    def __repr__(self) -> str:
        sizes = self.cluster_sizes
        models = f"{len(sizes)} models for {sizes} clients" if len(sizes) > 1 else f"1 model for {sum(sizes)} clients"
        rounds = f"{self.history[-1]['round']} rounds" if self.history else "not measured"
        sent = f"{self.traffic.up_a_client / 1e6:.3g} MB up a client and round"
        return f"Outcome({self.scores.measure} {self.scores.mean:.4f}, {models}, {rounds}, {sent})"

    @property
    def accuracy(self) -> float:
        """The mean over clients of the accuracy on their own test data; a clustering has none (``scores.measure``)."""
        require(self.scores.measure == ACCURACY, "measure", self.scores.measure, "is no accuracy; use scores.mean")
        return self.scores.mean

    @property
    def cluster_sizes(self) -> list[int]:
        return self.scores.sizes

    @property
    def clusters(self) -> Clusters:
        """Who is where, how well each cluster is served, and how far that agrees with the known groups."""
        return Clusters.of(self.scores, self.groups)

    def module(self, client: int | None = None, *, slot: int | None = None) -> nn.Module:
        """A plain module: a client's own, or a slot's. A client that mixes several models has a mixture of modules."""
        if self.model is None:
            raise InvalidInput("model=None: a clustering has centres and no module; see outcome.models")
        require((client is None) != (slot is None), "client, slot", (client, slot), "must be one of the two")
        if slot is not None:
            slots = self.scores.choices.shape[1]
            require(0 <= slot < slots, "slot", slot, f"must be 0 to {slots - 1}")
            return self.model.module(pick(self.models, slot))
        clients = len(self.scores.choices)
        require(client is not None and 0 <= client < clients, "client", client, f"must be 0 to {clients - 1}")
        weights = self.scores.choices[client]
        used = weights.nonzero().flatten().tolist()
        modules = [self.model.module(pick(self.models, slot)) for slot in used]
        return modules[0] if len(modules) == 1 else Mixture(modules, weights[used], self.kind)

    def predict(self, x: object, client: int) -> Tensor:
        """What a client's model says of these examples: classes, truth values of labels, or numbers."""
        module = self.module(client).eval()
        with torch.no_grad():
            outputs: Tensor = module(as_tensor(x))
        if self.kind is CLASSES:
            return outputs.argmax(-1)
        return outputs > 0 if self.kind is MULTI_LABEL else outputs

    def state_dict(self, client: int) -> dict[str, Tensor]:
        """Of a client's model, for ``load_state_dict`` of the same architecture."""
        return dict(self.module(client).state_dict())

    def plot(self) -> Axes:
        """What was measured round by round, as an axes of matplotlib."""
        from matplotlib.figure import Figure

        require(len(self.history) > 0, "history", [], "must have a measurement; set evaluate_every")
        axes = Figure().add_subplot()
        rows = [row for row in self.history if self.scores.measure in row]
        axes.plot([row["round"] for row in rows], [row[self.scores.measure] for row in rows], marker="o")
        axes.set_xlabel("round")
        axes.set_ylabel(f"{self.scores.measure}, mean over clients")
        return axes

    def models_of_clients(self) -> dict[str, Tensor]:
        """(clients, ...): the model that each client uses most, from which it may be fine-tuned."""
        return pick(self.models, self.scores.choices.argmax(1))


def train(
    protocol: AnyProtocol,
    federation: AnyFederation,
    model: Model | nn.Module | Callable[[], nn.Module] | None = None,
    *,
    seed: int | None = 0,
    defence: Defence | None = None,
    evaluate_every: int = 10,
    folder: RunFolder | None = None,
    tape: Tape | None = None,
    adversaries: Sequence[Adversary] = (),
    witness: Witness | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    ledger: Ledger | None = None,
    start: Start | None = None,
    stop: Patience | None = None,
    device: str = "cpu",
    metrics: Mapping[str, Metric] | None = None,
    secret: bool = False,
) -> Outcome:
    """Run the protocol to its end, going on from the folder's checkpoint if it has one. Clusterings need no model.

    ``seed=None`` takes everything from the operating system: noise that nobody knows, and a run that cannot be resumed.
    ``ledger`` composes over all runs that it is handed to, and refuses one that would spend more than it has left.
    ``start`` is the trainer's ``begins``; with ``stop`` a run may end early. On another ``device`` ("cuda", "mps")
    clients train and evaluate there; what travels, noise and the server stay on the CPU. ``metrics`` are measures of
    your own, by name: functions of what a client predicts (class probabilities (rows, classes); see ``Metric``) and the
    truth; their means over clients are in the history. With ``secret`` noise does not follow from the seed: its root
    comes from the operating system and is kept in the folder, for its owner alone, so that the run can be resumed.
    """
    defence = defence or Defence()
    require(folder is not None or not secret, "secret", secret, "needs a folder to keep its root in; or pass seed=None")
    if stop is not None:
        _require_trainer(protocol, "stop")
    if start is not None:
        _require_trainer(protocol, "start")
        protocol = replace(protocol, begins=start)  # type: ignore[type-var]
    with folder.held() if folder else nullcontext():  # keys and secrets are made by whoever holds the run
        if folder is not None:
            defence = defence.kept_in(folder.path)
        roots, settings = Roots.from_entropy() if seed is None else Roots.seeded(seed), set_to(protocol, defence, model)
        secrets = folder.secrets() if folder is not None and secret else roots.secrets
        root = "" if folder is None else root_of(secrets, federation)
        name = "" if folder is None else f"{folder.path.absolute()} {root} {settings}"
        if secret:  # with others' coins and noise, two runs would tell more than both of them cost
            roots = replace(roots, secrets=secrets.child("settings", settings))
        with _room(ledger, protocol, defence, federation, name, roots.secrets.reproducible) as own:
            ring = Ring(
                protocol,
                federation,
                None if model is None else _on(device, as_model(model)),
                defence,
                roots,
                tape,
                adversaries,
                witness,
                processes=processes,
                ledger=own,
            )
            if ring.model is not None:
                require_fit(ring.model, shown_by(federation), type(ring.model).__name__)
            return _trained(_Watcher(ring, evaluate_every, folder, root, progress, witness, stop, metrics or {}))


def _room(
    ledger: Ledger | None,
    protocol: AnyProtocol,
    defence: Defence,
    federation: AnyFederation,
    name: str,
    simulated: bool,
) -> AbstractContextManager[Ledger]:
    """The ledger to write to: one that is the run's own, or such a one in the room that a larger one has for it.

    A run is known by its folder, its secrets, its data and its settings: in the same folder, but with others, it is
    another run. It may repeat a round that was under way, and what it then releases is not what was.
    """
    if ledger is None:
        return nullcontext(Ledger())
    run = protocol.facts(federation, ledger.delta)
    require(run is not None, "protocol", type(protocol).__name__, "must tell its facts, or nobody knows its cost")
    assert run is not None
    claim = defence.guarantee(run)
    seeded = None if claim is None else replace(claim, simulated=simulated)
    return ledger.reserve(seeded, defence.events(run), name)


def _trained(watcher: _Watcher) -> Outcome:
    ring, folder = watcher.ring, watcher.folder
    with ring:
        saved = watcher.resumed()
        try:
            state = ring.run(saved.state, saved.memory, watcher) if saved else ring.run(before_ask=watcher)
        except _Enough as end:
            state = end.state
        seconds = watcher.stopwatch.seconds_a_round
        scores = watcher.finish(state)
        models = ring.models(state)
        ring.hand_out(state)
        if folder is not None:
            folder.save(watcher.checkpoint(state))
            folder.finish(models)
    return Outcome(
        models,
        scores,
        watcher.history,
        state,
        ring.ledger,
        ring.traffic,
        seconds,
        ring.view,
        ring.roots.secrets.reproducible,
        ring.model,
        ring.federation.groups,
        targets(shown_by(ring.federation).y),
    )


def _on(device: str, model: Model) -> Model:
    where = usable(device)
    return model if where.type == "cpu" else OnDevice(model, where)


def _require_trainer(protocol: AnyProtocol, what: str) -> None:
    require(isinstance(protocol, Trainer), what, type(protocol).__name__, "is no trainer of models; leave it out")


class _Enough(Exception):
    """The rule for stopping applies before a request went out; the state is what that request started from."""

    def __init__(self, state: State) -> None:
        self.state = state


@dataclass
class _Watcher:
    """Measures, saves and tells, before each request goes out."""

    ring: AnyRing
    every: int
    folder: RunFolder | None
    root: str
    progress: Progress | None
    witness: Witness | None
    stop: Patience | None
    metrics: Mapping[str, Metric]
    history: list[Measured] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def resumed(self) -> Checkpoint | None:
        """The folder's checkpoint, if it has one, with what was measured, spent and witnessed before it."""
        saved, ring = self.folder.load() if self.folder else None, self.ring
        if saved is None:
            return None
        require(
            saved.root in ("", self.root),
            "seed, secrets or data",
            "others than the run's",
            f"would release again what may be out already, and nobody would have paid for it; resume with its own "
            f"seed, {SECRETS} and data",
        )
        self.history = list(saved.history)
        ring.ledger.enter(saved.spent)
        ring.metrics.enter(saved.metrics)
        ring.traffic = saved.traffic
        if self.witness is not None and saved.witness is not None:
            self.witness.slots, self.witness.members = saved.witness.slots, saved.witness.members
        return saved

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
        measured_now = bool(self.history) and self.history[-1]["round"] == ask.round
        if self.stop is not None and measured_now and self.stop.enough(self._scores()):
            raise _Enough(ask.state)
        self.stopwatch.paused += time.monotonic() - started

    def _scores(self) -> list[float]:
        """One a measurement; the more the better."""
        found = [utility_in(row) for row in self.history]
        return [value if HIGHER_IS_BETTER[name] else -value for name, value in filter(None, found)]

    def checkpoint(self, state: State) -> Checkpoint:
        ring = self.ring
        return Checkpoint(
            state,
            ring.memory,
            self.history,
            ring.ledger.rows,
            ring.metrics.rows,
            ring.traffic,
            self.witness,
            self.root,
        )

    def finish(self, state: State) -> Scores:
        scores = self._measure(state.round, state)
        if self.progress is not None:
            self.progress(state.round, self.history[-1])
        return scores

    def _measure(self, round: int, state: State) -> Scores:
        scores = evaluate(self.ring, state)
        if not self.history or self.history[-1]["round"] < round:
            row: Measured = {"round": round, scores.measure: scores.mean, "sizes": scores.sizes}
            if scores.measure != COST:
                row |= Clusters.of(scores, self.ring.federation.groups).row()
            row |= {name: mean_of(metric, self.ring, state) for name, metric in self.metrics.items()}
            self.history.append(row | self.ring.metrics.means())
        return scores
