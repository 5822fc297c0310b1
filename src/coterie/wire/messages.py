"""What travels. Every message is a frozen value of registered parts, for one client or for many at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.errors import InvalidInput, require
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum

Params = Mapping[str, Tensor]
"""Named tensors: the leaves of a model, or statistics that add up."""


@register
@dataclass(frozen=True)
class Kind:
    """What is asked or answered. A request that is repeated within a run has a ``step``; a ``part`` is one exchange of
    several that a guard needs for one request."""

    name: str
    step: int = 0
    part: str = ""

    def __str__(self) -> str:
        return self.name + (f" {self.step}" if self.step else "") + (f"/{self.part}" if self.part else "")

    @staticmethod
    def of(kind: str | Kind) -> Kind:
        """From the text that a recording or a user writes: ``train``, ``lloyd 2``, ``train/masked``."""
        if isinstance(kind, Kind):
            return kind
        found = re.fullmatch(r"(\w+)(?: (\d+))?(?:/(\w+))?", kind)
        if found is None:
            raise InvalidInput(f"kind {kind!r} must be a word, and where it applies a number and a part: 'lloyd 2'")
        return Kind(found[1], int(found[2] or 0), found[3] or "")


TRAIN = Kind("train")
CHOOSE = Kind("choose")
"""A vote of which the winner alone is needed: where a guard hides its sum from the server, clients name the winner."""

BEFORE = "before"
"""The part under which a tape keeps what an adversary's own clients answered before their guard sealed it. It never
travels."""

RESULT = Kind("result")
"""What a run ends with, as it is handed out."""


@register
@dataclass(frozen=True)
class Contributions:
    """What a group of clients sends up in one round."""

    ids: Tensor  # (clients,)
    values: Params  # leaves (clients, slots | 1, ...)
    weights: Tensor  # (clients,)
    membership: Tensor  # (clients, slots): ones, one-hot, soft or mingled
    sealed: Mapping[str, SealedBatch] = field(default_factory=dict)
    notes: tuple[bytes, ...] = ()  # one a client: what its guard has to say to the server's

    def __len__(self) -> int:
        return len(self.ids)

    def pick(self, positions: Tensor) -> Contributions:
        """The contributions at these positions of axis 0."""
        chosen = positions.tolist()
        return Contributions(
            self.ids[positions],
            {name: leaf[positions] for name, leaf in self.values.items()},
            self.weights[positions],
            self.membership[positions],
            {name: batch.pick(chosen) for name, batch in self.sealed.items()},
            tuple(self.notes[position] for position in chosen) if self.notes else (),
        )

    def between(self, start: int, end: int) -> Contributions:
        """Those from one position to another; leaves are not copied."""
        span = slice(start, end)
        leaves = {name: leaf[span] for name, leaf in self.values.items()}
        sealed = {name: batch.pick(range(start, end)) for name, batch in self.sealed.items()}
        own = (self.weights[span], self.membership[span], sealed, self.notes[span])
        return Contributions(self.ids[span], leaves, *own)

    @property
    def first(self) -> Contributions:
        """The first client's, of plain leaves that are not copied: to look at, not to keep."""
        leaves = {name: leaf[:1] for name, leaf in self.values.items()}
        return Contributions(self.ids[:1], leaves, self.weights[:1], self.membership[:1])

    @staticmethod
    def join(parts: Sequence[Contributions]) -> Contributions:
        """One object for several groups of clients, in the order given."""
        first = parts[0]
        return Contributions(
            torch.cat([part.ids for part in parts]),
            {name: torch.cat([part.values[name] for part in parts]) for name in first.values},
            torch.cat([part.weights for part in parts]),
            torch.cat([part.membership for part in parts]),
            {name: SealedBatch.join([part.sealed[name] for part in parts]) for name in first.sealed},
            tuple(note for part in parts for note in part.notes),
        )

    def misshapen(self) -> str:
        """Why these are not answers of so many clients, whatever they say; empty if they are."""
        if self.ids.dim() != 1 or self.ids.dtype != torch.int64 or not len(self.ids):
            return f"its ids are {tuple(self.ids.shape)} of {self.ids.dtype}"
        clients = len(self.ids)
        if self.weights.dim() != 1 or self.membership.dim() != 2:
            return f"weights {tuple(self.weights.shape)} and membership {tuple(self.membership.shape)} do not fit it"
        for name, leaf in (("weights", self.weights), ("membership", self.membership), *self.values.items()):
            if leaf.dim() == 0 or len(leaf) != clients:
                return f"{name} {tuple(leaf.shape)} is not of {clients} clients"
            if leaf.is_complex() or leaf.dtype == torch.bool:
                return f"{name} of {leaf.dtype} holds no numbers"
        if any(len(batch) != clients for batch in self.sealed.values()) or len(self.notes) not in (0, clients):
            return "there is not one ciphertext or note for each client"
        return ""

    def fits_among(self, others: Contributions) -> bool:
        """Whether these answers can be joined with the others: the same leaves, of the same shapes and kinds."""

        def form(sent: Contributions) -> object:
            own = [(leaf.dtype, leaf.shape[1:]) for leaf in (sent.weights, sent.membership)]
            shapes = {name: (leaf.dtype, leaf.shape[1:]) for name, leaf in sent.values.items()}
            return own, shapes, {name: type(batch) for name, batch in sent.sealed.items()}, bool(sent.notes)

        return not self.misshapen() and form(self) == form(others)

    def put(self, positions: Tensor, others: Contributions) -> Contributions:
        """The same with these positions' answers replaced; ``others`` are of the same clients, in order."""
        require(
            others.ids.tolist() == self.ids[positions].tolist(),
            "clients that answer",
            others.ids.tolist(),
            f"must be {self.ids[positions].tolist()}: what they send may change, not who sends it",
        )
        stays = torch.ones(len(self), dtype=torch.bool)
        stays[positions] = False
        rest = stays.nonzero().flatten()
        both = Contributions.join([self.pick(rest), others]) if len(rest) else others
        return both.pick(torch.cat([rest, positions]).argsort())


