"""Many federations computed together: axis 0 holds the clients of all of them.

Shadow federations, repetitions and sweeps are many small runs. A small federation spends its time on calls that hardly
compute anything, so the clients of many are trained in one computation: each from its own federation's models, with its
own federation's streams. One that spends it on matrix products gains nothing, and is run by itself, unless there is a
way with fewer of them (``coterie.flow.retraced``). Server, guards, tape, ledger and witness stay those of each ring;
what comes out is what the rings would have given one by one, to rounding (``tests/flow/test_together.py``, for every
trainer). What would have travelled is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from coterie.data.federation import Federation
from coterie.errors import require
from coterie.flow.ask import State
from coterie.flow.client import Answer, ClientSide
from coterie.flow.joint import JointCohort
from coterie.flow.retraced import Kept, RetracedCohort, products_bytes, retraces
from coterie.flow.ring import AnyRing, Ring
from coterie.learn.params import Layout, map_leaves
from coterie.wire.messages import TRAIN, Down, Up

TOGETHER_BYTES = 1 << 21
"""Parameters that are trained at the same time: more do not stay in a core's cache, and calls cost little then."""

RETRACED_TOGETHER = 8
"""Federations at a time, at least, whose steps do not touch most of the parameters, if their products fit in memory."""


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
    fitting = min(ring.chunk_bytes for ring in rings) // max(map(products_bytes, rings))
    shorter = all(map(retraces, rings)) and fitting > 1
    size = min(max(size, RETRACED_TOGETHER), fitting) if shorter else size
    if size < 2:
        return [ring.run() for ring in rings]
    groups = (rings[start : start + size] for start in range(0, len(rings), size))
    return [state for group in groups for state in _run_group(group, shorter)]


def _run_group(rings: Sequence[Ring[State]], shorter: bool) -> list[State]:
    """All of them at the same time, from start to end: what they compute with stays near."""
    kept: dict[int, Kept] = {}
    desks = [_Desk(ring) for ring in rings]
    waiting = [desk for desk in desks if desk.step()]
    while waiting:
        due = [desk for desk in waiting if desk.down.kind != TRAIN]  # these catch up first: all train the same round
        if not due:
            for slots, round in {desk.at for desk in waiting}:
                alike = [desk for desk in waiting if desk.at == (slots, round)]
                _answer(alike, kept.setdefault(slots, Kept()) if shorter else None)
        ended = {id(desk) for desk in due or waiting if not desk.step()}
        waiting = [desk for desk in waiting if id(desk) not in ended]
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
        self.course = self.ring.course(self, counted=False)
        self.down: Down

    @property
    def at(self) -> tuple[int, int]:
        """Slots and round: who is at the same may be trained together, for the round decides rate and rows."""
        return self.down.published.slots, self.down.round

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


def _answer(desks: Sequence[_Desk], kept: Kept | None = None) -> None:
    """The clients' half of one request, for all of these at once."""
    orders, cohorts = zip(*(desk.ring.clients.opened_for_all(desk.down) for desk in desks), strict=True)
    side: ClientSide = desks[0].ring.clients.side
    joint = JointCohort.of(cohorts) if kept is None else replace(RetracedCohort.of(cohorts), kept=kept)
    published = [order.published.values for order in orders]
    models = map_leaves(lambda *leaves: torch.cat(leaves), *published)
    honest = side.protocol.answer(TRAIN, models, joint, side.guard)
    joint.hand_back_spent()
    start = 0
    for desk, order, cohort in zip(desks, orders, cohorts, strict=True):
        end = start + len(cohort)
        own = replace(honest.between(start, end), ids=cohort.ids)
        desk.ready = desk.ring.clients.side.guarded(order, own, cohort)  # who is curious is each ring's own
        start = end
