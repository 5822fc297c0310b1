"""What travels between server and clients. Axis 0 of every client tensor is the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.errors import require
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum

Params = Mapping[str, Tensor]
"""Named tensors: the leaves of a model, or statistics that add up."""


@register
@dataclass(frozen=True)
class Contributions:
    """What a group of clients sends up in one round."""

    ids: Tensor  # (clients,)
    values: Params  # leaves (clients, slots | 1, ...)
    weights: Tensor  # (clients,)
    membership: Tensor  # (clients, slots): ones, one-hot, soft or mingled
    sealed: Mapping[str, SealedBatch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def pick(self, positions: Tensor) -> Contributions:
        """The contributions at these positions of axis 0."""
        return Contributions(
            self.ids[positions],
            {name: leaf[positions] for name, leaf in self.values.items()},
            self.weights[positions],
            self.membership[positions],
            {name: batch.pick(positions.tolist()) for name, batch in self.sealed.items()},
        )

    @staticmethod
    def join(parts: list[Contributions]) -> Contributions:
        """One object for several groups of clients, in the order given."""
        first = parts[0]
        return Contributions(
            torch.cat([part.ids for part in parts]),
            {name: torch.cat([part.values[name] for part in parts]) for name in first.values},
            torch.cat([part.weights for part in parts]),
            torch.cat([part.membership for part in parts]),
            {name: SealedBatch.join([part.sealed[name] for part in parts]) for name in first.sealed},
        )


@register
@dataclass(frozen=True)
class Published:
    """What the server sends down: one model (or set of statistics) a slot."""

    values: Params  # leaves (slots, ...)
    sizes: Tensor | None = None  # (slots,) how many clients stand behind each slot
    sealed: Mapping[str, SealedSum] = field(default_factory=dict)  # sums that only a client can open
    previous: Published | None = None  # what slots fall back to when nobody contributed

    @property
    def slots(self) -> int:
        if self.values:
            return next(iter(self.values.values())).shape[0]
        return next(iter(self.sealed.values())).slots

    @property
    def origin(self) -> Published | None:
        """The plain models that a chain of sealed ones goes back to; None where these are plain themselves."""
        if self.previous is None or not self.sealed:
            return None
        return self.previous.origin or self.previous

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
class Envelope:
    """One message to or from a group of clients."""

    kind: str  # what is asked or answered: "train", "choose", "statistics", ...
    round: int
    clients: Tensor  # (clients,) to whom it goes, or from whom it comes
    payload: Published | Contributions
    sees: Tensor | None = None  # (clients, slots) bool: which slots each client is given; None: all

    @property
    def down(self) -> bool:
        return isinstance(self.payload, Published)

    def pick(self, positions: Tensor) -> Envelope:
        """The part of this message that concerns the clients at these positions."""
        payload = self.payload.pick(positions) if isinstance(self.payload, Contributions) else self.payload
        sees = None if self.sees is None else self.sees[positions]
        return replace(self, clients=self.clients[positions], payload=payload, sees=sees)
