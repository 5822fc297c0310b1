"""Gaussian mixtures spread over clients, and the server's own data (paper 002 and Scott et al.)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition.dealing import unknown_groups
from coterie.errors import require
from coterie.rng import Rng


@dataclass(frozen=True)
class GaussianClients:
    """``clients`` with ``points`` each, from ``components`` spherical Gaussians.

    Centres are uniform in the unit cube and the variance is 0.5, as in the reference runs (100 clients x 1000
    points at record level, 2000 x 50 at client level). ``held`` limits how many components a client draws from
    (k-FED's case); None: all, with equal weights. The label of a point is its component.
    """

    clients: int = 100
    points: int = 1000
    components: int = 10
    dimensions: int = 100
    variance: float = 0.5
    held: int | None = None
    server_per_component: int = 20
    server_uniform: int = 100

    def __post_init__(self) -> None:
        for name in ("clients", "points", "components", "dimensions"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("variance", "server_per_component", "server_uniform"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        total = self.clients * self.points
        require(self.components <= total, "components", self.components, f"must not exceed the {total} points in all")
        require(
            self.held is None or 1 <= self.held <= self.components,
            "held",
            self.held,
            f"must be 1 to {self.components}, the number of components",
        )

    def centres(self, rng: Rng) -> Tensor:
        """(components, dimensions)"""
        return torch.rand(self.components, self.dimensions, generator=rng.child("centres").torch())

    def make(self, rng: Rng) -> Federation:
        draw = rng.child("components").numpy()
        if self.held is None:
            labels = draw.integers(self.components, size=(self.clients, self.points))
        else:
            order = draw.random((self.clients, self.components)).argsort(1)[:, : self.held]
            pick = draw.integers(self.held, size=(self.clients, self.points))
            labels = np.take_along_axis(order, pick, 1)
        y = torch.from_numpy(labels.reshape(-1))
        x = self.around(self.centres(rng), y, rng.child("points"))
        offsets = torch.arange(self.clients + 1) * self.points
        nothing = Shards(torch.empty(0, dtype=torch.int64), torch.zeros(self.clients + 1, dtype=torch.int64))
        return Federation(
            Examples(x=x, y=y, classes=self.components, name="gaussian clients"),
            train=Shards(torch.arange(len(y)), offsets),
            test=nothing,  # clustering is judged on the points themselves
            groups=unknown_groups(self.clients),
        )

    def server(self, rng: Rng) -> Auxiliary:
        """The server's points: some of every component and some uniform in the cube, without their labels."""
        y = torch.arange(self.components).repeat_interleave(self.server_per_component)
        mixed = self.around(self.centres(rng), y, rng.child("server points"))
        uniform = torch.rand(self.server_uniform, self.dimensions, generator=rng.child("server uniform").torch())
        x = torch.cat([mixed, uniform])
        return Auxiliary(Examples(x=x, y=torch.zeros(len(x), dtype=torch.int64), classes=1, name="server data"))

    def around(self, centres: Tensor, y: Tensor, rng: Rng) -> Tensor:
        x = torch.randn(len(y), self.dimensions, generator=rng.torch()).mul_(self.variance**0.5)
        for rows in torch.arange(len(y)).split(1 << 16):  # in pieces: 10 million points leave no room for a copy
            x[rows[0] : rows[-1] + 1] += centres[y[rows]]
        return x
