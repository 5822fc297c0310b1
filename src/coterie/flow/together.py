"""Many federations computed together: axis 0 holds the clients of all of them.

Shadow federations, repetitions and sweeps are many small runs. A small federation spends its time on calls that hardly
compute anything, so the clients of many are trained in one computation: each from its own federation's models, with its
own federation's streams. One that spends it on matrix products gains nothing, and is run by itself. Server, guards,
tape, traffic, ledger and witness stay those of each ring; what comes out is what the rings would have given one by one,
to rounding (``tests/flow/test_together.py``, for every trainer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.data.federation import Federation, Shards
from coterie.errors import require
from coterie.flow.ask import State
from coterie.flow.client import Answer, ClientSide
from coterie.flow.cohort import Cohort
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots, Turn
from coterie.learn.params import Copies, Layout, Params, map_leaves
from coterie.privacy.ledger import EVERYBODY
from coterie.rng import Rng, Secrets
from coterie.wire.messages import TRAIN, Down, Up

TOGETHER_BYTES = 1 << 21
"""Parameters that are trained at the same time: more do not stay in a core's cache, and calls cost little then."""


def run_together(rings: Sequence[Ring[State]], together_bytes: int = TOGETHER_BYTES) -> list[State]:
    """Every ring from its start to its end; the last states, in the order of the rings.

    They share protocol, model, defence and the examples that their clients' rows point into; who holds which, and all
    randomness, is each ring's own. Nobody acts in them: adversaries only look.
    """
    _check(rings)
    first = rings[0]
    if first.model is None or not first.model.vectorised:
        return [ring.run() for ring in rings]
    size = together_bytes // (4 * first.federation.clients * Layout.of(first.model.init(0)).length)
    if size < 2:
        return [ring.run() for ring in rings]
    desks = [_Desk(ring) for ring in rings]
    waiting = [desk for desk in desks if desk.step()]
    while waiting:
        joint = [desk for desk in waiting if desk.down.kind == TRAIN]
        slots = {desk.down.published.slots for desk in joint}
        for count in slots:
            alike = [desk for desk in joint if desk.down.published.slots == count]
            for start in range(0, len(alike), size):
                _answer(alike[start : start + size])
        waiting = [desk for desk in waiting if desk.step()]
    for ring in rings:
        ring.clients.forget_turn()
    return [desk.course.state for desk in desks]


def _check(rings: Sequence[Ring[State]]) -> None:
    require(len(rings) > 0, "rings", 0, "must be at least one")
    first = rings[0]
    for ring in rings:
        alike = (ring.protocol, ring.model, ring.defence) == (first.protocol, first.model, first.defence)
        require(alike, "ring", type(ring.protocol).__name__, "must have the protocol, model and defence of the others")
        rows = isinstance(ring.federation, Federation) and isinstance(first.federation, Federation)
        same = rows and ring.panel.examples is first.panel.examples
        require(same, "federation", type(ring.federation).__name__, "must be of rows of the others' very examples")
        plain = not ring.adversaries and ring.lost is None
        require(plain, "ring", "with adversaries that act, or lost answers,", "must be run on its own")


@dataclass
class _Desk:
    """One ring under way, and a ``Transport`` for it whose answers to a message may have been computed already."""

    ring: AnyRing
    ready: Answer | None = None

    def __post_init__(self) -> None:
        self.course = self.ring.course(self)
        self.down: Down

    def step(self) -> bool:
        """On to the next message; False at the end."""
        found = self.course.next_message()
        if found is None:
            return False
        self.down = found
        return True

    def exchange(self, asked: Down) -> Iterator[Up]:
        if self.ready is None:
            yield from self.ring.clients.exchange(asked)
            return
        answer, self.ready = self.ready, None
        yield from self.ring.clients.take(asked, answer)


