"""A client that does not want to learn anything, but to spoil what the others learn.

It answers in place of an honest one, with something that looks like an answer. ``HOW`` has ten ways: some are malformed
and stop at the server's door, the others are models that only a defence can tell from honest ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.errors import nearest, require
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import TRAIN, Contributions, Down
from coterie.wire.view import ThreatModel

FACTOR = 20.0  # how many times its own update it undoes, or adds
STALE = "stale"


def poisoner(client: int = 0) -> ThreatModel:
    return ThreatModel(
        "one bad client",
        clients=frozenset({client}),
        knows="nothing beyond what every client is sent; it answers as it likes",
    )


Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""What is sent (..) in place of an honest leaf, by the honest one, what it began with, and draws."""

VALUES: dict[str, Change] = {
    "nan": lambda honest, start, draws: torch.full_like(honest, torch.nan),
    "infinite": lambda honest, start, draws: torch.full_like(honest, torch.inf),
    "huge": lambda honest, start, draws: torch.full_like(honest, 1e30),
    "zeros": lambda honest, start, draws: torch.zeros_like(honest),
    "reversed": lambda honest, start, draws: start - FACTOR * (honest - start),
    "boosted": lambda honest, start, draws: start + FACTOR * (honest - start),
    "noise": lambda honest, start, draws: start + torch.randn(honest.shape, generator=draws),
}
OTHERWISE = ("weight", "elsewhere", STALE)
HOW = (*VALUES, *OTHERWISE)


@dataclass(frozen=True)
class Poisoning:
    """``how``: one of ``HOW``.

    "weight" is a weight below zero; "elsewhere" a reversed update for a cluster that it does not belong to; "stale" the
    answer of its first round, again and again.
    """

    threat: ThreatModel
    how: str = "reversed"

    def __post_init__(self) -> None:
        require(self.how in HOW, "how", self.how, nearest(self.how, HOW))

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        if asked.kind != TRAIN:
            return honest
        if self.how == "weight":
            return replace(honest, weights=torch.full_like(honest.weights, -1000.0))
        if self.how == STALE:
            return replace(honest, values=memory.setdefault(STALE, honest.values))
        if self.how == "elsewhere":
            honest = replace(honest, membership=honest.membership.roll(1, dims=1))
        change, draws = VALUES["reversed" if self.how == "elsewhere" else self.how], rng.torch()
        starts = _starts(asked, honest)
        return replace(honest, values={name: change(leaf, starts[name], draws) for name, leaf in honest.values.items()})


def _starts(asked: Down, honest: Contributions) -> dict[str, Tensor]:
    """(clients or 1, models, ...): what its models began with, as far as it was given that."""
    given, slots = asked.published.values, asked.published.slots
    chosen = honest.membership.argmax(1) if honest.membership.shape[1] == slots else torch.zeros(1, dtype=torch.int64)
    return {
        name: given[name][chosen].unsqueeze(1) if leaf.shape[1] == 1 else given[name].unsqueeze(0)
        for name, leaf in honest.values.items()
    }
