"""Clients' own examples and their products with each other: all that many plain steps of a dense first layer need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coterie.learn.models.model import Batch


@dataclass(frozen=True)
class OwnExamples:
    """Of some clients, who keep them from round to round."""

    x: Tensor  # (rows, features), client after client
    y: Tensor  # (rows, ...)
    sizes: tuple[int, ...]  # rows a client
    places: Tensor  # (rows,): of each row in (clients * most)
    products: Tensor  # (clients, most, most): of each two of a client's examples, with a 1 as a further feature

    @staticmethod
    def of(x: Tensor, y: Tensor, sizes: Sequence[int]) -> OwnExamples:
        most = max(sizes)
        products = torch.zeros(len(sizes), most, most)
        for own, each in zip(x.split(list(sizes)), products, strict=True):
            each[: len(own), : len(own)] = torch.mm(own, own.T).add_(1.0)
        places = torch.cat([most * client + torch.arange(size) for client, size in enumerate(sizes)])
        return OwnExamples(x, y, tuple(sizes), places, products)

    @cached_property
    def finite(self) -> bool:
        """Whether no product overflowed: times a step of nothing at all, infinity is not nothing."""
        return bool(torch.isfinite(self.products).all())

    @property
    def clients(self) -> tuple[Tensor, ...]:
        """(rows, features) of each."""
        return torch.split(self.x, list(self.sizes))

    def side_by_side(self, rows: Tensor) -> Tensor:
        """(clients, most, ...) of (rows, ...)."""
        clients, most = self.products.shape[:2]
        room = rows.new_zeros(clients * most, *rows.shape[1:])
        return room.index_copy_(0, self.places, rows).view(clients, most, *rows.shape[1:])

    def drawn(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
        """Batches of places with their targets, and the places in (clients * most)."""
        clients, most = self.products.shape[:2]
        starts = torch.arange(0, clients * most, most).unsqueeze(1)
        targets = self.side_by_side(self.y).flatten(0, 1)
        for batch in batches:
            places = (batch.x + starts).flatten()
            yield replace(batch, y=targets.index_select(0, places).unflatten(0, (clients, -1))), places
