"""Noise in shares under secure aggregation: each client adds a little, and the server sees only the noisy sum.

Values are rounded to the grid of all ciphers (2^-24 of the sensitivity), which moves a vector of 5,000 entries by under
3e-6 of its sensitivity; the guarantee is that of the sum before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from coterie.defences.noisy_sums.plan import NoisySums, client_noise, deviations
from coterie.defences.secure_sums import PairwiseMasks, Relay, Waiting
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.flow.guard import ClientGuard, ServerGuard, Sums, Turn
from coterie.learn.params import Layout, flatten
from coterie.privacy.guarantee import Trust
from coterie.seal.cipher import Grid, binary
from coterie.seal.masked import MaskedSum
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Envelope
from coterie.wire.sealed import SEALED, SealedBatch, SealedSum

GRID = Grid()


@dataclass(frozen=True)
class DistributedNoise(NoisySums):
    """Each of ``clients`` adds its share of the noise. All must answer: the noise of one that dropped out is missing.

    ``colluders`` clients may tell the server their shares; those of the others then add up to the whole deviation.
    With ``masks`` the sums are opened by Bonawitz's protocol among all clients (``secure_sum``), whose work grows with
    the square of their number. Without, a stand-in behaves as that protocol does towards the server: it holds sealed
    messages, and nothing opens but the sum over all clients.
    """

    clients: int = 1
    colluders: int = 0
    masks: PairwiseMasks | None = None
    relay: Relay = field(default_factory=Relay, repr=False, compare=False)

    trust: ClassVar[Trust] = Trust.DISTRIBUTED_NOISE

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clients >= 1, "clients", self.clients, "must be at least 1")
        require(
            0 <= self.colluders < self.clients,
            "colluders",
            self.colluders,
            f"must be at least 0 and fewer than the {self.clients} clients",
        )

    @property
    def client(self) -> ClientGuard:
        return SharingClient(self.noise, self.clients, self.colluders, self.masks, self.relay)

    @property
    def server(self) -> ServerGuard:
        return SummingServer(self.noise, self.clients, self.colluders, self.relay)


@dataclass(frozen=True)
class SharingClient(ClientGuard):
    noise: Mapping[str, float]
    clients: int
    colluders: int
    masks: PairwiseMasks | None
    relay: Relay = field(repr=False)

    def contribute(self, sent: Contributions, turn: Turn) -> Contributions:
        if not sent.values:
            return sent
        planned = deviations(self.noise, turn, sent.values)
        share = 1 / math.sqrt(self.clients - self.colluders)
        parts = {name: deviation * share for name, deviation in planned.items()}
        noisy = client_noise(sent.values, sent.ids, parts, turn)
        shapes = {name: tuple(leaf.shape[2:]) for name, leaf in noisy.items()}
        flat, ids = flatten(noisy, leading=2).double(), tuple(sent.ids.tolist())  # (clients, 1, length)
        if self.masks is not None:
            sealed: SealedBatch = Waiting(ids, flat, shapes)
        else:
            steps = torch.from_numpy(GRID.round(flat[:, 0], 2.0 ** (52 - GRID.bits) / self.clients))
            sealed = SummedOnly(ids, steps, shapes, self.clients)
        return replace(sent, values={}, sealed={SEALED: sealed})

    def together(self, answers: Iterator[Envelope], turn: Turn) -> Iterator[Envelope]:
        if self.masks is None:
            return answers
        waiting = list(answers)
        payload = waiting[0].payload
        if not (isinstance(payload, Contributions) and payload.sealed):
            return iter(waiting)
        return self.relay.mask(waiting, turn, self.masks)


@dataclass(frozen=True)
class SummingServer(ServerGuard):
    noise: Mapping[str, float]
    clients: int
    colluders: int
    relay: Relay = field(repr=False)

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        sums = super().aggregate(replies, turn)
        count = int(sums.counts[0])
        require(
            count == self.clients and SEALED in sums.sealed,
            f"sealed answers in round {turn.round}",
            count,
            f"must be {self.clients}, or noise is missing; plan for those who are sure to answer",
        )
        total = sums.sealed[SEALED]
        if isinstance(total, MaskedSum):
            opened, layout = self.relay.open(total, turn)
        else:
            assert isinstance(total, OnlySum)
            opened, layout = total.open(), total.layout
        values = {name: leaf.double() for name, leaf in layout.unflatten(opened).items()}
        whole = math.sqrt(self.clients / (self.clients - self.colluders))
        planned = deviations(self.noise, turn, values)
        return replace(sums, values=values, sealed={}, noise={name: z * whole for name, z in planned.items()})


@register
@dataclass(frozen=True)
class SummedOnly(SealedBatch):
    """A stand-in for masked messages: whoever holds it can add, and open nothing but the sum over all ``clients``."""

    ids: tuple[int, ...]
    _steps: Tensor = field(repr=False)  # (clients, length), whole numbers
    shapes: Mapping[str, tuple[int, ...]]
    clients: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return 8 * self._steps.numel()

    def pick(self, positions: Sequence[int]) -> SummedOnly:
        rows = list(positions)
        return SummedOnly(tuple(self.ids[i] for i in rows), self._steps[rows], self.shapes, self.clients)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> SummedOnly:
        first, *_ = batches = [part for part in parts if isinstance(part, SummedOnly)]
        ids = tuple(client for batch in batches for client in batch.ids)
        return cls(ids, torch.cat([batch._steps for batch in batches]), first.shapes, first.clients)

    def add(self, membership: Tensor) -> OnlySum:
        flags = binary(membership, self.ids)
        require(bool(flags.all()), "membership", "zeros", "must be all ones: only the sum over all clients opens")
        return OnlySum(frozenset(self.ids), self._steps.sum(0, keepdim=True), self.shapes, self.clients)

    def open(self, key: Any) -> NoReturn:
        raise NotPermitted(f"key={type(key).__name__} cannot open single clients: only the sum over all of them opens")


@dataclass(frozen=True)
class OnlySum(SealedSum):
    ids: frozenset[int]
    _steps: Tensor = field(repr=False)  # (1, length)
    shapes: Mapping[str, tuple[int, ...]]
    clients: int

    @property
    def slots(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        return 8 * self._steps.numel()

    @property
    def layout(self) -> Layout:
        return Layout({name: torch.Size(shape) for name, shape in self.shapes.items()})

    def __add__(self, other: SealedSum) -> OnlySum:
        if not isinstance(other, OnlySum) or self.ids & other.ids:
            raise InvalidInput(f"sum={other!r} must be of the same kind and of other clients to be added")
        return OnlySum(self.ids | other.ids, self._steps + other._steps, self.shapes, self.clients)

    def open(self, key: Any = None) -> Tensor:
        if len(self.ids) != self.clients:
            raise NotPermitted(
                f"sum over {len(self.ids)} clients does not open; only that over all {self.clients} does"
            )
        return GRID.values(self._steps.numpy())
