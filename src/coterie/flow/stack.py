"""Several defences at once. Clients apply them in the order given, and undo them in the reverse order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TypeVar

from dp_accounting import DpEvent
from torch import Tensor

from coterie.errors import InvalidInput, require
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Step, Turn
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params
from coterie.privacy.guarantee import Guarantee, RunFacts, Trust
from coterie.privacy.ledger import Spend
from coterie.wire.messages import Contributions, Down, Kind, Published

A = TypeVar("A", bound=Defence)


@dataclass(frozen=True)
class StackedClient(ClientGuard):
    guards: tuple[ClientGuard, ...]

    @property
    def example_clip(self) -> float | None:
        return min((guard.example_clip for guard in self.guards if guard.example_clip is not None), default=None)

    @property
    def gradient_noise(self) -> float | None:
        return 0.0 if self._noiser is None else self._noiser.gradient_noise

    @property
    def dropout(self) -> float:
        return max(guard.dropout for guard in self.guards)

    @property
    def plain(self) -> bool:
        return all(guard.plain for guard in self.guards)

    @property
    def by_client(self) -> bool:
        return all(guard.by_client for guard in self.guards)

    @property
    def reveals(self) -> str:
        return "; ".join(why for guard in self.guards if (why := guard.reveals))

    @property
    def answers_anyway(self) -> bool:
        return any(guard.answers_anyway for guard in self.guards)

    def receive(self, published: Published, turn: Turn) -> Published:
        return reduce(lambda found, guard: guard.receive(found, turn), reversed(self.guards), published)

    def columns(self, cohort: Cohort) -> tuple[Tensor, ...]:
        for guard in self.guards:
            cohort = replace(cohort, columns=guard.columns(cohort))
        return cohort.columns

    def gradients(self, model: Model, params: Params, batch: Batch, step: Step) -> dict[str, Tensor]:
        own = self._noiser
        return (
            super().gradients(model, params, batch, step) if own is None else own.gradients(model, params, batch, step)
        )

    @property
    def _noiser(self) -> ClientGuard | None:
        """The member that makes gradients of its own."""
        own = [guard for guard in self.guards if type(guard).gradients is not ClientGuard.gradients]
        require(len(own) <= 1, "members that noise gradients", len(own), "must be one; keep one of them")
        return own[0] if own else None

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        return reduce(lambda found, guard: guard.gradient(dict(found), params, step), self.guards, grads)

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        return reduce(lambda found, guard: guard.contribute(found, cohort), self.guards, sent)

    def exposes(self, kind: Kind) -> tuple[Spend, ...]:
        return tuple(spent for guard in self.guards for spent in guard.exposes(kind))

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        for guard in self.guards:
            if type(guard).follow_up is not ClientGuard.follow_up:
                return guard.follow_up(asked, cohort)
        return super().follow_up(asked, cohort)


@dataclass(frozen=True)
class StackedServer(ServerGuard):
    """One guard collects (the one that seals, if there is one); then each has its say on the sums."""

    guards: tuple[ServerGuard, ...]
    collector: ServerGuard

    def expects(self, expected: Expected) -> Expected:
        return reduce(lambda found, guard: guard.expects(found), self.guards, expected)

    def screen(self, sent: Contributions, asked: Down, turn: Turn) -> Contributions:
        return reduce(lambda found, guard: guard.screen(found, asked, turn), self.guards, sent)

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        return (yield from self.collector.collect(ask, turn))

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        return self.collector.aggregate(replies, turn)

    def release(self, sums: Sums, turn: Turn) -> Sums:
        return reduce(lambda found, guard: guard.release(found, turn), self.guards, sums)

    def publish(self, published: Published, turn: Turn) -> Published:
        return reduce(lambda found, guard: guard.publish(found, turn), self.guards, published)


@dataclass(frozen=True, init=False)
class Stack(Defence):
    """``Stack(DpSgd(...), Mingling(...))``: noise inside, seals outside. One member may seal, the last."""

    members: tuple[Defence, ...]

    def __init__(self, *members: Defence) -> None:
        object.__setattr__(self, "members", members)
        require(len(members) > 0, "members", (), "must be at least one defence")
        sealing = [type(member).__name__ for member in members if member.seals]
        require(len(sealing) <= 1, "members", sealing, "seal the same answers twice; keep one of them")
        reading = [type(member).__name__ for member in members if member.reads]
        require(
            not sealing or not reading,
            "members",
            reading,
            f"must read the answers that {sealing[:1]} hides; keep one of the two",
        )
        require(
            not sealing or members[-1].seals,
            "members",
            [type(member).__name__ for member in members],
            f"must end with {sealing[:1]}: what is sealed cannot be changed any more",
        )
        tagging = [place for place, member in enumerate(members) if member.tags]
        later = [
            type(member).__name__ for member in members[min(tagging, default=len(members)) + 1 :] if _sends(member)
        ]
        require(
            not later,
            "members",
            later,
            "must come before the one that tags: a tag tells of what they change, and no longer fits",
        )

    @property
    def seals(self) -> bool:
        return any(member.seals for member in self.members)

    @property
    def unsealed(self) -> Defence:
        opened = [member.unsealed for member in self.members]
        kept = [one for one in opened if type(one) is not Defence]
        return Stack(*kept) if len(kept) > 1 else kept[0] if kept else Defence()

    @property
    def reads(self) -> bool:
        return any(member.reads for member in self.members)

    @property
    def tags(self) -> bool:
        return any(member.tags for member in self.members)

    @property
    def presumes(self) -> bool:
        return any(member.presumes for member in self.members)

    @property
    def client(self) -> ClientGuard:
        return StackedClient(tuple(member.client for member in self.members))

    @property
    def server(self) -> ServerGuard:
        guards = tuple(member.server for member in self.members)
        own = [
            guard
            for guard in guards
            if type(guard).collect is not ServerGuard.collect or type(guard).aggregate is not ServerGuard.aggregate
        ]
        if len(own) > 1:
            names = [type(guard).__name__ for guard in own]
            raise InvalidInput(f"members with guards {names} each add up in a way of their own; keep one of them")
        return StackedServer(guards, own[0] if own else ServerGuard())

    @property
    def keys(self) -> Mapping[str, object]:
        return {name: key for member in self.members for name, key in member.keys.items()}

    def fits(self, protocol: AnyProtocol) -> str:
        return "; ".join(why for member in self.members if (why := member.fits(protocol)))

    def kept_in(self, folder: Path) -> Stack:
        return Stack(*(member.kept_in(folder) for member in self.members))

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        return [event for member in self.members for event in member.events(run)]

    def guarantee(self, run: RunFacts) -> Guarantee | None:
        """The strongest that is proven, or else what the first of them says.

        What is proven of a member alone holds beside those that go by what they are handed: before it, that is its
        data, and after it, what it has released. One that goes by raw data besides leaves nothing of it, and neither
        does one that comes between a bound and the noise that is scaled to it.
        """
        said = [(place, found) for place, one in enumerate(self.members) if (found := one.guarantee(run)) is not None]
        proven = [(place, found) for place, found in said if found.proven]
        if not proven:
            return said[0][1] if said else None
        whole = [found for place, found in proven if not self._undone(place, found)]
        if whole:
            return min(whole, key=lambda found: found.epsilon)
        place, best = min(proven, key=lambda one: one[1].epsilon)
        name, why = type(self.members[place]).__name__, "; ".join(self._undone(place, best))
        return Guarantee.none(
            f"{name} alone is ({best.epsilon:.4g}, {best.delta:.0e})-DP, but {why}",
            best.level,
            best.trust,
            stated=best.epsilon,
        )

    def _undone(self, place: int, proven: Guarantee) -> list[str]:
        """Why what is proven of this member alone is not proven beside the others."""
        member, found = self.members[place], []
        for at, other in enumerate(self.members):
            if at == place:
                continue
            name = type(other).__name__
            if why := other.client.reveals:
                found.append(f"beside it {name} reveals {why}")
            if other.reads and proven.trust is Trust.TRUSTED_AGGREGATOR:
                found.append(f"{name} acts on single answers before there is noise on their sum")
            if member.presumes and other.presumes:
                found.append(f"{name} puts noise on the same sums, and only the first of two is given what is bounded")
            elif not other.reads and _between(member, other, at < place, proven.trust):
                found.append(f"{name} changes what its noise is scaled to, after it was bounded")
        return found


def _between(member: Defence, other: Defence, earlier: bool, trust: Trust) -> bool:
    """Whether another may change what a unit moves, after it was bounded and before there is noise on it.

    The bound is the protocol's, or the member's own; the noise comes with the member's answers, or on the server's sums
    of them. Those who seal or tag leave answers as they are.
    """
    on_the_server = trust is Trust.TRUSTED_AGGREGATOR
    parts = [part for part in members(other) if not (part.seals or part.tags)]
    if (on_the_server or earlier) and (member.presumes or not earlier) and any(map(_sends, parts)):
        return True
    points = ["screen", "collect", "aggregate", *(["release"] if earlier else [])]
    return on_the_server and any(
        getattr(type(part.server), point) is not getattr(ServerGuard, point) for part in parts for point in points
    )


def members(defence: Defence) -> list[Defence]:
    """All that act together: those of a stack, and of stacks in it; else the defence itself."""
    return [part for one in defence.members for part in members(one)] if isinstance(defence, Stack) else [defence]


def member_of(defence: Defence, kind: type[A]) -> A | None:
    """The first member of this kind: whoever asks what a defence is must ask what is in it."""
    return next((one for one in members(defence) if isinstance(one, kind)), None)


def _sends(member: Defence) -> bool:
    """Whether its clients' half changes what leaves them."""
    guards = member.client.guards if isinstance(member.client, StackedClient) else (member.client,)
    return any(type(guard).contribute is not ClientGuard.contribute for guard in guards)