def _answer(desks: Sequence[_Desk]) -> None:
    """The clients' half of one request, for all of these at once."""
    orders, cohorts = zip(*(desk.ring.clients.opened_for_all(desk.down) for desk in desks), strict=True)
    side: ClientSide = desks[0].ring.clients.side
    joint = JointCohort.of(cohorts)
    published = [order.published.values for order in orders]
    models = map_leaves(lambda *leaves: torch.cat(leaves), *published)
    honest = side.protocol.answer(TRAIN, models, joint, side.guard)
    joint.hand_back_spent()
    start = 0
    for desk, order, cohort in zip(desks, orders, cohorts, strict=True):
        end = start + len(cohort)
        own = replace(honest.pick(torch.arange(start, end)), ids=cohort.ids)
        desk.ready = side.guarded(order, own, cohort)
        start = end


@dataclass(frozen=True)
class JointTurn(Turn):
    """Of clients of several federations: a client's number is its place, and its streams are its own federation's."""

    places: tuple[tuple[Turn, int], ...] = field(default=(), compare=False)  # the federation's turn, the number there

    def draws(self, party: str | int, *purpose: str | int) -> Rng:
        turn, client = self.places[int(party)]
        return replace(turn, kind=self.kind).draws(client, *purpose)

    def secrets(self, party: str | int, *purpose: str | int) -> Secrets:
        turn, client = self.places[int(party)]
        return replace(turn, kind=self.kind).secrets(client, *purpose)


@dataclass
class JointCohort(Cohort):
    """The clients of several federations. Models have leaves (federations x slots, ...); slots are each one's own."""

    parts: tuple[Cohort, ...] = ()

    @staticmethod
    def of(parts: Sequence[Cohort]) -> JointCohort:
        places = tuple((part.turn, client) for part in parts for client in part.ids.tolist())
        first = parts[0]
        turn = JointTurn(first.turn.round, NOBODYS, first.turn.kind, places=places)
        offsets = torch.cat([part.shards.sizes for part in parts]).cumsum(0)
        shards = Shards(torch.cat([part.shards.rows for part in parts]), torch.cat([offsets.new_zeros(1), offsets]))
        schedules = {
            place: part.schedules[client]
            for place, (part, client) in enumerate((part, client) for part in parts for client in part.ids.tolist())
            if client in part.schedules
        }
        sees = None if first.sees is None else torch.cat([part.sees for part in parts if part.sees is not None])
        memory = [kept for part in parts for kept in part.memory]
        ids = torch.arange(len(places))
        return JointCohort(
            ids, turn, first.examples, shards, first.model, sees, schedules, memory=memory, parts=tuple(parts)
        )

    @property
    def whose(self) -> Tensor:
        """(clients,): the federation of each."""
        return torch.repeat_interleave(torch.arange(len(self.parts)), torch.tensor([len(part) for part in self.parts]))

    def hand_back_spent(self) -> None:
        """Each federation's own ledger has what its clients spent."""
        for client, spent, times in self.turn.ledger.rows:
            assert isinstance(self.turn, JointTurn)
            assert client != EVERYBODY
            turn, own = self.turn.places[client]
            turn.ledger.spend(spent, (own,), times)

    def seen(self, models: Params) -> Tensor:
        slots = self._slots(models)
        return torch.ones(len(self), slots, dtype=torch.bool) if self.sees is None else self.sees

    def copies(self, models: Params, choice: Tensor) -> Copies:
        return super().copies(models, choice + self._slots(models) * self.whose)

    def example_losses(self, models: Params, shards: Shards | None = None) -> Tensor:
        """Each federation's rows under its own models."""
        given, slots = shards or self.round_shards, self._slots(models)
        found, client = [], 0
        for number, part in enumerate(self.parts):
            rows = given.pick(range(client, client + len(part)))
            own = map_leaves(lambda leaf, at=number * slots: leaf[at : at + slots], models)
            found.append(part.example_losses(own, rows))
            client += len(part)
        return torch.cat(found)

    def _slots(self, models: Params) -> int:
        return next(iter(models.values())).shape[0] // len(self.parts)


NOBODYS = Roots.seeded(0)
"""A joint turn has no streams of its own."""
