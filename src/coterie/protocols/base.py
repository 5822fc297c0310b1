"""What the trainers share: their settings, and for most of them a state of models and a round."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.data.federation import Federation, Schedule
from coterie.data.lazy import AnyFederation, revealed
from coterie.errors import require, require_count
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.protocol import Protocol, Running, Server, round_half_up
from coterie.learn.params import Params, flatten, map_leaves
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import DELTA, Pool, RunFacts
from coterie.protocols.server_steps import ServerStep
from coterie.protocols.starts import Start
from coterie.wire.codec import register
from coterie.wire.messages import TRAIN, Contributions, Published

MOST_ROUNDS = 10**9
MOST_MODELS = 10_000  # that a server may have at once


@dataclass(frozen=True)
class Trainer(Protocol[State]):
    """The settings of every trainer.

    A slot to which nobody contributed keeps its model. A client without data is not asked. One that does not answer is
    left out of that round; a round in which nobody answers leaves everything as it was.
    """

    trains: ClassVar[bool] = True

    rounds: int = 100
    local: Local = field(default_factory=Local)
    participation: float = 1.0  # the share of the present clients that is asked in a round
    weighting: str = "samples"  # or "equal"

    begins: Start = field(default_factory=Start, kw_only=True)  # with which models

    reveals: ClassVar[str] = ""  # what an answer says about raw data without passing the gradient guard

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds, 0, MOST_ROUNDS)
        require(0 < self.participation <= 1, "participation", self.participation, "must lie in (0, 1]")
        require(
            self.weighting in ("samples", "equal"),
            "weighting",
            self.weighting,
            "must be 'samples' or 'equal'",
        )

    def facts(self, federation: AnyFederation, delta: float = DELTA) -> RunFacts:
        """What a defence must know of training this federation to say what it guarantees."""
        exposures = _exposures(federation, self.rounds)
        pools = [tuple(self._trainings(pool) for pool in exposure) for exposure in exposures]
        asked, reveals = self.asked_together(federation.clients), revealed(federation, self.reveals)
        return RunFacts(federation.clients, self.rounds, self.local, _worst(pools), delta, reveals, a_round=asked)

    def asked_together(self, clients: int) -> int:
        """How few of so many clients are asked in one request."""
        return max(1, round_half_up(self.participation * clients))

    def _trainings(self, pool: Pool) -> Pool:
        return Pool(pool.size, pool.trainings * self.models_a_round + self.placements)

    @property
    def moments(self) -> int:
        return len(self.local.moments)

    @property
    def placements(self) -> int:
        """How often, at most, a client trains besides, to be placed."""
        return 0

    def contribution(self, cohort: Cohort, trained: Params, membership: Tensor) -> Contributions:
        """One model a client, (clients, ...), for the slots of its membership (clients, slots)."""
        values = map_leaves(lambda leaf: leaf.unsqueeze(1), trained)
        return Contributions(cohort.ids, values, self.weights(cohort), membership)

    def expects(self, ask: Ask[State], server: Server) -> Expected | None:
        """One model, or one a slot, and no more weight than the roster says that a client has data."""
        slots = ask.published.slots
        models = slots if self.models_a_round > 1 else 1
        leaves = {name: (models, *leaf.shape[1:]) for name, leaf in ask.published.values.items()}
        most = server.clients.sizes if self.weighting == "samples" else 1.0
        return Expected(leaves, slots, most, one_slot=self.choices > 0)

    def weights(self, cohort: Cohort) -> Tensor:
        return cohort.sizes.float() if self.weighting == "samples" else torch.ones(len(cohort))


AnyTrainer = Trainer[Any]
"""One whose state is nobody's business here."""


@register
@dataclass(frozen=True)
class Models:
    """The state of a trainer that keeps nothing but its models."""

    round: int
    published: Published
    moments: Mapping[str, Tensor] = field(default_factory=dict)  # of the server's optimiser, leaves (slots, ...)
    trial: int = 0  # which start is being tried, where several are
    best: Published | None = None  # the best of those that were tried before
    best_loss: float = math.inf


