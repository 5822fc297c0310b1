"""Arithmetic on named tensors, and the way between a tree of leaves and one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.errors import require

Params = Mapping[str, Tensor]


class Owned(dict[str, Tensor]):
    """Leaves that nobody else holds: whoever is given them may write to them."""


class Copies(Mapping[str, Tensor]):
    """(clients, ...): each client's copy of the model that it chose, made anew whenever somebody asks for it."""

    def __init__(self, models: Params, choice: Tensor) -> None:
        self.models, self.choice = models, choice

    def __getitem__(self, name: str) -> Tensor:
        return self.models[name].index_select(0, self.choice)

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)


def room_for(params: Params) -> dict[str, Tensor]:
    """Leaves of the same shapes, with nothing in them yet."""
    if isinstance(params, Copies):
        return map_leaves(lambda leaf: leaf.new_empty(len(params.choice), *leaf.shape[1:]), params.models)
    return map_leaves(lambda leaf: torch.empty_like(leaf, memory_format=torch.contiguous_format), params)


def put(params: Params, room: Params, clients: slice) -> Owned:
    """The rows of these clients, written to their place there."""
    own = Owned({name: leaf[clients] for name, leaf in room.items()})
    for name, leaf in own.items():
        if isinstance(params, Copies):
            torch.index_select(params.models[name], 0, params.choice[clients], out=leaf)
        else:
            leaf.copy_(params[name][clients])
    return own


def map_leaves(function: Callable[..., Tensor], *trees: Params) -> dict[str, Tensor]:
    """Apply the function leaf by leaf; all trees have the names of the first."""
    first = trees[0]
    return {name: function(*(tree[name] for tree in trees)) for name in first}


def stack(trees: Iterable[Params]) -> dict[str, Tensor]:
    """A new axis 0 over the trees."""
    trees = list(trees)
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def pick(params: Params, index: int | Tensor) -> dict[str, Tensor]:
    """One position (or several) of axis 0."""
    return {name: leaf[index] for name, leaf in params.items()}


def subtract(left: Params, right: Params) -> dict[str, Tensor]:
    return map_leaves(torch.sub, left, right)


def flatten(params: Params, leading: int = 1) -> Tensor:
    """(..., length): the leaves side by side, in their order; the first ``leading`` axes stay."""
    return torch.cat(
        [leaf.flatten(leading) if leaf.dim() > leading else leaf.unsqueeze(-1) for leaf in params.values()],
        -1,
    )


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's leaves: what a flat vector needs to become a tree again."""

    shapes: Mapping[str, torch.Size]

    @staticmethod
    def of(params: Params, leading: int = 0) -> Layout:
        return Layout({name: leaf.shape[leading:] for name, leaf in params.items()})

    @cached_property
    def length(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Where each leaf lies in the flat vector."""
        spans, start = {}, 0
        for name, shape in self.shapes.items():
            spans[name] = slice(start, start + shape.numel())
            start += shape.numel()
        return spans

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The tree for (..., length); leaves keep the leading axes."""
        require(
            flat.shape[-1] == self.length,
            "flat.shape[-1]",
            flat.shape[-1],
            f"must be the layout's {self.length}",
        )
        leading = flat.shape[:-1]
        return {name: flat[..., span].reshape((*leading, *self.shapes[name])) for name, span in self.spans.items()}
