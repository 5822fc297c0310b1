"""The only round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch

from coterie.errors import InvalidInput, require
from coterie.flow.guard import Turn
from coterie.flow.protocol import Ask, Replies, Server
from coterie.flow.protocol import Protocol as Algorithm
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Envelope
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

State = TypeVar("State")


class Transport(Protocol):
    """Carries a message to its clients and their answers back; the simulator and Flower's grid are two of these."""

    def exchange(self, ask: Envelope) -> Iterator[Envelope]: ...


class Tamperer(Protocol):
    """An active adversary: it may change what the clients that it controls send."""

    @property
    def threat(self) -> ThreatModel: ...

    def tamper(self, envelope: Envelope, so_far: View, rng: Rng) -> Envelope: ...


def drive(
    protocol: Algorithm[State],
    state: State,
    server: Server,
    transport: Transport,
    *,
    tape: Tape | None = None,
    tamperers: Sequence[Tamperer] = (),
    before_ask: Callable[[Ask[State]], None] | None = None,
) -> State:
    """Run the protocol from this state to its end.

    ``before_ask`` is called with each request before it goes out; its state is all that is needed to go on from there.
    """
    if tamperers and tape is None:
        raise InvalidInput("tamperers need a tape: they decide by what they have seen; pass tape=Tape([...])")
    steps = protocol.run(state, server)
    answer: Replies | None = None
    while True:
        try:
            ask = next(steps) if answer is None else steps.send(answer)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        if before_ask is not None:
            before_ask(ask)
        published = server.guard.publish(ask.published, Turn(ask.round, server.rng, ask.kind))
        down = Envelope(ask.kind, ask.round, ask.clients, published, ask.sees)
        if tape is not None:
            tape.record(down)
        answer = Replies(_answers(transport.exchange(down), tape, tamperers, server.rng))


def _answers(
    envelopes: Iterator[Envelope], tape: Tape | None, tamperers: Sequence[Tamperer], rng: Rng
) -> Iterator[Contributions]:
    for envelope in envelopes:
        for tamperer in tamperers:
            assert tape is not None
            if len(tamperer.threat.positions(envelope)):
                streams = rng.child("adversary", tamperer.threat.name, "round", envelope.round)
                envelope = _tampered(tamperer, envelope, tape, streams)
        if tape is not None:
            tape.record(envelope)
        payload: Any = envelope.payload
        yield payload


def _tampered(tamperer: Tamperer, envelope: Envelope, tape: Tape, rng: Rng) -> Envelope:
    """Hand the adversary the answers of its own clients alone, and put what it makes of them in their place."""
    mine = tamperer.threat.positions(envelope)
    given = envelope.pick(mine)
    changed = tamperer.tamper(given, tape.view(tamperer.threat), rng).payload
    assert isinstance(envelope.payload, Contributions)
    assert isinstance(changed, Contributions)
    require(
        changed.ids.tolist() == given.clients.tolist(),
        f"clients for which {tamperer.threat.name} answers",
        changed.ids.tolist(),
        f"must be its own, {given.clients.tolist()}: what they send may change, not who sends it",
    )
    others = torch.ones(len(envelope.clients), dtype=torch.bool)
    others[mine] = False
    rest = others.nonzero().flatten()
    both = Contributions.join([envelope.payload.pick(rest), changed]) if len(rest) else changed
    order = torch.cat([rest, mine]).argsort()  # back to the order in which they came
    return replace(envelope, payload=both.pick(order))
