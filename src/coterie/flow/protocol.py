"""The seam between an algorithm and the machinery that moves its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from coterie.data.lazy import AnyFederation
from coterie.errors import require
from coterie.flow.admission import Expected
from coterie.flow.ask import AnyAsk, Ask, Replies, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Collecting, ServerGuard
from coterie.flow.turn import Metrics, Roots, Turn
from coterie.learn.models.model import Model
from coterie.learn.params import Params, stack
from coterie.privacy.guarantee import DELTA, RunFacts
from coterie.privacy.ledger import Ledger
from coterie.rng import Rng
from coterie.wire.messages import TRAIN, Contributions, Kind, Published

Running = Generator[Ask[State], Replies, State]
"""A protocol under way: it yields requests, is sent the replies, and returns its last state."""


@dataclass(frozen=True)
class Population:
    """Whom the server can ask: a public roster.

    Trainers do not ask a client without training data, but give it models; how much a client has is public there.
    Clusterings ask everybody, so that nothing shows whether a client has any.
    """

    sizes: Tensor  # (clients,) training examples
    joins: Tensor  # (clients,) first round

    def enrolled(self, round: int) -> Tensor:
        """The clients that have joined by this round, whatever they hold."""
        return _somebody((self.joins <= round).nonzero().flatten(), round, "let someone join in round 0")

    def present(self, round: int) -> Tensor:
        """The clients that have data and have joined by this round."""
        present = ((self.sizes > 0) & (self.joins <= round)).nonzero().flatten()
        return _somebody(present, round, "let someone with data join in round 0")

    def sample(self, round: int, share: float, rng: Rng) -> Tensor:
        """A share of those present, at least one, drawn anew every round."""
        present = self.present(round)
        if share >= 1:
            return present
        count = max(1, round_half_up(share * len(present)))
        order = torch.randperm(len(present), generator=rng.child("participants", "round", round).torch())
        return present[order[:count].sort().values]


def _somebody(clients: Tensor, round: int, remedy: str) -> Tensor:
    require(len(clients) > 0, f"clients in round {round}", 0, f"must be at least 1; {remedy}")
    return clients


def round_half_up(value: float) -> int:
    return int(value + 0.5)


@dataclass(frozen=True)
class Server:
    """What the server's side of a protocol works with, as ``Cohort`` is for the client's."""

    clients: Population
    guard: ServerGuard
    roots: Roots
    model: Model | None = None  # clusterings have none
    ledger: Ledger = field(default_factory=Ledger)
    metrics: Metrics = field(default_factory=Metrics)
    opened: Callable[[AnyAsk, Sums], None] | None = None  # is told the sums that were sealed on their way

    @property
    def rng(self) -> Rng:
        """The root of its reproducible draws."""
        return self.roots.draws

    def fresh(self, slots: int) -> dict[str, Tensor]:
        """Random models, leaves (slots, ...)."""
        return stack(self.init(self.rng.child("init", slot).seed()) for slot in range(slots))

    def init(self, seed: int) -> Params:
        """A freshly drawn model."""
        require(self.model is not None, "model", None, "must be given: this protocol trains one")
        assert self.model is not None
        return self.model.init(seed)

    def sample(self, round: int, share: float) -> Tensor:
        return self.clients.sample(round, share, self.rng)

    def turn(self, round: int, kind: Kind) -> Turn:
        return Turn(round, self.roots, kind, self.ledger, self.metrics)

    def collect(self, ask: Ask[State]) -> Collecting[State]:
        """The sums over the clients' answers, by whatever conversation the guard needs; empty if nobody's counts."""
        turn = self.turn(ask.round, ask.kind)
        sums = yield from self.guard.collect(ask, turn)
        if self.opened is not None and sums.values:
            self.opened(ask, sums)
        return sums if sums.empty else self.guard.release(sums, turn)

    def add_up(self, sent: Contributions, round: int) -> Sums:
        """The sums over answers that the server has looked at one by one."""
        turn = self.turn(round, TRAIN)
        return self.guard.release(self.guard.aggregate([sent], turn), turn)


class Protocol(ABC, Generic[State]):
    """A federated algorithm: the server's side is ``start`` and ``run``, the client's is ``answer``.

    No I/O, no data, no loop over clients. ``run`` can be started from any state that it ever put in an ``Ask``, and
    goes on from there as if it had never stopped. What is true of its answers, and defences must know, it says.
    """

    trains: ClassVar[bool] = False  # whether clients train a model by gradients
    tells_records: ClassVar[str] = ""  # the leaf of its answers with numbers of single records; empty: there is none

    @property
    def models_a_round(self) -> int:
        """How many models a client trains on its data in a round: its memory and its exposure grow with them."""
        return 1

    @property
    def moments(self) -> int:
        """How many further numbers a parameter a client's optimiser keeps while it trains."""
        return 0

    @property
    def looks(self) -> str:
        """What the server must be able to read beside sums; empty: sums that others have sealed will do."""
        return ""

    @property
    def choices(self) -> int:
        """Among how many slots each client chooses one, which its membership tells; 0: it does not."""
        return 0

    @property
    def numberings(self) -> int:
        """How often slots are numbered anew in a run, so that one number stands for something else."""
        return 1

    def releases(self) -> tuple[str, ...]:
        """The sums that a whole run asks for, each as "request/leaf", if what a unit adds to each is at most 1."""
        return ()

    def facts(self, federation: AnyFederation, delta: float = DELTA) -> RunFacts | None:
        """What a defence must know of running this federation to say what it guarantees; None: nobody has told."""
        return None

    @abstractmethod
    def start(self, server: Server) -> State:
        """The state before the first round."""

    @abstractmethod
    def run(self, state: State, server: Server) -> Running[State]: ...

    @abstractmethod
    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions: ...

    def expects(self, ask: Ask[State], server: Server) -> Expected | None:
        """What an answer to this request looks like; None: not said, and then misfits are found only when they hurt."""
        return None

    @abstractmethod
    def result(self, state: State) -> Published:
        """What the server would publish now."""

    def serves(self, state: State) -> bool:
        """Whether there is a result yet that clients could use."""
        return True

    def sees(self, state: State, clients: Tensor) -> Tensor | None:
        """Which slots these clients are given, (clients, slots) bool; None: all."""
        return None

    def choose(self, models: Params, cohort: Cohort) -> Tensor:
        """(clients, slots): with which weights a client mixes the models when it predicts."""
        seen = cohort.seen(models).float()
        return seen / seen.sum(1, keepdim=True)


AnyProtocol = Protocol[Any]
"""One whose state is nobody's business here."""
