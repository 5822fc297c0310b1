"""Obtaining the models of all clusters from a server that gives each client only its own (paper 000, Appendix A).

Against Sattler's clustering the server places a newcomer by walking down its tree of splits: at each it sends the model
at which the cluster was split and compares the answer with the two sides. The antiparallel of an update is as unlike
either side as the update was like it, so it goes where the update would not have gone. Newcomers of one adversary
steer by this into different clusters, until there is none left that they have not been in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from coterie.data.auxiliary import Auxiliary
from coterie.learn.params import flatten
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import Contributions, Down
from coterie.wire.view import ThreatModel, View

PLACING = "place"  # requests of this kind place a newcomer; each split of the tree has its own


def acquisition_threat(newcomers: frozenset[int]) -> ThreatModel:
    return ThreatModel(
        "model acquisition",
        clients=newcomers,
        knows="nothing beyond what its newcomers are sent; their data need not be real",
    )


@dataclass(frozen=True)
class Obtained:
    """Which clusters' models the adversary was given, round by round, and by how many newcomers of its own."""

    slots: Mapping[int, frozenset[int]]
    newcomers: Mapping[int, int]


@dataclass(frozen=True)
class Walk:
    """One newcomer's way down: at which splits it was asked, and whether it went the way of the first asked there."""

    sides: Mapping[str, bool]  # from the root down
    finished: bool

    def below(self, split: str) -> str | None:
        """The split at which it was asked next; None: the end of its way."""
        splits = list(self.sides)
        following = splits[splits.index(split) + 1 :]
        return following[0] if following else None


@dataclass(frozen=True)
class ModelAcquisition:
    """Decides by what its newcomers were asked and sent before, which it remembers."""

    threat: ThreatModel

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        """Where a newcomer is placed, it turns its update round if that leads where none of the others was."""
        if asked.kind.name != PLACING:
            return honest
        split = str(asked.kind)
        models = asked.published.values  # leaves (1, ...)
        updates = flatten(honest.values, leading=2)[:, 0] - flatten(models)  # (newcomers, length)
        references = memory.setdefault("references", {})
        along = like(updates, references.get(split, updates[0]))
        walks = walks_of(memory, asked.round)
        flips = []
        for position in range(len(honest)):
            side = wanted_side(split, walks)
            flips.append(side != bool(along[position]))
            walks.append(Walk({split: side}, finished=False))
        flip = torch.tensor(flips)
        values = {
            name: torch.where(flip.view(-1, *[1] * (leaf.dim() - 1)), 2 * models[name].unsqueeze(0) - leaf, leaf)
            for name, leaf in honest.values.items()
        }
        sent = torch.where(flip.unsqueeze(1), -updates, updates)
        reference = references.setdefault(split, sent[0])
        remember(memory, asked.round, split, honest.ids.tolist(), like(sent, reference).tolist())
        return replace(honest, values=values)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Obtained:
        view.last()  # raises where nothing at all was seen
        rounds = view.rounds()
        slots = {round: frozenset(view.received(round).slots.tolist()) for round in rounds}
        return Obtained(slots, {round: len(view.sent(round)) for round in rounds})


def wanted_side(split: str, walks: list[Walk]) -> bool:
    """The side of this split that is not exhausted, or else the one that fewer have taken."""
    visits = {side: sum(walk.sides.get(split) == side for walk in walks) for side in (True, False)}
    promising = [side for side in (True, False) if not exhausted(split, side, walks)]
    return min(promising or [True, False], key=lambda side: visits[side])


def exhausted(split: str, side: bool, walks: list[Walk]) -> bool:
    """Someone ended there, or both sides of the split below are exhausted."""
    for walk in walks:
        if walk.finished and walk.sides.get(split) == side:
            below = walk.below(split)
            if below is None or (exhausted(below, True, walks) and exhausted(below, False, walks)):
                return True
    return False


def walks_of(memory: Memory, now: int) -> list[Walk]:
    """The last way of every newcomer that has been placed, or is being placed in this round."""
    return [Walk(way, finished=round < now) for round, way in memory.get("ways", {}).values()]


def remember(memory: Memory, round: int, split: str, newcomers: list[int], along: list[bool]) -> None:
    """Which way each newcomer went at this split, seen from the first that was ever asked there."""
    ways = memory.setdefault("ways", {})
    for newcomer, side in zip(newcomers, along, strict=True):
        before, way = ways.get(newcomer, (round, {}))
        ways[newcomer] = (round, {**(way if before == round else {}), split: side})


def like(updates: Tensor, reference: Tensor) -> Tensor:
    """Which of the updates (newcomers, length) point the way of the reference."""
    return cosine_similarity(updates, reference.unsqueeze(0), -1) >= 0
