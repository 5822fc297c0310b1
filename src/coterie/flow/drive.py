"""The only round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.flow.admission import REFUSED, Admission
from coterie.flow.adversary import Adversary, OnTheWire, Seats
from coterie.flow.ask import Ask, Replies
from coterie.flow.protocol import Protocol as Algorithm
from coterie.flow.protocol import Server
from coterie.rng import Rng
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions, Down, Message, Up
from coterie.wire.tape import Tape
from coterie.wire.traffic import Traffic

State = TypeVar("State")
Passing = TypeVar("Passing", Down, Up)


class Transport(Protocol):
    """Carries a message to its clients and their answers back; the simulator and Flower's grid are two of these.

    A client that does not answer is missing from what comes back, and nothing else happens.
    """

    def exchange(self, asked: Down) -> Iterator[Up]: ...


class Course(Generic[State]):
    """A run under way, one message at a time, for whoever does something between them.

    ``before_ask`` is called with each of the protocol's requests before it goes out; its state is all that is needed to
    go on from there. A guard's further exchanges about a request start over with it.
    """

    def __init__(
        self,
        protocol: Algorithm[State],
        state: State,
        server: Server,
        transport: Transport,
        tape: Tape | None = None,
        traffic: Traffic | None = None,
        seats: Seats | None = None,
        before_ask: Callable[[Ask[State]], None] | None = None,
    ) -> None:
        self.state = state  # the last one, once there is no further message
        self._protocol, self._server, self._before_ask = protocol, server, before_ask
        self._wire = _Wire(transport, tape, traffic, seats or Seats(), server.rng)
        self._steps = protocol.run(state, server)
        self._ask: Ask[State] | None = None
        self._asked: Down | None = None

    def next_message(self) -> Down | None:
        """Have the last message answered by the transport, and say what goes out next; None: the run is over."""
        try:
            if self._ask is None or self._asked is None:
                ask = next(self._steps)
            else:
                ask = self._steps.send(self._replies(self._ask, self._asked))
        except StopIteration as finished:
            self.state = finished.value
            return None
        if self._before_ask is not None and not ask.kind.part:
            self._before_ask(ask)
        self._ask, self._asked = ask, message_of(ask, self._server)
        return self._asked

    def _replies(self, ask: Ask[State], down: Down) -> Replies:
        """What comes back, each answer checked once before anything uses it."""
        expected = None if ask.kind.part else self._protocol.expects(ask, self._server)
        late = ask.whole and self._server.guard.only_adds
        admission = Admission(down, expected and self._server.guard.expects(expected), late)
        return Replies(_admitted(self._wire.exchange(down), admission, self._server))

    def finish(self) -> State:
        """All that is left of it."""
        while self.next_message() is not None:
            pass
        return self.state


def message_of(ask: Ask[State], server: Server) -> Down:
    """A request as it leaves the server. How many clients stand behind a model stays there: no client needs it."""
    published = ask.published.unsized
    if not ask.kind.part:
        published = server.guard.publish(published, server.turn(ask.round, ask.kind))
    each = tuple(ask.each.get(client, b"") for client in ask.clients.tolist()) if ask.each else ()
    return Down(ask.kind, ask.round, ask.clients, published, ask.sees, ask.common, each)


def _admitted(ups: Iterator[Up], admission: Admission, server: Server) -> Iterator[Contributions]:
    for up in ups:
        sent = admission.admit(up)
        if sent is not None:
            asked = admission.asked
            yield server.guard.screen(sent, asked, server.turn(asked.round, asked.kind))
    if admission.refused:
        server.metrics.note(REFUSED, admission.share_refused)


class _Wire:
    """A transport with whoever listens to it, counts, or interferes."""

    def __init__(
        self, transport: Transport, tape: Tape | None, traffic: Traffic | None, seats: Seats, rng: Rng
    ) -> None:
        if seats.need_views and tape is None:
            raise InvalidInput("adversaries on the wire or at the server decide by what they have seen; pass a tape")
        self._transport, self._tape, self._traffic, self._seats, self._rng = transport, tape, traffic, seats, rng

    def exchange(self, down: Down) -> Iterator[Up]:
        for server in self._seats.servers:
            if self._tape is not None and not down.kind.part:
                published = server.publish(down.published, self._tape.view(server.threat), self._streams(server, down))
                down = replace(down, published=published)
        parts = self._passed_down(down)
        for number, part in enumerate(parts):
            self._note(part, goes_on=number > 0)
        for part in parts:
            for up in self._transport.exchange(part):
                for passed in self._passed_up(up):
                    if not passed.sent.misshapen():  # nobody can make anything of what is
                        self._note(passed)
                    yield passed

    def _note(self, message: Message, goes_on: bool = False) -> None:
        if self._traffic is not None:
            self._traffic.count(message)
        if self._tape is not None:
            self._tape.record(message, goes_on)

    def _passed_down(self, down: Down) -> list[Down]:
        """What arrives: the message as it was sent, and apart from it what somebody on the wire made of it."""
        parts = []
        for adversary in self._seats.wires:
            mine, rest = _links(down, adversary)
            if len(mine):
                parts.append(self._intercepted(adversary, down.pick(mine)))
                down = down.pick(rest)
        return [*([down] if len(down.clients) else []), *parts]

    def _passed_up(self, up: Up) -> list[Up]:
        """What arrives: in one message, unless what somebody made of a part of it no longer fits in."""
        apart = []
        for adversary in self._seats.wires:
            mine, rest = _links(up, adversary)
            if len(mine):
                changed = self._intercepted(adversary, up.pick(mine))
                if changed.sent.fits_among(up.sent):
                    up = replace(up, sent=up.sent.put(mine, changed.sent))
                else:
                    apart.append(changed)
                    up = up.pick(rest)
        return [*([up] if len(up.clients) else []), *apart]

    def _intercepted(self, adversary: OnTheWire, message: Passing) -> Passing:
        """What passes on the links that it taps, as it passes it on: what it says may change, not whose it is."""
        if self._tape is None:  # refused when this was made
            return message
        view = self._tape.view(adversary.threat)
        own = decode(encode(message))  # what it does to its copy in place reaches nobody else
        changed = adversary.intercept(own, view, self._streams(adversary, message))
        told = (changed.round, changed.kind, changed.clients.tolist())
        if not isinstance(changed, type(message)) or told != (message.round, message.kind, message.clients.tolist()):
            raise InvalidInput(
                f"message that {adversary.threat.name} passes on={type(changed).__name__} must be of the same kind, "
                "round and clients as the one that it took"
            )
        return changed

    def _streams(self, adversary: Adversary, message: Message) -> Rng:
        way, clients = "down" if isinstance(message, Down) else "up", "-".join(map(str, message.clients.tolist()))
        name = ("adversary", adversary.threat.name, "round", message.round, str(message.kind), way, clients)
        return self._rng.child(*name)


def _links(message: Message, adversary: OnTheWire) -> tuple[Tensor, Tensor]:
    """Positions of the clients whose links this adversary taps, and of the others."""
    tapped = torch.tensor([client in adversary.threat.taps for client in message.clients.tolist()], dtype=torch.bool)
    return tapped.nonzero().flatten(), (~tapped).nonzero().flatten()
