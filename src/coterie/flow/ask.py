"""What the server wants of whom, the answers as they come in, and what adding them up gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.errors import require
from coterie.learn.threads import each_in_one_thread
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Kind, Published
from coterie.wire.sealed import SealedSum

State = TypeVar("State")


@dataclass(frozen=True)
class Ask(Generic[State]):
    """What the server wants of whom. The state rides along so that the driver can save it; it never travels."""

    kind: Kind
    round: int
    clients: Tensor
    published: Published
    state: State
    sees: Tensor | None = None  # (clients, slots) bool
    common: bytes = b""  # what a guard tells all clients
    each: Mapping[int, bytes] = field(default_factory=dict)  # and what it tells each
    whole: bool = False  # whether sums without one of the clients are of no use, so that none should be opened

    def sub(
        self, part: str, clients: Tensor, common: bytes = b"", each: Mapping[int, bytes] | None = None
    ) -> Ask[State]:
        """A further exchange about the same request: a guard's own, of which the protocol knows nothing."""
        kind = replace(self.kind, part=part)
        return Ask(kind, self.round, clients, Published({}), self.state, None, common, each or {})


AnyAsk = Ask[Any]


class Replies:
    """The answers as they come in, group by group; to be read once. A client that dropped out is simply missing."""

    def __init__(self, groups: Iterator[Contributions]) -> None:
        self._groups = groups

    def __iter__(self) -> Iterator[Contributions]:
        return self._groups

    def whole(self) -> Contributions | None:
        """All answers at once, for a server that must look at each; None if nobody answered.

        Answers that cannot be joined with those of the most clients are left out.
        """
        groups = list(self._groups)
        if not groups:
            return None
        clients = [sum(len(other) for other in groups if other.fits_among(group)) for group in groups]
        usual = groups[clients.index(max(clients))]
        return Contributions.join([group for group in groups if group.fits_among(usual)])


SPAN = 1 << 14  # numbers of a model that are added up over all clients at a time, or where they are few
CACHED = 1 << 18  # so many of all clients


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
    def nothing() -> Sums:
        """Of nobody: a round in which no answer could be used."""
        return Sums({}, torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))

    @property
    def empty(self) -> bool:
        return not self.values and not self.sealed

    @staticmethod
    def of(part: Contributions) -> Sums:
        shares = _shares(part)
        values = Tables(part, shares)
        membership = part.membership.ne(0)
        sealed = {name: batch.add(membership) for name, batch in part.sealed.items()}
        return Sums(
            values if values.large else dict(values), shares.sum(0, dtype=torch.float64), membership.sum(0), sealed
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all leaves, also of tables that are not added up yet."""
        if isinstance(self.values, Tables):
            return self.values.shapes
        return {name: tuple(leaf.shape) for name, leaf in self.values.items()}

    def rows(self, name: str, span: slice) -> Tensor:
        """(rows, ...): some of a leaf with one slot. Of tables that are not added up yet, these alone are now."""
        return self.values.rows(name, span) if isinstance(self.values, Tables) else self.values[name][0, span]

    @staticmethod
    def over(parts: Iterable[Contributions]) -> Sums:
        """The sums over several groups, added up in place and leaf by leaf: there may be no room for two such sums."""
        groups = iter(parts)
        first = next(groups, None)
        if first is None:
            return Sums.nothing()
        total = Sums.of(first)
        for part in groups:
            total = replace(total, values=dict(total.values))  # tables, too, are added up by now
            shares, membership = _shares(part), part.membership.ne(0)
            for name, leaf in part.values.items():
                _add_clients(leaf, shares, total.values[name])
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
        if self.empty:
            return previous
        if self.sealed:  # whoever opens the sums divides, and needs the former models for empty slots
            return Published({}, self.counts, self.sealed, replace(previous.origin or previous, previous=None))
        filled = self.weights > 0
        everywhere, values = bool(filled.all()), {}
        for name, total in self.values.items():
            shape = (-1, *[1] * (total.dim() - 1))
            mean = (total / self.weights.clamp_min(1e-300).view(shape)).to(previous.values[name].dtype)
            values[name] = mean if everywhere else torch.where(filled.view(shape), mean, previous.values[name])
        return Published(values, self.counts)


class Tables(Mapping[str, Tensor]):
    """The sums of one group's leaves, each made when it is asked for; of large tables nobody may need the whole."""

    def __init__(self, part: Contributions, shares: Tensor) -> None:
        self._part, self._leaves, self._shares = part, part.values, shares
        self._sums: dict[str, Tensor] = {}

    @property
    def large(self) -> bool:
        return large_tables(self._part)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: (self._shares.shape[1], *leaf.shape[2:]) for name, leaf in self._leaves.items()}

    def rows(self, name: str, span: slice) -> Tensor:
        """(rows, numbers): in the precision of the leaf, as a whole sum of one group would have them."""
        leaf = self._leaves[name][:, 0, span]
        total = torch.mm(self._shares.T.to(leaf.dtype), leaf.flatten(1))
        return self._sound(name, total).view(leaf.shape[1:])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._sums:
            total = _add_clients(self._leaves[name], self._shares, None)
            self._sums[name] = self._sound(name, total) if self.large else total
        return self._sums[name]

    def _sound(self, name: str, total: Tensor) -> Tensor:
        """The same, if it is of finite numbers: a NaN or an infinity of anybody's is in the sum, too."""
        if total.is_floating_point() and not np.isfinite(total.numpy().sum()):
            bad = self._part.ids[~finite(self._part)].tolist()
            require(not bad, name, "NaN or infinite", f"was sent by {bad}, whose data or code must be mended first")
        return total

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


