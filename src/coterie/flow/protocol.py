"""The seam between an algorithm and the machinery that moves its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, ServerGuard, Sums, Turn
from coterie.learn.params import Params, stack
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Published

State = TypeVar("State")


@dataclass(frozen=True)
class Population:
    """Whom the server can ask. A client without training data is never asked, but is given models."""

    sizes: Tensor  # (clients,) training examples
    joins: Tensor  # (clients,) first round

    def present(self, round: int) -> Tensor:
        """The clients that have data and have joined by this round."""
        present = ((self.sizes > 0) & (self.joins <= round)).nonzero().flatten()
        require(
            len(present) > 0,
            f"clients in round {round}",
            0,
            "must be at least 1; let someone with data join in round 0",
        )
        return present

    def sample(self, round: int, share: float, rng: Rng) -> Tensor:
        """A share of those present, at least one, drawn anew every round."""
        present = self.present(round)
        if share >= 1:
            return present
        count = max(1, round_half_up(share * len(present)))
        order = torch.randperm(len(present), generator=rng.child("participants", "round", round).torch())
        return present[order[:count].sort().values]


def round_half_up(value: float) -> int:
    return int(value + 0.5)


@dataclass(frozen=True)
class Ask(Generic[State]):
    """What the server wants of whom. The state rides along so that the driver can save it; it never travels."""

    kind: str
    round: int
    clients: Tensor
    published: Published
    state: State
    sees: Tensor | None = None  # (clients, slots) bool


class Replies:
    """The answers as they come in, group by group; to be read once."""

    def __init__(self, groups: Iterator[Contributions]) -> None:
        self._groups = groups

    def __iter__(self) -> Iterator[Contributions]:
        return self._groups

    def whole(self) -> Contributions:
        """All answers at once, for a server that must look at each."""
        return Contributions.join(list(self._groups))


@dataclass(frozen=True)
class Server:
    """What the server's side of a protocol works with, as ``Cohort`` is for the client's."""

    clients: Population
    init: Callable[[int], Params]  # a freshly drawn model, from a seed
    guard: ServerGuard
    rng: Rng

    def fresh(self, slots: int) -> dict[str, Tensor]:
        """Random models, leaves (slots, ...)."""
        return stack(self.init(self.rng.child("init", slot).seed()) for slot in range(slots))

    def sample(self, round: int, share: float) -> Tensor:
        return self.clients.sample(round, share, self.rng)

    def aggregate(self, replies: Replies, round: int, kind: str = "train") -> Sums:
        return self.guard.aggregate(replies, Turn(round, self.rng, kind))


class Protocol(ABC, Generic[State]):
    """A federated algorithm: the server's side is ``start`` and ``run``, the client's is ``answer``.

    No I/O, no data, no loop over clients. ``run`` can be started from any state that it ever put in an ``Ask``, and
    goes on from there as if it had never stopped.
    """

    @property
    def models_a_round(self) -> int:
        """How many models a client trains on its data in a round: its memory and its exposure grow with them."""
        return 1

    @abstractmethod
    def start(self, server: Server) -> State:
        """The state before the first round."""

    @abstractmethod
    def run(self, state: State, server: Server) -> Generator[Ask[State], Replies, State]: ...

    @abstractmethod
    def answer(self, kind: str, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions: ...

    @abstractmethod
    def result(self, state: State) -> Published:
        """What the server would publish now."""

    def sees(self, state: State, clients: Tensor) -> Tensor | None:
        """Which slots these clients are given, (clients, slots) bool; None: all."""
        return None

    def choose(self, models: Params, cohort: Cohort) -> Tensor:
        """(clients, slots): with which weights a client mixes the models when it predicts."""
        seen = cohort.seen(models).float()
        return seen / seen.sum(1, keepdim=True)