@dataclass(frozen=True)
class ModelTrainer(Trainer[Models]):
    """A trainer whose every round is: publish all models, train, average, and step with the server's optimiser."""

    server_step: ServerStep | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many models are trained."""

    def start(self, server: Server) -> Models:
        return Models(0, Published(self.begins.models(server, self.slots)))

    def run(self, state: Models, server: Server) -> Running[Models]:
        return (yield from self.rounds_until(self.rounds, state, server))

    def rounds_until(self, end: int, state: Models, server: Server) -> Running[Models]:
        for round in range(state.round, end):
            chosen = server.sample(round, self.participation)
            sums = yield from server.collect(Ask(TRAIN, round, chosen, state.published, state))
            state = replace(state, round=round + 1)
            if not sums.empty:
                state = self.stepped(state, self.averaged(sums, state.published))
        return state

    def stepped(self, state: Models, mean: Published) -> Models:
        """The next models from the clients' mean."""
        if self.server_step is None:
            return replace(state, published=mean)
        assert mean.sizes is not None
        values, moments = self.server_step.step(state.published.values, mean.values, state.moments, mean.sizes > 0)
        return replace(state, published=replace(mean, values=values), moments=moments)

    @property
    def looks(self) -> str:
        return "the sums in the clear, for the server's optimiser" if self.server_step is not None else ""

    def averaged(self, sums: Sums, previous: Published) -> Published:
        return sums.mean(previous)

    def result(self, state: Models) -> Published:
        return state.published


def updates(sent: Contributions, models: Params, given: Tensor) -> Tensor:
    """(clients, length): how far each client moved from the slot that it was given."""
    moved = flatten(sent.values, leading=2)[:, 0]
    for slot, model in enumerate(flatten(models)):
        moved[given == slot] -= model
    return moved


def cosines(moved: Tensor) -> Tensor:
    """(clients, clients): the cosine similarity of each two updates; 0 for one that did not move."""
    norms = moved.norm(dim=1).clamp_min(torch.finfo(moved.dtype).tiny)
    similarity: Tensor = moved @ moved.T / norms / norms.unsqueeze(1)
    return similarity.clamp(-1, 1)


def _exposures(federation: AnyFederation, rounds: int) -> list[tuple[Pool, ...]]:
    """The pools that records are in; of clients who use all their data, the smallest covers the others."""
    schedules = federation.schedules if isinstance(federation, Federation) else {}
    sizes = federation.sizes
    everything = sizes[[client for client in range(len(sizes)) if client not in schedules]] if schedules else sizes
    held = everything[everything > 0]
    found: list[tuple[Pool, ...]] = [(Pool(int(held.min()), rounds),)] if len(held) else []
    for client, schedule in schedules.items():
        found += _scheduled(schedule, rounds) if int(sizes[client]) else []
    return found


def _scheduled(schedule: Schedule, rounds: int) -> list[tuple[Pool, ...]]:
    """The pools that each kind of a scheduled client's records is in."""
    in_marked = sum(schedule.is_marked(round) for round in range(rounds))
    pools = (Pool(len(schedule.marked), in_marked), Pool(len(schedule.plain), rounds - in_marked))
    in_both = bool(torch.isin(schedule.marked, schedule.plain).any())
    return [pools] if in_both else [(pool,) for pool in pools if pool.size]


def _worst(exposures: list[tuple[Pool, ...]]) -> tuple[tuple[Pool, ...], ...]:
    """Of pools that are used equally often, the smallest is sampled from at the highest rate."""
    smallest: dict[tuple[int, ...], tuple[Pool, ...]] = {}
    for exposure in exposures:
        key = tuple(pool.trainings for pool in exposure)
        if len(exposure) > 1:
            smallest[(*key, len(smallest))] = exposure
        elif key not in smallest or exposure[0].size < smallest[key][0].size:
            smallest[key] = exposure
    return tuple(smallest.values())