def large_tables(sent: Contributions) -> bool:
    """Whether all leaves are tables (clients, 1, rows, numbers) with very many rows, and added up in one slot."""
    tables = [leaf.dim() == 4 and leaf.shape[1] == 1 and leaf.shape[2] >= SPAN for leaf in sent.values.values()]
    return sent.membership.shape[1] == 1 and bool(tables) and all(tables)


def finite(sent: Contributions) -> Tensor:
    """(clients,): by one sum a client and leaf, which a NaN or an infinity does not survive."""
    found = torch.ones(len(sent), dtype=torch.bool)
    for leaf in sent.values.values():
        if leaf.is_floating_point():
            found &= leaf.flatten(1).sum(1, dtype=torch.float64 if leaf.dtype == torch.float64 else None).isfinite()
    return found


def _shares(part: Contributions) -> Tensor:
    """(clients, slots): with what weight each client enters each slot's sum."""
    return part.membership * part.weights.unsqueeze(1)


def _add_clients(leaf: Tensor, shares: Tensor, to: Tensor | None) -> Tensor:
    """(slots, ...), float64: leaf (clients, slots | 1, ...) weighted by shares (clients, slots), added in place."""
    clients, slots = shares.shape
    if leaf.shape[1] == 1:
        weights, flat = shares.T.to(leaf.dtype).contiguous(), leaf.reshape(clients, -1)
        shape = (slots, *leaf.shape[2:])
        total = torch.empty(shape, dtype=torch.float64) if to is None else to
        sums, size = total.view(slots, -1).numpy(), max(SPAN, CACHED // clients)

        def add_up(span: slice) -> None:
            found = torch.mm(weights, flat[:, span]).numpy()
            if to is None:
                sums[:, span] = found  # numpy widens three times as fast as torch
            else:
                sums[:, span] += found

        each_in_one_thread(add_up, [slice(at, at + size) for at in range(0, flat.shape[1], size)])
        return total
    require(leaf.shape[1] == slots, "slots of a contribution", leaf.shape[1], f"must be 1 or {slots}")
    found = torch.einsum("cs,cs...->s...", shares.to(leaf.dtype), leaf)
    return found.double() if to is None else to.add_(found)
