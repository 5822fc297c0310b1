"""Small federations and a short way to run a protocol on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards
from coterie.data.lazy import AnyFederation
from coterie.flow.adversary import Adversary
from coterie.flow.ask import Ask
from coterie.flow.client import Answer
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence, ServerGuard
from coterie.flow.protocol import Protocol
from coterie.flow.ring import Ring
from coterie.flow.simulate import CHUNK_BYTES
from coterie.flow.turn import Roots, Turn
from coterie.learn.models.model import Batch, Model
from coterie.wire.codec import decode, encode
from coterie.wire.messages import TRAIN, Down, Kind
from coterie.wire.tape import Tape


def blobs(
    sizes: Sequence[int] = (12, 12, 12, 12, 12, 12),
    *,
    groups: int = 2,
    features: int = 4,
    classes: int = 3,
    joins: Sequence[int] | None = None,
    seed: int = 0,
) -> Federation:
    """Gaussian classes; client i is in group i % groups, and a group's labels are turned by its number.

    So one model cannot serve two groups, while a model a group can. Every client has six test rows.
    """
    draws = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, features, generator=draws)
    group = torch.arange(len(sizes)) % groups
    train, test, xs, ys = [], [], [], []
    start = 0
    for client, size in enumerate(sizes):
        kind = torch.randint(classes, (size + 6,), generator=draws)
        xs.append(centres[kind] + 0.5 * torch.randn(size + 6, features, generator=draws))
        ys.append((kind + group[client]) % classes)
        train.append(torch.arange(start, start + size))
        test.append(torch.arange(start + size, start + size + 6))
        start += size + 6
    examples = Examples(torch.cat(xs), torch.cat(ys), classes, "blobs")
    return Federation(
        examples, Shards.of(train), Shards.of(test), group, None if joins is None else torch.tensor(joins)
    )


def digits(clients: int = 20, *, sets: int = 5, seed: int = 0) -> Federation:
    """scikit-learn's 8x8 digits; client i has the digits 2g and 2g + 1 with g = i % sets."""
    x, y = load_digits(return_X_y=True)
    examples = Examples(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y), 10, "digits")
    draws = torch.Generator().manual_seed(seed)
    group = torch.arange(clients) % sets
    train: list[Tensor] = [torch.empty(0)] * clients
    test: list[Tensor] = [torch.empty(0)] * clients
    for g in range(sets):
        rows = (examples.y // 2 == g).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=draws)]
        members = (group == g).nonzero().flatten().tolist()
        for member, part in zip(members, rows[60:].chunk(len(members)), strict=True):
            train[member], test[member] = part, rows[:60]
    return Federation(examples, Shards.of(train), Shards.of(test), group)


@dataclass
class Play:
    """A run and what was noted on the way."""

    state: Any
    asks: list[Ask[Any]]
    states: list[bytes]  # every ask's, as it would be saved
    memories: list[bytes]  # what the clients remembered before each ask
    ring: Ring[Any]

    @property
    def bytes(self) -> bytes:
        return encode(self.state)


@dataclass(frozen=True)
class Halves(Defence):
    """A defence of these two guards."""

    clients: ClientGuard = field(default_factory=ClientGuard)
    servers: ServerGuard = field(default_factory=ServerGuard)

    @property
    def client(self) -> ClientGuard:
        return self.clients

    @property
    def server(self) -> ServerGuard:
        return self.servers


def play(
    protocol: Protocol[Any],
    federation: AnyFederation,
    model: Model | None,
    *,
    seed: int = 0,
    defence: Defence | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    processes: int = 0,
    tape: Tape | None = None,
    adversaries: Sequence[Adversary] = (),
    witness: Callable[[Down, Answer], None] | None = None,
    lost: Callable[[Down], Collection[int]] | None = None,
    state: bytes | None = None,
    memory: bytes | None = None,
) -> Play:
    """Run to the end, from the start or from a saved state."""
    ring = Ring(
        protocol,
        federation,
        model,
        defence or Defence(),
        Roots.seeded(seed),
        tape,
        adversaries,
        witness,
        lost,
        processes,
        chunk_bytes,
    )
    done = Play(None, [], [], [], ring)

    def note(ask: Ask[Any]) -> None:
        done.asks.append(ask)
        done.states.append(encode(ask.state))
        done.memories.append(encode(ring.memory))

    start, kept = (None if saved is None else decode(saved) for saved in (state, memory))
    with ring:
        done.state = ring.run(start, kept, note)
    return done


def turn(round: int = 0, kind: Kind = TRAIN, seed: int = 0) -> Turn:
    return Turn(round, Roots.seeded(seed).child("clients"), kind)


def cohort(
    federation: Federation, model: Model, *, clients: Sequence[int] | None = None, round: int = 0, seed: int = 0
) -> Cohort:
    """These clients (or all), as they answer a request of kind "train"."""
    ids = torch.arange(federation.clients) if clients is None else torch.tensor(clients)
    shards = federation.train.pick(ids.tolist())
    return Cohort(ids, turn(round, seed=seed), federation.examples, shards, model)


def batch(x: Tensor, y: Tensor, weights: Tensor | None = None, seeds: Sequence[int] = ()) -> Batch:
    """All clients active, every example weighing the same."""
    even = torch.full(y.shape, 1 / y.shape[1]) if weights is None else weights
    clients = len(x)
    return Batch(x, y, even, torch.full((clients,), float(y.shape[1])), torch.ones(clients, dtype=torch.bool), seeds)
