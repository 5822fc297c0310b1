"""The server's half of mingling."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from coterie.defences.mingling.client import KEPT, RESEAL, VOTES
from coterie.defences.secure_sums import (
    ClientsDropped,
    PairwiseMasks,
    RoundLeftOut,
    Smallest,
    hidden_sums,
    listed,
    secure_sums,
)
from coterie.errors import InvalidInput
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.guard import Collecting, ServerGuard
from coterie.flow.turn import Turn
from coterie.seal.cipher import add_intact
from coterie.wire.messages import CHOOSE, TRAIN, Contributions
from coterie.wire.sealed import SEALED


@dataclass(frozen=True)
class MinglingServer(ServerGuard):
    """The server's half: it adds what it cannot read."""

    context: object  # by which it knows what was sealed with the federation's key
    masks: PairwiseMasks | None  # by which models are summed, if not by that key
    smallest: Smallest

    def expects(self, expected: Expected) -> Expected:
        return expected.sealed()

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        """What is no model is summed under masks in any case; models under the clients' key, or under masks and a veil.

        A vote tells how large the clusters are, and whoever knows that reads more out of identity sets: it is veiled.
        """
        if ask.kind == CHOOSE:
            votes = yield from hidden_sums(ask, turn, self.masks or PairwiseMasks(), None)
            return Sums.nothing() if votes is None else Sums({}, votes[1].double(), votes[1], {VOTES: votes[0]})
        if ask.kind != TRAIN:
            return (yield from self._open(ask, turn))
        if self.masks is None:
            return (yield from self._sealed(ask, turn))
        found = yield from hidden_sums(ask, turn, self.masks, self.smallest)
        if found is None:
            return Sums.nothing()
        total, counts = found  # a cluster with too few members, decoys included, keeps the sum that it had
        return Sums({}, counts.double(), counts, {SEALED: total.filled_from(ask.published.sealed.get(SEALED))})

    def _open(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        opened = yield from secure_sums(ask, turn, self.masks or PairwiseMasks())
        if opened is None:
            return Sums.nothing()
        return Sums(opened.leaves, opened.counts.double(), opened.counts)

    def _sealed(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        """Sums under the clients' key, and the models before them, which one client seals anew: the server cannot tell
        which cluster nobody chose, and such a cluster keeps its model."""
        groups, answered = (yield ask), []

        def noting() -> Iterator[Contributions]:
            for part in groups:
                answered.extend(part.ids.tolist())
                yield part

        sums = self.aggregate(noting(), turn)
        if sums.empty or not ask.published.sealed:  # the first models are plain, and everybody has them
            return sums
        for client in answered:
            request = replace(ask, kind=replace(ask.kind, part=RESEAL), clients=torch.tensor([client]), sees=None)
            for part in (yield request):
                if KEPT in part.sealed and not self._usable(replace(part, sealed={SEALED: part.sealed[KEPT]}))[1]:
                    kept, why = add_intact(part.sealed[KEPT], part.membership)
                    if not why:
                        return replace(sums, sealed={**sums.sealed, KEPT: kept})
        warnings.warn(
            f"round {turn.round}: nobody sealed the former models; it was left out", RoundLeftOut, stacklevel=2
        )
        return Sums.nothing()

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        """Eq. 5 and 6. What cannot be used is left out with a notice, and costs nobody else's answer."""
        totals: list[Sums] = []  # of one kind and length each; an odd one out must not spoil the others
        dropped: dict[int, str] = {}
        members: list[list[int]] = []
        for part in replies:
            usable, why = self._usable(part)
            dropped |= why
            if len(usable) == 0:
                continue
            sums, why = _add(usable)
            dropped |= why
            if sums is not None:
                _merge(totals, members, sums, [client for client in usable.ids.tolist() if client not in why])
        if not totals:
            warnings.warn(f"round {turn.round}: no usable answer: {listed(dropped)}", ClientsDropped, stacklevel=2)
            return Sums.nothing()
        best = max(range(len(totals)), key=lambda index: len(members[index]))
        for index, clients in enumerate(members):
            if index != best:
                dropped |= dict.fromkeys(clients, "its ciphertext differs from most in length, clusters or round")
        if dropped:
            warnings.warn(f"round {turn.round}, {turn.kind}: dropped {listed(dropped)}", ClientsDropped, stacklevel=2)
        return totals[best]

    def _usable(self, part: Contributions) -> tuple[Contributions, dict[int, str]]:
        """The clients with a sealed answer for at least one cluster, and why the others have none."""
        batch = part.sealed.get(SEALED)
        why: dict[int, str] = {}
        for client, row in zip(part.ids.tolist(), part.membership, strict=True):
            if batch is None or part.values:
                why[client] = "its answer is not sealed"
            elif hasattr(batch, "context") and batch.context != self.context:
                why[client] = "its ciphertext was made with another key"
            elif not bool(((row == 0) | (row == 1)).all()):
                why[client] = f"its identity set {row.tolist()} is not of zeros and ones"
            elif not bool(row.any()):
                why[client] = "its identity set has no member"
        kept = [position for position, client in enumerate(part.ids.tolist()) if client not in why]
        return part.pick(torch.tensor(kept, dtype=torch.int64)), why


def _add(part: Contributions) -> tuple[Sums | None, dict[int, str]]:
    """The sums over this part's intact clients, if there are any, and why others were left out."""
    try:
        total, why = add_intact(part.sealed[SEALED], part.membership)
    except InvalidInput as problem:
        return None, dict.fromkeys(part.ids.tolist(), str(problem))
    intact = [position for position, client in enumerate(part.ids.tolist()) if client not in why]
    counts = part.membership[intact].sum(0, dtype=torch.float64)
    return Sums({}, counts, counts.long(), {SEALED: total}), why


def _merge(totals: list[Sums], members: list[list[int]], sums: Sums, clients: list[int]) -> None:
    for index, total in enumerate(totals):
        if total.counts.shape != sums.counts.shape:
            continue
        try:
            totals[index] = total + sums
        except InvalidInput:  # of another length or round
            continue
        members[index] += clients
        return
    totals.append(sums)
    members.append(clients)
