"""What the trainers share: their settings, and for most of them a state of models and a round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import Sums
from coterie.flow.protocol import Ask, Protocol, Replies, Server, State
from coterie.learn.params import Params, flatten, map_leaves
from coterie.learn.sgd import Local
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Published


@dataclass(frozen=True)
class Trainer(Protocol[State]):
    """The settings of every trainer.

    A slot to which nobody contributed keeps its model. A client without data is not asked.
    """

    rounds: int = 100
    local: Local = field(default_factory=Local)
    participation: float = 1.0  # the share of the present clients that is asked in a round
    weighting: str = "samples"  # or "equal"

    def __post_init__(self) -> None:
        require(self.rounds >= 0, "rounds", self.rounds, "must be at least 0")
        require(0 < self.participation <= 1, "participation", self.participation, "must lie in (0, 1]")
        require(
            self.weighting in ("samples", "equal"),
            "weighting",
            self.weighting,
            "must be 'samples' or 'equal'",
        )

    def contribution(self, cohort: Cohort, trained: Params, membership: Tensor) -> Contributions:
        """One model a client, (clients, ...), for the slots of its membership (clients, slots)."""
        values = map_leaves(lambda leaf: leaf.unsqueeze(1), trained)
        return Contributions(cohort.ids, values, self.weights(cohort), membership)

    def weights(self, cohort: Cohort) -> Tensor:
        return cohort.sizes.float() if self.weighting == "samples" else torch.ones(len(cohort))


@register
@dataclass(frozen=True)
class Models:
    """The state of a trainer that keeps nothing but its models."""

    round: int
    published: Published


@dataclass(frozen=True)
class ModelTrainer(Trainer[Models]):
    """A trainer whose every round is: publish all models, train, average."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many models are trained."""

    def start(self, server: Server) -> Models:
        return Models(0, Published(server.fresh(self.slots)))

    def run(self, state: Models, server: Server) -> Generator[Ask[Models], Replies, Models]:
        for round in range(state.round, self.rounds):
            replies = yield Ask("train", round, server.sample(round, self.participation), state.published, state)
            state = Models(round + 1, self.averaged(server.aggregate(replies, round), state.published))
        return state

    def averaged(self, sums: Sums, previous: Published) -> Published:
        return sums.mean(previous)

    def result(self, state: Models) -> Published:
        return state.published


def copies(models: Params, choice: Tensor) -> dict[str, Tensor]:
    """(clients, ...): each client's copy of the slot that it chose."""
    return map_leaves(lambda leaf: leaf[choice], models)


def updates(sent: Contributions, models: Params, given: Tensor) -> Tensor:
    """(clients, length): how far each client moved from the slot that it was given."""
    return flatten(sent.values, leading=2)[:, 0] - flatten(models)[given]
