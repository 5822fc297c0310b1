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
from coterie.wire.messages import Contributions, Envelope
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
    """Decides in every round from what its newcomers were asked and sent before; it remembers nothing else."""

    threat: ThreatModel

    def tamper(self, envelope: Envelope, so_far: View, rng: Rng) -> Envelope:
        if not envelope.kind.startswith(PLACING):
            return envelope
        sent = envelope.payload
        assert isinstance(sent, Contributions)
        models = so_far.received(envelope.round, envelope.kind).values  # leaves (1, ...)
        honest = flatten(sent.values, leading=2)[:, 0] - flatten(models)  # (newcomers, length)
        reference = first_update(so_far, envelope.kind)
        along = like(honest, honest[0] if reference is None else reference)
        walks = all_walks(so_far, envelope.round)
        flips = []
        for position in range(len(sent)):
            side = wanted_side(envelope.kind, walks)
            flips.append(side != bool(along[position]))
            walks.append(Walk({envelope.kind: side}, finished=False))
        flip = torch.tensor(flips)
        values = {
            name: torch.where(flip.view(-1, *[1] * (leaf.dim() - 1)), 2 * models[name].unsqueeze(0) - leaf, leaf)
            for name, leaf in sent.values.items()
        }
        return replace(envelope, payload=replace(sent, values=values))

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Obtained:
        slots = {round: frozenset(view.received(round).slots.tolist()) for round in view.rounds()}
        return Obtained(slots, {round: len(view.sent(round)) for round in view.rounds()})


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


def all_walks(view: View, now: int) -> list[Walk]:
    """The last way of every newcomer that has been placed, or is being placed in this round."""
    kinds = [kind for kind in view.kinds() if kind.startswith(PLACING)]
    rounds: dict[int, int] = {}
    ways: dict[int, dict[str, bool]] = {}
    asked = sorted(((round, kind) for kind in kinds for round in view.rounds(kind)), key=_when)
    for round, kind in asked:
        answers = _answers(view, round, kind)
        reference = first_update(view, kind)
        if answers is None or reference is None:
            continue
        for client, along in zip(answers[0], like(answers[1], reference).tolist()):
            if rounds.get(client) != round:
                rounds[client], ways[client] = round, {}
            ways[client][kind] = along
    return [Walk(way, finished=rounds[client] < now) for client, way in ways.items()]


def first_update(view: View, kind: str) -> Tensor | None:
    """The first update that one of the adversary's newcomers ever sent at this split."""
    for round in view.rounds(kind):
        answers = _answers(view, round, kind)
        if answers is not None:
            return answers[1][0]
    return None


def like(updates: Tensor, reference: Tensor) -> Tensor:
    """Which of the updates (newcomers, length) point the way of the reference."""
    return cosine_similarity(updates, reference.unsqueeze(0), -1) >= 0


def _answers(view: View, round: int, kind: str) -> tuple[list[int], Tensor] | None:
    """Who of the adversary's newcomers answered at this split in this round, and with which updates."""
    if not view.has_sent(round, kind):
        return None
    sent = view.sent(round, kind)
    model = flatten(view.received(round, kind).values)
    return sent.ids.tolist(), flatten(sent.values, leading=2)[:, 0] - model


def _number(kind: str) -> int:
    return int("".join(filter(str.isdigit, kind)) or 0)


def _when(asked: tuple[int, str]) -> tuple[int, int]:
    return asked[0], _number(asked[1])
