"""Partitions by what the examples carry: tags, columns; and how pictures are turned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Examples, Federation, VerticalFederation
from coterie.data.partition.dealing import (
    Partition,
    Rows,
    apportion,
    hold_out,
    rank_within,
    require_share,
    shards,
    tag_of,
    unknown_groups,
)
from coterie.errors import InvalidInput, require
from coterie.rng import Rng


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Pictures turned clockwise: by whole quarters exactly, else with bilinear interpolation and black corners."""
    if degrees % 360 == 0:
        return x
    if degrees % 90 == 0:
        if degrees % 180 and x.shape[2] != x.shape[3]:
            raise InvalidInput(f"angle={degrees}: pictures of {tuple(x.shape[2:])} must be square for a quarter turn")
        return torch.rot90(x, -int(degrees // 90), (2, 3))
    turn, stretch = torch.deg2rad(torch.tensor(float(degrees))), x.shape[2] / x.shape[3]
    cos, sin = torch.cos(turn), torch.sin(turn)
    # From output to input coordinates, which grid_sample scales to -1..1 on each axis.
    matrix = torch.stack([cos, sin * stretch, cos * 0, -sin / stretch, cos, cos * 0]).reshape(1, 2, 3)
    size = [len(x), *x.shape[1:]]
    grid = functional.affine_grid(matrix.expand(len(x), 2, 3), size, align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


@dataclass(frozen=True)
class ByTag(Partition):
    """Clients by who wrote, or by any other tag: one a value, or the values dealt evenly to ``clients`` of them.

    A share of each client's own rows is held out; a published split is not used, since published splits often
    keep people apart and would leave clients without either part.
    Values with fewer than ``minimum`` examples are left out. ``group_tag`` names the tag that is the truth about
    clusters: a client's group is the value that most of its examples have.
    """

    tag: str
    clients: int | None = None
    minimum: int = 2
    group_tag: str | None = None
    test_share: float = 0.2

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        values, codes, sizes = np.unique(tag_of(examples, self.tag), return_inverse=True, return_counts=True)
        kept = np.flatnonzero(sizes >= self.minimum)
        require(
            len(kept) > 0, "minimum", self.minimum, f"leaves no value of {self.tag!r}; the largest has {sizes.max()}"
        )
        clients = len(kept) if self.clients is None else self.clients
        require(1 <= clients <= len(kept), "clients", clients, f"must be 1 to {len(kept)}, the values of {self.tag!r}")
        client_of = np.full(len(values), -1)
        order = kept if self.clients is None else rng.child("tag values").numpy().permutation(kept)
        client_of[order] = np.arange(len(kept)) % clients
        owner = client_of[codes]
        rows = np.flatnonzero(owner >= 0)
        train, test = hold_out(shards(rows, owner[rows], clients), self.test_share, rng)
        return Federation(examples, train, test, groups=self.groups(examples, owner, clients))

    def groups(self, examples: Examples, owner: Rows, clients: int) -> Tensor:
        if self.group_tag is None:
            return unknown_groups(clients)
        _, codes = np.unique(tag_of(examples, self.group_tag), return_inverse=True)
        kinds = int(codes.max()) + 1
        held = owner >= 0
        counts = np.bincount(owner[held] * kinds + codes[held], minlength=clients * kinds)
        return torch.from_numpy(counts.reshape(clients, kinds).argmax(1))


@dataclass(frozen=True)
class Vertical:
    """Columns split between parties: in blocks of (almost) equal size, at random, or as ``columns`` says."""

    parties: int = 2
    shuffled: bool = False
    columns: tuple[tuple[int, ...], ...] | None = None

    def split(self, examples: Examples, rng: Rng) -> VerticalFederation:
        features = int(np.prod(examples.x.shape[1:]))
        if self.columns is not None:
            return VerticalFederation(examples, self.given(features, self.columns))
        require(
            1 <= self.parties <= features,
            "parties",
            self.parties,
            f"must be 1 to {features}, the number of columns of {examples.name}",
        )
        order = rng.child("columns").numpy().permutation(features) if self.shuffled else np.arange(features)
        owner = np.repeat(np.arange(self.parties), apportion(features, np.ones(self.parties)))
        return VerticalFederation(
            examples, tuple(torch.from_numpy(np.sort(order[owner == party])) for party in range(self.parties))
        )

    @staticmethod
    def given(features: int, columns: tuple[tuple[int, ...], ...]) -> tuple[Tensor, ...]:
        named = np.array([column for party in columns for column in party])
        require(len(columns) > 0 and all(columns), "columns", columns, "must name at least one column a party")
        require(bool(((named >= 0) & (named < features)).all()), "columns", columns, f"must lie in 0..{features - 1}")
        require(not rank_within(named).any(), "columns", columns, "must not give one column to two parties")
        return tuple(torch.tensor(party) for party in columns)
