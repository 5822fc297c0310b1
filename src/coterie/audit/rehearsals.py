"""Federations that an adversary trains itself, to know how members look; and the game that it is put to.

The game is about the federation as it is configured: members are the rows that clients trained on, non-members the rows
that were held out for their tests. A quarter of the latter is the adversary's own, and known to it as such.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.attacks.shadows import Asked, Rehearsed, Seat, final, given, matching, uploaded
from coterie.data.federation import Examples, Federation, Shards
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots
from coterie.learn.models.model import Model
from coterie.measure.judge import YesNo
from coterie.measure.witness import Witness
from coterie.rng import Rng
from coterie.wire.messages import RESULT, Message
from coterie.wire.tape import Tape
from coterie.wire.view import View

KNOWN_SHARE = 0.25  # of the rows that nobody trained on
MEMBERS_TO_OTHERS = 3
AT_ONCE = 16  # rehearsals whose tapes are kept at the same time
UPDATES = 4  # rounds whose updates are solved for the records in them
LOOKS = 4  # rounds that are looked at, in the second half of the run

Deal = Callable[[Tensor], Federation]
"""How some of the rows are spread over clients, as far as the adversary knows it."""


@dataclass(frozen=True)
class Game:
    """What is asked, and for the judge alone what is true."""

    asked: Asked
    truth: YesNo  # by the question's number, of those that are scored; the strata are clusters

    @staticmethod
    def of(federation: Federation, clusters: Tensor, most: int, rng: Rng) -> Game:
        """About members and others, at most ``most`` of each; ``clusters`` (clients,) are those that clients use."""
        train, test = federation.train, federation.test
        draws = rng.child("game").numpy()
        inside = torch.stack([train.rows, _owners(train)], 1)
        held = torch.stack([test.rows, _owners(test)], 1)
        alike = federation.examples.alike()
        held = held[~torch.isin(alike[held[:, 0]], alike[train.rows])]  # a copy of what was trained on was trained on
        inside, held = (side[torch.from_numpy(draws.permutation(len(side)))] for side in (inside, held))
        # What several clients have is asked about once.
        inside, outside = (side[_first_of_each(alike[side[:, 0]])] for side in (inside, held))
        inside = inside[torch.from_numpy(draws.permutation(len(inside))[:most])]
        outside = outside[torch.from_numpy(draws.permutation(len(outside))[:most])]
        both = torch.cat([inside, outside])
        number = torch.arange(len(both))
        known = (number >= len(inside)) & (number < len(inside) + int(KNOWN_SHARE * len(outside)))
        asked = Asked(both[:, 0], clusters[both[:, 1]], both[:, 1], known)
        scored = _alike(asked, len(inside), federation.examples.y)
        answers: dict[Hashable, bool] = {one: one < len(inside) for one in scored}
        return Game(asked, YesNo(answers, {one: int(asked.clusters[one]) for one in scored}))


def _alike(asked: Asked, members: int, labels: Tensor) -> list[int]:
    """Questions, the first ``members`` about members, such that either side has the other's labels in every cluster.

    Else who recognises a label, or a cluster, would pass for one who recognises members. All others are asked as well:
    they are in updates, and not scored.
    """
    kinds = asked.clusters * (int(labels.max()) + 1) + labels[asked.rows]
    inside = torch.arange(len(asked)) < members
    found: list[int] = []
    for kind in kinds.unique().tolist():
        here = (kinds == kind) & ~asked.known
        yes, no = (here & inside).nonzero().flatten(), (here & ~inside).nonzero().flatten()
        count = min(len(yes), MEMBERS_TO_OTHERS * len(no))
        found += [*yes[:count].tolist(), *no[: -(-count // MEMBERS_TO_OTHERS)].tolist()]
    return sorted(found)


def _owners(parts: Shards) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(parts)), parts.sizes)


def _first_of_each(values: Tensor) -> Tensor:
    """Where each distinct value stands first."""
    order = values.argsort(stable=True)
    counts = values[order].unique_consecutive(return_counts=True)[1]
    return order[torch.cat([counts.new_zeros(1), counts.cumsum(0)[:-1]])] if len(counts) else order


def updates_of(rounds: Sequence[int], most: int = UPDATES) -> list[int]:
    """Some rounds, spread evenly: the first ones move most, the last ones are where models end."""
    places = torch.linspace(0, len(rounds) - 1, min(most, len(rounds))).long().unique().tolist()
    return [rounds[place] for place in places]


class Glances(Tape):
    """A tape of some rounds alone, and of what is handed out in the end: all of a large run would not fit."""

    def __init__(self, seats: Sequence[Seat], rounds: Sequence[int]) -> None:
        super().__init__([seat.threat() for seat in seats])
        self._rounds = frozenset(rounds)

    def record(self, message: Message, goes_on: bool = False) -> None:
        if message.round in self._rounds or message.kind == RESULT:
            super().record(message, goes_on)


def looks_of(rounds: int, looks: int = LOOKS) -> tuple[int, ...]:
    """Some rounds of the second half, the last among them."""
    wanted = torch.linspace(rounds / 2, rounds - 1, looks).long().clamp_min(0)
    return tuple(wanted.unique().tolist())


@dataclass(frozen=True)
class Rehearsals:
    """How the adversary trains federations of its own: as it believes that the real one is trained."""

    protocol: AnyProtocol
    examples: Examples  # the records in question, whatever has become of them
    deal: Deal
    model: Model
    defence: Defence
    share: float  # of the examples, in each rehearsal
    count: int
    seats: tuple[Seat, ...] = tuple(Seat)

    def run(self, asked: Asked, real: Tensor, rounds: tuple[int, ...], rng: Rng) -> dict[Seat, Rehearsed]:
        """``real`` (questions, slots) are the confidences under the real run's final models, to know clusters by."""
        found: dict[Seat, list[tuple[Tensor, Tensor]]] = {seat: [] for seat in self.seats}
        for start in range(0, self.count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, self.count))
            rings = [self._ring(rng.child("rehearsal", number), rounds) for number in numbers]
            for ring, state in zip(rings, run_together(rings), strict=True):
                ring.hand_out(state)
                for seat, pair in self._looked_at(ring, asked, real, rounds).items():
                    found[seat].append(pair)
        return {
            seat: Rehearsed(torch.stack([one for one, _ in pairs]), torch.stack([other for _, other in pairs]))
            for seat, pairs in found.items()
        }

    def _ring(self, rng: Rng, rounds: Sequence[int]) -> AnyRing:
        count = round(self.share * len(self.examples))
        rows = torch.randperm(len(self.examples), generator=rng.child("rows").torch())[:count]
        own = self.deal(rows)
        tape = Glances([*self.seats, Seat.FINAL], rounds)
        return Ring(self.protocol, own, self.model, self.defence, Roots.same(rng), tape, witness=Witness(), processes=0)

    def _looked_at(
        self, ring: AnyRing, asked: Asked, real: Tensor, rounds: Sequence[int]
    ) -> dict[Seat, tuple[Tensor, Tensor]]:
        """By seat: what it sees (looks, questions) where the record was in, and where it was out; else NaN."""
        under = final(ring.view(Seat.FINAL.threat()), self.model, self.examples, asked)  # (1, questions, slots)
        slots = matching(real, under[0], self.examples.y[asked.rows])[asked.clusters]
        assert isinstance(ring.federation, Federation)
        whose = torch.full((len(self.examples),), -1)
        whose[ring.federation.train.rows] = _owners(ring.federation.train)
        holder = whose[asked.rows]  # (questions,), -1: nobody
        inside = (holder >= 0) & _took_part(ring, under.shape[2])[holder.clamp_min(0), slots]
        every = torch.arange(len(asked))
        found: dict[Seat, tuple[Tensor, Tensor]] = {}
        for seat in self.seats:
            view = ring.view(seat.threat())
            if seat is Seat.UPLOADS:
                matched = replace(asked, clusters=slots)
                own = uploaded(view, self.model, self.examples, replace(matched, clients=holder), rounds)
                others = uploaded(view, self.model, self.examples, matched, rounds)
                found[seat] = (own, others.masked_fill(holder == asked.clients, torch.nan))
                continue
            looks = given(seat, view, self.model, self.examples, asked, rounds)[:, every, slots]
            found[seat] = (looks.masked_fill(~inside, torch.nan), looks.masked_fill(inside, torch.nan))
        return found


def clusters_used(view: View, model: Model, federation: Federation) -> Tensor:
    """(clients,): the cluster whose last published model fits each client's rows best."""
    models = view.received(view.last()).values
    found = torch.zeros(federation.clients, dtype=torch.int64)
    for client in federation.train.sizes.nonzero().flatten().tolist():
        rows = federation.train[client]
        losses = model.slot_losses(models, federation.examples.x[rows], federation.examples.y[rows])
        found[client] = int(losses.mean(0).argmin())
    return found


def _took_part(ring: AnyRing, slots: int) -> Tensor:
    """(clients, slots) bool: who contributed to which cluster, when it was last asked."""
    witness = ring.witness
    assert isinstance(witness, Witness)
    found = torch.zeros(ring.federation.clients, slots, dtype=torch.bool)
    for _, members in sorted(witness.members.items()):
        for clients in members.values():
            found[clients] = False
        for slot, clients in members.items():
            found[clients, slot] = True
    return found
