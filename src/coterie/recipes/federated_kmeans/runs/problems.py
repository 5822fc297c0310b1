"""Points of clients to be clustered: drawn from Gaussians, and of the census."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from coterie.data.federation import Examples, Federation
from coterie.data.partition.gaussians import GaussianClients
from coterie.data.sources.acs_income import AcsIncome
from coterie.errors import DataMissing
from coterie.estimators import federate
from coterie.rng import Rng

DELTA = 1e-6
CLUSTERS = 10
CODES = ("SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P")
CENSUS_CLASS = 1  # COW: employees of companies, who are many enough in two states
DATA_SEED = 0


@dataclass(frozen=True)
class Problem:
    """Points of clients, public points of the server, and the true components where there are any."""

    federation: Federation
    server: Tensor
    truth: Tensor | None = None

    @property
    def x(self) -> Tensor:
        return self.federation.examples.x

    @property
    def parts(self) -> list[Tensor]:
        train = self.federation.train
        return [self.x[train[client]] for client in range(self.federation.clients)]


def gaussians(clients: int, points: int, seed: int) -> Problem:
    maker, rng = GaussianClients(clients, points), Rng.seeded(seed).child("data")
    federation = maker.make(rng)
    server = maker.server(rng).whole().x
    return Problem(federation, server, federation.examples.y)


def census(data: str | None, clients: int, seed: int) -> Problem:
    """ACSIncome one-hot without age, hours and class of worker; the server's points are people of other classes.

    The paper has 51 clients, the states. Two states are in the files, so people are dealt to clients at random, whose
    sizes are as unequal as random cuts make them.
    """
    found = _people(data)
    draws = Rng.seeded(seed).child("census").numpy()
    inside = found.tags["COW"] == CENSUS_CLASS
    rows = inside.nonzero().flatten()[torch.from_numpy(draws.permutation(int(inside.sum())))]
    cuts = torch.from_numpy(draws.choice(len(rows) - 1, clients - 1, replace=False) + 1).sort().values
    others = (~inside).nonzero().flatten()
    server = others[torch.from_numpy(draws.permutation(len(others))[: len(others) // 10])]
    return Problem(federate([found.x[part] for part in rows.tensor_split(cuts)]), found.x[server])


@cache
def _people(data: str | None) -> Examples:
    if data is None:
        raise DataMissing("census data were not given; name the folder that holds acs_income with --data")
    return AcsIncome(columns=CODES, one_hot=True).load(data)


def problem(name: str, clients: int, points: int, seed: int, data: str | None) -> Problem:
    return gaussians(clients, points, seed) if name == "gaussians" else census(data, clients, seed)
