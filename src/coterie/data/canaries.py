"""Records that an auditor plants, each by a coin of its own, to see whether they can be found again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards
from coterie.errors import require
from coterie.rng import Rng

LIT = 0.05
"""Of a canary's features. Few of them: the gradients of two canaries must not look alike, or they hide each other."""


@dataclass(frozen=True)
class Canaries:
    """What was offered to whom, and for the judge alone whether it was taken."""

    examples: Examples
    clients: Tensor  # (canaries,)
    included: Tensor  # (canaries,) bool


def with_canaries(federation: Federation, count: int, rng: Rng) -> tuple[Federation, Canaries]:
    """The federation with about half of so many canaries among its clients' training rows.

    A canary has a few features at their largest, all others at their least, and a label that is drawn evenly: it looks
    like no record, and little like other canaries. Canaries are offered to clients with data in turn.
    """
    require(count >= 2, "canaries", count, "must be at least 2")
    require(not federation.schedules, "federation", "with scheduled clients", "cannot be given canaries")
    made = _made(federation.examples, count, rng)
    there = federation.train.sizes.nonzero().flatten()
    clients = there[torch.arange(count) % len(there)]
    included = torch.rand(count, generator=rng.child("coins").torch(), dtype=torch.float64) < 0.5
    whole = federation.examples
    rows = torch.arange(count) + len(whole)
    parts = [
        torch.cat([federation.train[client], rows[included & (clients == client)]])
        for client in range(federation.clients)
    ]
    both = replace(whole, x=torch.cat([whole.x, made.x]), y=torch.cat([whole.y, made.y]), tags={})
    return replace(federation, examples=both, train=Shards.of(parts)), Canaries(made, clients, included)


def _made(examples: Examples, count: int, rng: Rng) -> Examples:
    flat = examples.x.flatten(1)
    draws = rng.child("canaries").torch()
    if flat.is_floating_point():
        low, high = flat.amin(0), flat.amax(0)
        lit = torch.rand(count, flat.shape[1], generator=draws) < LIT
        lit[torch.arange(count), torch.randint(flat.shape[1], (count,), generator=draws)] = True
        made = torch.where(lit, high, low)
    else:  # tokens: each place from some text
        made = flat.gather(0, torch.randint(len(flat), (count, flat.shape[1]), generator=draws))
    y = torch.randint(examples.classes, (count,), generator=draws)
    x = made.reshape(count, *examples.x.shape[1:])
    return Examples(x, y, examples.classes, f"canaries of {examples.name}", vocabulary=examples.vocabulary)
