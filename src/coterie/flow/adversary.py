"""The seats from which an adversary acts. What it may read is its threat model's; what it may do is its seat's.

An attack knows nothing of this room: it has the methods of the seats that it takes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from coterie.errors import AttackGaveUp, Diverged, InvalidInput
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import Contributions, Down, Message, Published, Up
from coterie.wire.view import OVERHEARD, ThreatModel, View, overheard


class Adversary(Protocol):
    @property
    def threat(self) -> ThreatModel: ...


@runtime_checkable
class Insider(Adversary, Protocol):
    """It is a client (or several): it answers in place of its own, before their guard seals what they send.

    ``asked`` holds the models as its clients opened them. ``memory`` is what it has learnt so far, saved and resumed
    like any client's. If it taps links as well, ``memory[OVERHEARD]`` has the last upload of each client on them, as
    far as its threat model reads it.
    """

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions: ...


@runtime_checkable
class OnTheWire(Adversary, Protocol):
    """It changes what passes on the links that it taps, up or down, after sealing."""

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message: ...


@runtime_checkable
class AtTheServer(Adversary, Protocol):
    """It is the server, and publishes what it likes."""

    def publish(self, published: Published, so_far: View, rng: Rng) -> Published: ...


@dataclass(frozen=True)
class Seats:
    """Who sits where. An adversary may have several seats, and one that only looks has none."""

    insiders: tuple[Insider, ...] = ()
    wires: tuple[OnTheWire, ...] = ()
    servers: tuple[AtTheServer, ...] = ()

    @staticmethod
    def of(adversaries: Sequence[Adversary]) -> Seats:
        found = Seats(
            tuple(one for one in adversaries if isinstance(one, Insider) and one.threat.clients),
            tuple(one for one in adversaries if isinstance(one, OnTheWire) and one.threat.taps),
            tuple(one for one in adversaries if isinstance(one, AtTheServer) and one.threat.server),
        )
        for wire in found.wires:
            if wire.threat.share < 1:
                raise InvalidInput(
                    f"share={wire.threat.share} of {wire.threat.name!r} must be 1: whoever changes what passes reads it"
                )
        for one in adversaries:
            if not any(one is seated for seated in (*found.insiders, *found.wires, *found.servers)):
                raise InvalidInput(
                    f"adversary {one.threat.name!r} has no seat from which to act: its threat model must name clients "
                    "that it is, taps, or the server, and it must have that seat's method"
                )
        return found

    @property
    def clients(self) -> frozenset[int]:
        """All that some insider answers for."""
        return frozenset(client for insider in self.insiders for client in insider.threat.clients)

    @property
    def need_views(self) -> bool:
        return bool(self.wires or self.servers)


def replaced(
    insiders: Sequence[Insider], asked: Down, honest: Contributions, memories: Sequence[Memory], rng: Rng
) -> Contributions:
    """What leaves instead of the honest answers of the insiders' own clients."""
    for insider, memory in zip(insiders, memories, strict=True):
        mine = _positions(honest, insider.threat)
        if len(mine):
            streams = rng.child("adversary", insider.threat.name, "round", asked.round, "kind", str(asked.kind))
            honest = honest.put(mine, _answered(insider, _given(asked, mine), honest.pick(mine), memory, streams))
    return honest


def _answered(insider: Insider, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
    """What it sends. Its own training may diverge where its clients' did not, which must not end everybody's."""
    try:
        return insider.answer(asked, honest, memory, rng)
    except Diverged as error:
        text = f"round {asked.round}: {insider.threat.name} sends what its clients would, since its training diverged"
        warnings.warn(f"{text} ({error})", AttackGaveUp, stacklevel=2)
        return honest


def overhear(insider: Insider, sent: Sequence[Up], memory: Memory) -> Memory:
    """What it remembers after these answers have passed: of each client whose link it taps, the last one."""
    heard = dict(memory.get(OVERHEARD, {}))
    for up in sent:
        for position, client in enumerate(up.clients.tolist()):
            if client in insider.threat.taps and not up.kind.part:
                alone = up.pick(torch.tensor([position]))
                heard[client] = replace(alone, sent=overheard(insider.threat, alone.sent))
    return {**memory, OVERHEARD: heard} if heard else memory


def _given(asked: Down, mine: torch.Tensor) -> Down:
    """The part of a message that concerns its clients: only the slots that they are given."""
    given = asked.published.pick(asked.slots(mine))
    return replace(
        asked.pick(mine), published=replace(given, values={k: leaf.clone() for k, leaf in given.values.items()})
    )


def _positions(sent: Contributions, threat: ThreatModel) -> torch.Tensor:
    mine = [position for position, client in enumerate(sent.ids.tolist()) if client in threat.clients]
    return torch.tensor(mine, dtype=torch.int64)
