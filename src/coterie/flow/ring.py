"""The engine: server, clients and wire put together, once. Training, audits, recipes and benchmarks all start here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import torch
from torch import Tensor

from coterie.data.federation import Federation, VerticalFederation
from coterie.data.lazy import AnyFederation, LazyFederation
from coterie.errors import InvalidInput
from coterie.flow.adversary import Adversary, Seats
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.client import Answer, ClientSide
from coterie.flow.cohort import Cohort, Memory
from coterie.flow.drive import Course, Transport
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol, Server
from coterie.flow.simulate import CHUNK_BYTES, Dropping, Simulator, population
from coterie.flow.turn import Metrics, Roots, Turn
from coterie.learn.models.model import Model
from coterie.learn.params import Params
from coterie.privacy.ledger import Ledger
from coterie.wire.messages import RESULT, Contributions, Down, Kind, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic
from coterie.wire.view import ThreatModel, View

EVALUATE = Kind("evaluate")
THE_SERVER = -1  # where a message comes from that never travelled


@dataclass
class Ring(Generic[State]):
    """A federation under a protocol and a defence, on this machine. Use it in a ``with`` block: it may hold processes.

    ``lost`` names the clients whose answers to a message never arrive; ``witness`` is shown what no adversary sees.
    """

    protocol: Protocol[State]
    federation: AnyFederation
    model: Model | None = None
    defence: Defence = field(default_factory=Defence)
    roots: Roots = field(default_factory=Roots.from_entropy)
    tape: Tape | None = None
    adversaries: Sequence[Adversary] = ()
    witness: Callable[[Down, Answer], None] | None = None
    lost: Callable[[Down], Collection[int]] | None = None
    processes: int | None = None
    chunk_bytes: int = CHUNK_BYTES
    ledger: Ledger = field(default_factory=Ledger)  # what is spent is written there

    def __post_init__(self) -> None:
        if why := self.defence.fits(self.protocol):
            raise InvalidInput(f"defence {type(self.defence).__name__} does not fit this protocol: {why}")
        if self.protocol.trains and isinstance(self.federation, VerticalFederation):
            raise InvalidInput(
                f"federation={type(self.federation).__name__} is split by columns, and {type(self.protocol).__name__} "
                "trains on rows; split it by rows"
            )
        seats = Seats.of(self.adversaries)
        self._seats = seats
        self.metrics, self.traffic = Metrics(), Traffic()
        self.server = Server(
            population(self.federation),
            self.defence.server,
            self.roots.child("server"),
            self.model,
            self.ledger,
            self.metrics,
            self._note_opened if self.tape is not None and self.defence.seals and self.protocol.tells_records else None,
        )
        self.clients = Simulator(
            ClientSide(
                self.protocol, self.defence.client, seats.insiders, frozenset() if self.tape is None else self.tape.own
            ),
            self.federation,
            self.model,
            self.roots.child("clients"),
            self.chunk_bytes,
            self.processes,
            ledger=self.ledger,
            metrics=self.metrics,
            witness=self.witness,
            knows=None if self.tape is None else self.tape.record,
        )

    def __enter__(self) -> Ring[State]:
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.close()

    @property
    def memory(self) -> dict[int, Memory]:
        """What clients and insiders keep: with a state, all that is needed to go on."""
        return self.clients.memory

    def run(
        self,
        state: State | None = None,
        memory: Mapping[int, Memory] | None = None,
        before_ask: Callable[[Ask[State]], None] | None = None,
    ) -> State:
        """To the end, from the start or from where it was."""
        if memory is not None:
            self.clients.memory = dict(memory)
        transport: Transport = self.clients if self.lost is None else Dropping(self.clients, self.lost)
        state = self.course(transport, state, before_ask).finish()
        self.clients.forget_turn()
        return state

    def course(
        self,
        transport: Transport,
        state: State | None = None,
        before_ask: Callable[[Ask[State]], None] | None = None,
        counted: bool = True,
    ) -> Course[State]:
        """A run over this transport, message by message; what travels is counted, or not."""
        start, traffic = self.protocol.start(self.server) if state is None else state, self.traffic if counted else None
        return Course(self.protocol, start, self.server, transport, self.tape, traffic, self._seats, before_ask)

    def hand_out(self, state: State) -> None:
        """Put what a trainer ends with on the tape, as every client is given it; a clustering sends it itself."""
        if self.tape is None or not self.protocol.trains:
            return
        ids, round = torch.arange(self.federation.clients), int(getattr(state, "round", 0))
        given = self.defence.server.publish(self.protocol.result(state), self.server.turn(round, RESULT))
        self.tape.record(Down(RESULT, round, ids, given, self.protocol.sees(state, ids)))

    def models(self, state: State) -> Params:
        """What the server would publish now, through its guard, as the clients' guard opens it."""
        round = getattr(state, "round", 0)
        published = self.defence.server.publish(self.protocol.result(state), self.server.turn(round, EVALUATE))
        return self._opened(published).values

    @property
    def evaluated(self) -> Tensor:
        """The clients by whom a result is judged: all of them, unless they are too many to look at."""
        whole = self.federation
        return whole.panel_ids if isinstance(whole, LazyFederation) else torch.arange(whole.clients)

    @property
    def panel(self) -> Federation:
        """Those clients with their data, as a federation."""
        whole = self.federation
        if isinstance(whole, VerticalFederation):
            raise InvalidInput(
                "federation=VerticalFederation is split by columns: its parties have no rows of their own"
            )
        return whole.panel if isinstance(whole, LazyFederation) else whole

    def everyone(self, state: State) -> Cohort:
        """All clients that are evaluated, as they would look at their data now."""
        ids = self.evaluated
        turn = Turn(getattr(state, "round", 0), self.clients.roots, EVALUATE)
        return self.clients.cohort(ids, turn, self.protocol.sees(state, ids))

    def view(self, threat: ThreatModel) -> View:
        """What this adversary saw of the run."""
        if self.tape is None:
            raise InvalidInput("tape=None: nothing was recorded; give the ring a tape made for this threat model")
        there = any(client < self.federation.clients for client in threat.clients)
        return self.tape.view(threat, self.defence.keys, self._opened if there or threat.keys else None)

    def _note_opened(self, ask: Ask[State], sums: Sums) -> None:
        """Numbers of single records that the server's guard has opened are what the server sees: on the tape, too."""
        assert self.tape is not None
        slots = len(sums.weights)
        values = {name: leaf.unsqueeze(0) for name, leaf in sums.values.items()}
        seen = Contributions(torch.tensor([THE_SERVER]), values, torch.ones(1), torch.ones(1, slots))
        self.tape.record(Up(replace(ask.kind, part="opened"), ask.round, seen))

    def _opened(self, published: Published) -> Published:
        return self.clients.side.guard.receive(published, Turn(0, self.clients.roots, EVALUATE))


AnyRing = Ring[Any]
