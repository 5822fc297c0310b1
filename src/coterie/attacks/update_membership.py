"""Which records are in an update? Membership without rehearsals, for whoever sees updates: a client's, or a cluster's.

The white-box attack of Nasr, Shokri and Houmansadr (2019) looks at the gradient that each record would have caused;
here the records in question are told apart jointly, by least squares (``attacks.coefficients``), as for canaries. The
fewer records stand behind an update, the better they are told apart: a cluster's update has fewer behind it than a
whole federation's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.coefficients import Unknowns, gradients
from coterie.attacks.shadows import Asked, Seat
from coterie.attacks.updates import aggregates
from coterie.data.auxiliary import Auxiliary
from coterie.errors import require
from coterie.learn.models.model import Model
from coterie.learn.params import Params, flatten, map_leaves, pick
from coterie.rng import Rng
from coterie.wire.messages import TRAIN
from coterie.wire.view import ThreatModel, View

LEAST_RIDGE = 1e-3  # gradients change while clients train, and least squares would explain that too
ENTRIES = 4096  # of the parameters, at random: more tell hardly more, and cost as much more
FEW = 5  # known ones that a scale can be taken from

Moved = tuple[int, Params, Params]
"""A client or a cluster, the model that it started from, and what it moved against gradients."""


@dataclass(frozen=True)
class UpdateMembership:
    """``seat`` is the server's (what each client sent) or a curious client's (what each cluster moved by)."""

    seat: Seat
    model: Model
    asked: Asked = field(repr=False)
    rounds: tuple[int, ...] = ()  # those that it looks at; all, if empty
    clip: float | None = None  # DP-SGD's, which everybody knows
    client: int = 0  # the curious client's number
    upto: int | None = None  # the last round that it looks at

    def __post_init__(self) -> None:
        require(self.seat is not Seat.FINAL, "seat", self.seat.value, "sees no updates")

    @property
    def threat(self) -> ThreatModel:
        return self.seat.threat(self.client)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        """One score a question; nothing about those of whom nothing can be read."""
        view.last(TRAIN)  # raises where nothing at all was seen
        examples, whose = auxiliary.whole(), self.asked.clients if self.seat is Seat.UPLOADS else self.asked.clusters
        length = sum(leaf.numel() for leaf in self.model.init(0).values())
        entries = torch.randperm(length, generator=rng.child("entries").torch())[:ENTRIES]
        unknowns: dict[int, Unknowns] = {}
        for number, start, moved in moves(self.seat, view, self._looked_at):
            rows = self.asked.rows[whose == number]
            if len(rows):
                found = gradients(self.model, start, examples.x[rows], examples.y[rows], self.clip, entries)
                unknowns.setdefault(number, Unknowns(len(rows))).enter(found, flatten(moved, leading=0)[entries])
        scores = torch.full((len(self.asked),), torch.nan, dtype=torch.float64)
        for number, unknown in unknowns.items():
            here = whose == number
            scores[here] = scaled(unknown.solved(0.0, LEAST_RIDGE), self.asked.known[here])
        told = (~scores.isnan() & ~self.asked.known).nonzero().flatten().tolist()
        return Suspicions({number: float(scores[number]) for number in told})

    def _looked_at(self, round: int) -> bool:
        return (not self.rounds or round in self.rounds) and (self.upto is None or round <= self.upto)


def moves(seat: Seat, view: View, looked_at: Callable[[int], bool]) -> Iterator[Moved]:
    """Of clients, by what they sent, or of clusters, by what was published; nothing where that cannot be read."""
    if seat is Seat.PUBLISHED:
        for one in aggregates(view):
            if looked_at(one.round):
                yield one.slot, one.start, map_leaves(torch.neg, one.update)
        return
    for round in filter(looked_at, view.rounds()):
        sent = view.sent(round) if view.has_sent(round) else None
        models = view.received(round).values
        if sent is None or not sent.values or not models:  # sealed
            continue
        for position, client in enumerate(sent.ids.tolist()):
            slot = int(sent.membership[position].argmax())
            start = pick(models, slot)
            leaves = {name: leaf[position, slot if leaf.shape[1] > 1 else 0] for name, leaf in sent.values.items()}
            yield client, start, map_leaves(torch.sub, start, leaves)


def scaled(found: Tensor, known: Tensor) -> Tensor:
    """Of one client or cluster, to be compared with others': in deviations above those known not to be in."""
    outside = found[known] if int(known.sum()) >= FEW else found
    return (found - outside.median()) / (outside - outside.median()).abs().median().clamp_min(1e-300)
