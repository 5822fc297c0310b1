"""The five places where a defence may act.

``receive``, ``gradient`` and ``contribute`` are the client's, ``aggregate`` and ``publish`` the server's. The base
classes are the identity: an undefended federation runs with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.errors import require
from coterie.learn.params import Params
from coterie.privacy.guarantee import Guarantee, RunFacts
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Envelope, Published
from coterie.wire.sealed import SealedSum


@dataclass(frozen=True)
class Turn:
    """When and with what randomness a guard acts.

    ``rng`` is the root, not the round's: a draw that must outlive the round (an identity set) leaves the round out
    of its name.
    """

    round: int
    rng: Rng
    kind: str = "train"

    def noise(self, party: str | int, *purpose: str | int) -> Rng:
        """A stream for one party, this round and this purpose."""
        return self.rng.child("party", party, "round", self.round, "kind", self.kind, *purpose)


@dataclass(frozen=True)
class ClientGuard:
    """The client's half of a defence; every method is the identity."""

    @property
    def example_clip(self) -> float | None:
        """The L2 norm to which each example's gradient is scaled before they are summed; None: not at all."""
        return None

    @property
    def dropout(self) -> float:
        """The dropout rate to train with; 0: the model's own."""
        return 0.0

    def receive(self, published: Published, turn: Turn) -> Params:
        """The models (slots, ...) that the client works with."""
        return published.values

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        """Called in each local step with leaves (clients, ...)."""
        return grads

    def contribute(self, sent: Contributions, turn: Turn) -> Contributions:
        """The last word on what leaves the clients."""
        return sent

    def together(self, answers: Iterator[Envelope], turn: Turn) -> Iterator[Envelope]:
        """What the round's clients still do with one another before their answers leave: agree on masks.

        Called once for all of them; everything else acts in ``contribute``, client by client.
        """
        return answers


@dataclass(frozen=True)
class Step:
    """One local step as the gradient guard sees it.

    The turn's kind names the training under way ("train/batches"), not only the request: a protocol that trains several
    models in one answer must not meet the same noise twice.
    """

    ids: Tensor  # (clients,)
    index: int
    divisors: Tensor  # (clients,): by what each client's sum over examples was divided, and so its noise must be
    turn: Turn


@register
@dataclass(frozen=True)
class Sums:
    """What adding up contributions gives: one a slot. Partial sums add."""

    values: Mapping[str, Tensor]  # leaves (slots, ...), float64
    weights: Tensor  # (slots,) float64
    counts: Tensor  # (slots,) how many clients stand behind each
    sealed: Mapping[str, SealedSum] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)  # the deviation of what a defence added; absent: none

    @staticmethod
    def of(part: Contributions) -> Sums:
        shares = _shares(part)
        values = {name: _sum_over_clients(leaf, shares).double() for name, leaf in part.values.items()}
        membership = part.membership.ne(0)
        sealed = {name: batch.add(membership) for name, batch in part.sealed.items()}
        return Sums(values, shares.sum(0, dtype=torch.float64), membership.sum(0), sealed)

    @staticmethod
    def over(parts: Iterable[Contributions]) -> Sums:
        """The sums over several groups, added up in place and leaf by leaf: there may be no room for two such sums."""
        groups = iter(parts)
        total = Sums.of(next(groups))
        for part in groups:
            shares, membership = _shares(part), part.membership.ne(0)
            for name, leaf in part.values.items():
                total.values[name].add_(_sum_over_clients(leaf, shares))
            total.weights.add_(shares.sum(0, dtype=torch.float64))
            total.counts.add_(membership.sum(0))
            sealed = {name: total.sealed[name] + batch.add(membership) for name, batch in part.sealed.items()}
            total = replace(total, sealed=sealed)
        return total

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            {name: leaf + other.values[name] for name, leaf in self.values.items()},
            self.weights + other.weights,
            self.counts + other.counts,
            {name: total + other.sealed[name] for name, total in self.sealed.items()},
        )

    def mean(self, previous: Published) -> Published:
        """The weighted mean a slot; a slot to which nobody contributed keeps its model."""
        if self.sealed:  # whoever opens the sums divides, and needs the former models for empty slots
            return Published({}, self.counts, self.sealed, replace(previous, previous=previous.origin))
        filled = self.weights > 0
        values = {}
        for name, total in self.values.items():
            shape = (-1, *[1] * (total.dim() - 1))
            mean = (total / self.weights.clamp_min(1e-300).view(shape)).to(previous.values[name].dtype)
            values[name] = torch.where(filled.view(shape), mean, previous.values[name])
        return Published(values, self.counts)


def _shares(part: Contributions) -> Tensor:
    """(clients, slots): with what weight each client enters each slot's sum."""
    return part.membership * part.weights.unsqueeze(1)


def _sum_over_clients(leaf: Tensor, shares: Tensor) -> Tensor:
    """(slots, ...) from leaf (clients, slots | 1, ...) and shares (clients, slots)."""
    clients, slots = shares.shape
    if leaf.shape[1] == 1:
        return (shares.T.to(leaf.dtype) @ leaf.reshape(clients, -1)).reshape(slots, *leaf.shape[2:])
    require(leaf.shape[1] == slots, "slots of a contribution", leaf.shape[1], f"must be 1 or {slots}")
    return torch.einsum("cs,cs...->s...", shares.to(leaf.dtype), leaf)


@dataclass(frozen=True)
class ServerGuard:
    """The server's half of a defence; every method is the identity."""

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        """Sums over all clients, chunk by chunk, so that a round need not fit in memory."""
        return Sums.over(replies)

    def publish(self, published: Published, turn: Turn) -> Published:
        """The last word on what leaves the server."""
        return published


@dataclass(frozen=True)
class Defence:
    """Two halves, because two parties hold them. The base class defends nothing."""

    @property
    def client(self) -> ClientGuard:
        return ClientGuard()

    @property
    def server(self) -> ServerGuard:
        return ServerGuard()

    def kept_in(self, folder: Path) -> Defence:
        """The same defence, with what must outlive a killed run (its keys) kept in the run's folder."""
        return self

    def events(self, run: RunFacts) -> Sequence[Any]:
        """What this run did to one unit, as dp_accounting events; the accountant says what it cost."""
        return ()

    def guarantee(self, run: RunFacts) -> Guarantee | None:
        """The formal statement that this defence makes about such a run; None: it does not claim to hide anything."""
        return None