@register
@dataclass(frozen=True)
class Published:
    """What the server sends down: one model (or set of statistics) a slot."""

    values: Params  # leaves (slots, ...)
    sizes: Tensor | None = None  # (slots,) how many clients stand behind each slot; the server's, and not sent
    sealed: Mapping[str, SealedSum] = field(default_factory=dict)  # sums that only a client can open
    previous: Published | None = None  # what slots fall back to when nobody contributed
    shared: tuple[str, ...] = ()  # leaves that whoever opens sealed sums averages over all slots

    @property
    def slots(self) -> int:
        if self.values:
            return next(iter(self.values.values())).shape[0]
        return next(iter(self.sealed.values())).slots if self.sealed else 0

    @property
    def origin(self) -> Published | None:
        """The plain models that a chain of sealed ones goes back to; None where these are plain themselves."""
        if self.previous is None or not self.sealed:
            return None
        return self.previous.origin or self.previous

    @property
    def unsized(self) -> Published:
        """The same without the sizes."""
        if self.sizes is None and self.previous is None:
            return self
        return replace(self, sizes=None, previous=None if self.previous is None else self.previous.unsized)

    def pick(self, slots: Tensor) -> Published:
        """These slots alone. Sealed sums are not cut: they go to clients that are given every slot."""
        if len(slots) == self.slots:
            return self
        require(
            not self.sealed, "slots", slots.tolist(), f"must be all {self.slots}: sealed sums cannot be cut by slot"
        )
        values = {name: leaf[slots] for name, leaf in self.values.items()}
        return Published(values, None if self.sizes is None else self.sizes[slots])


@register
@dataclass(frozen=True)
class Down:
    """A message to a group of clients: a part for all of them, and where a guard needs it a part for each."""

    kind: Kind
    round: int
    clients: Tensor  # (clients,) to whom it goes
    published: Published
    sees: Tensor | None = None  # (clients, slots) bool: which slots each client is given; None: all
    common: bytes = b""  # what the server's guard tells all of them
    each: tuple[bytes, ...] = ()  # and what it tells each, in the order of clients

    def pick(self, positions: Tensor) -> Down:
        """The part of this message that concerns the clients at these positions."""
        sees = None if self.sees is None else self.sees[positions]
        each = tuple(self.each[position] for position in positions.tolist()) if self.each else ()
        return replace(self, clients=self.clients[positions], sees=sees, each=each)

    def slots(self, positions: Tensor) -> Tensor:
        """The slots that the clients at these positions are given between them."""
        if self.sees is None:
            return torch.arange(self.published.slots)
        return self.sees[positions].any(0).nonzero().flatten()

    def to_one(self, position: int) -> Down:
        """What one client is sent: the slots that it is given, and no others."""
        here = torch.tensor([position])
        return replace(self.pick(here), published=self.published.pick(self.slots(here)))


@register
@dataclass(frozen=True)
class Up:
    """A message from a group of clients."""

    kind: Kind
    round: int
    sent: Contributions

    @property
    def clients(self) -> Tensor:
        """(clients,) from whom it comes."""
        return self.sent.ids

    def pick(self, positions: Tensor) -> Up:
        return replace(self, sent=self.sent.pick(positions))


Message = Down | Up
