"""Partitions that change or cut what the examples look like: rotations, tags, columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    pool,
    rank_within,
    require_clients,
    require_share,
    shards,
    shared,
    tag_of,
    unknown_groups,
)
from coterie.errors import InvalidInput, require
from coterie.rng import Rng


@dataclass(frozen=True)
class Rotation(Partition):
    """Groups of clients that see the pictures turned by different angles (paper 004, Section V; also IFCA's).

    Angles are in degrees clockwise. ``members`` says how many clients have each angle; without it they have equal
    numbers. Each row is dealt to one group and turned once, so the data keeps its size; the clients of a group
    share its part of the test rows.
    """

    clients: int
    angles: tuple[float, ...] = (0, 90, 180, 270)
    members: tuple[int, ...] | None = None
    test_share: float = 0.2

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        require(examples.x.dim() == 4, f"{examples.name}.x", tuple(examples.x.shape), "must be pictures (n, c, h, w)")
        train, test = pool(examples, self.test_share, rng)
        groups = self.client_groups()
        require_clients(self.clients, len(train))
        owner = np.arange(len(train)) % self.clients
        train_shards = shards(train, owner, self.clients)
        share = apportion(len(test), np.bincount(groups).astype(float))
        tested = np.repeat(np.arange(len(self.angles)), share)
        group_of = np.full(len(examples), -1)
        group_of[train], group_of[test] = groups[owner], tested
        return Federation(
            replace(examples, x=self.turned(examples.x, torch.from_numpy(group_of))),
            train_shards,
            shared({group: test[tested == group] for group in range(len(self.angles))}, groups),
            groups=torch.from_numpy(groups),
        )

    def client_groups(self) -> Rows:
        require(len(self.angles) >= 1, "angles", self.angles, "must not be empty")
        members = self.members
        if members is None:
            require(
                self.clients >= len(self.angles), "clients", self.clients, f"must be one an angle ({len(self.angles)})"
            )
            members = tuple(apportion(self.clients, np.ones(len(self.angles))))
        require(
            len(members) == len(self.angles) and sum(members) == self.clients and min(members) >= 1,
            "members",
            members,
            f"must be one number an angle ({len(self.angles)}), each at least 1, {self.clients} in all",
        )
        return np.repeat(np.arange(len(members)), members)

    def turned(self, x: Tensor, group_of: Tensor) -> Tensor:
        x = x.clone()
        for group, angle in enumerate(self.angles):
            rows = (group_of == group).nonzero().flatten()
            x[rows] = rotate(x[rows], angle)
        return x


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
