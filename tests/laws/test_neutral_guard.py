"""Law 2. A defence at its neutral setting changes nothing, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.laws.members import Member, every_member
from tests.ring import play
from torch import Tensor

from coterie.flow.guard import ClientGuard, ServerGuard, Step, Sums, Turn
from coterie.learn.params import Params
from coterie.wire.messages import Contributions, Published


@dataclass(frozen=True)
class Busy(ClientGuard):
    """Takes part at every guard point of the client and changes nothing."""

    def receive(self, published: Published, turn: Turn) -> Params:
        return dict(published.values)

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        return {name: grad.clone() for name, grad in grads.items()}

    def contribute(self, sent: Contributions, turn: Turn) -> Contributions:
        return replace(sent, weights=sent.weights.clone())


@dataclass(frozen=True)
class Unbounded(ClientGuard):
    """Per-example clipping at infinity."""

    @property
    def example_clip(self) -> float | None:
        return math.inf


@dataclass(frozen=True)
class BusyServer(ServerGuard):
    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        return super().aggregate(list(replies), turn)

    def publish(self, published: Published, turn: Turn) -> Published:
        return replace(published, values=dict(published.values))


@every_member
def test_guards_that_do_nothing_change_nothing(member: Member) -> None:
    federation = member.federation()
    bare = play(member.protocol, federation, member.model)
    guarded = play(member.protocol, federation, member.model, client=Busy(), server_guard=BusyServer())
    assert guarded.bytes == bare.bytes


@every_member
def test_clipping_at_infinity_changes_nothing(member: Member) -> None:
    federation = member.federation()
    bare = play(member.protocol, federation, member.model)
    assert play(member.protocol, federation, member.model, client=Unbounded()).bytes == bare.bytes
