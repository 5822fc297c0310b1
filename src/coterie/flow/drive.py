"""The only round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from coterie.errors import InvalidInput
from coterie.flow.guard import Turn
from coterie.flow.protocol import Ask, Replies, Server
from coterie.flow.protocol import Protocol as Algorithm
from coterie.flow.rng import Rng
from coterie.wire.messages import Contributions, Envelope
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

State = TypeVar("State")


class Transport(Protocol):
    """Carries a message to its clients and their answers back; the simulator and Flower's grid are two of these."""

    def exchange(self, ask: Envelope) -> Iterator[Envelope]: ...


class Tamperer(Protocol):
    """An active adversary: it may change what the clients that it controls send."""

    threat: ThreatModel

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
    import torch

    mine = tamperer.threat.positions(envelope)
    changed = tamperer.tamper(envelope.pick(mine), tape.view(tamperer.threat), rng)
    rest = torch.tensor([at for at in range(len(envelope.clients)) if at not in set(mine.tolist())], dtype=torch.int64)
    own: Any = changed.payload
    if not len(rest):
        return changed
    both = Contributions.join([envelope.pick(rest).payload, own])  # type: ignore[list-item]
    order = both.ids.argsort()
    return Envelope(envelope.kind, envelope.round, both.ids[order], both.pick(order), None)
