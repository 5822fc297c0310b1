"""Every protocol, each on a federation that brings its special cases about: one line a member.

The federation by rows has clients of unequal size, one without data and one that joins in the third round; the one by
columns has parties of unequal width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.ring import blobs

from coterie.data.federation import Federation, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.flow.protocol import Protocol
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.optimisers import Decay
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.feddp_kmeans import FedDPKMeans
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.kfed import KFed
from coterie.protocols.clusterings.scott_kmeans import ScottKMeans
from coterie.protocols.clusterings.vertical_kmeans import Fusion, Start, VerticalKMeans
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.fedprox import FedProx
from coterie.protocols.ifca import Ifca
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.sattler import Sattler
from coterie.protocols.server_steps import ServerStep
from coterie.rng import Rng

EMPTY, LATE = 2, 7  # the client without data, and the one that joins in round 2
SMALL = Dense((4, 6, 3))


def uneven() -> Federation:
    return blobs((12, 9, 0, 12, 5, 12, 7, 10), joins=[0] * 7 + [2])


def by_columns() -> VerticalFederation:
    examples = blobs((30, 34), features=7).examples
    return Vertical(columns=((3,), (0, 1), (2, 4, 5, 6))).split(examples, Rng.seeded(0))


@dataclass(frozen=True)
class Member:
    protocol: Protocol[Any]
    federation: Callable[[], Any] = uneven  # by rows or by columns
    model: Model | None = SMALL
    random: bool = True  # whether the seed matters


STEPS = Local(steps=3, batch_size=4, lr=0.3)
EPOCHS = Local(epochs=1, batch_size=5, lr=0.3)
POISSON = Local(steps=3, batch_size=4, lr=0.3, poisson=True)
ONE = Local(steps=1, batch_size=8, lr=0.3)
EAGER = {
    "agreement": 1.0,
    "progress": 0.0,
    "least": 1,
    "wait": 1,
    "most": 4,
    "separation": 1.0,
}  # splits in a short run

TRAINERS = {
    "fedavg": Member(FedAvg(rounds=4, local=STEPS)),
    "fedavg, equal weights, epochs": Member(FedAvg(rounds=3, local=EPOCHS, weighting="equal")),
    "fedavg, half take part, poisson": Member(FedAvg(rounds=4, local=POISSON, participation=0.5)),
    "fedavg, dropout": Member(FedAvg(rounds=3, local=STEPS), model=Dense((4, 6, 3), dropout=0.3)),
    "fedavg, momentum, falling rate": Member(
        FedAvg(rounds=4, local=replace(STEPS, lr=0.1, momentum=0.9, schedule=Decay("exponential", factor=0.9)))
    ),
    "fedavg, adam carried, half take part": Member(
        FedAvg(rounds=4, local=replace(STEPS, lr=0.01, optimizer="adam", carry=True), participation=0.5)
    ),
    "fedavg, server adam": Member(FedAvg(rounds=4, local=STEPS, server_step=ServerStep("adam", lr=0.1))),
    "alone": Member(LocalOnly(rounds=3, local=STEPS)),
    "ifca, several starts": Member(Ifca(rounds=4, local=STEPS, clusters=2, candidates=6, starts=2, trial=1)),
    "fedprox": Member(FedProx(rounds=4, local=STEPS, mu=0.5)),
    "fedem": Member(FedEM(rounds=4, local=STEPS, components=2)),
    "ifca": Member(Ifca(rounds=4, local=STEPS, clusters=2, candidates=6)),
    "ifca, random start, sampled choice": Member(Ifca(rounds=3, local=STEPS, clusters=3, candidates=0, choose_on=4)),
    "ifca, shared layer": Member(Ifca(rounds=3, local=STEPS, clusters=2, candidates=4, shared=("0.",))),
    "ifca, gradients": Member(Ifca(rounds=4, local=ONE, clusters=2, candidates=6, average_gradients=True)),
    "sattler": Member(Sattler(rounds=5, local=STEPS, **EAGER)),  # type: ignore[arg-type]
    "sattler, half take part": Member(Sattler(rounds=6, local=STEPS, participation=0.5, **EAGER)),  # type: ignore[arg-type]
    "cosine k-means": Member(CosineKMeans(rounds=4, local=STEPS, clusters=2)),
    "cosine k-means, updates": Member(CosineKMeans(rounds=4, local=STEPS, clusters=2, compare="updates")),
}

CENTRES = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0]])
SERVER_DATA = torch.cat([CENTRES, CENTRES - 1, CENTRES + 1])

CLUSTERERS = {
    "k-FED": Member(KFed(3), model=None),
    "federated lloyd": Member(FederatedLloyd(3, centres=CENTRES, steps=4), model=None, random=False),
    "federated lloyd, records": Member(
        FederatedLloyd(3, Level.RECORD, centres=CENTRES, steps=3), model=None, random=False
    ),
    "federated lloyd, clients": Member(
        FederatedLloyd(3, Level.CLIENT, centres=CENTRES, steps=3, bound=4.0), model=None, random=False
    ),
    "scott k-means": Member(ScottKMeans(3, server_data=SERVER_DATA, bound=4.0), model=None),
    "feddp k-means": Member(FedDPKMeans(3, server_data=SERVER_DATA), model=None),
    "feddp k-means, records": Member(FedDPKMeans(3, Level.RECORD, server_data=SERVER_DATA, bound=3.0), model=None),
    "feddp k-means, clients": Member(FedDPKMeans(3, Level.CLIENT, server_data=SERVER_DATA, steps=2), model=None),
}

VERTICAL = {
    "vertical k-means": Member(VerticalKMeans(3, steps=4), by_columns, None),
    "vertical k-means, roots, records": Member(
        VerticalKMeans(3, steps=4, fusion=Fusion.ROOTS, start_on=Start.RECORDS), by_columns, None
    ),
    "vertical k-means, random start": Member(VerticalKMeans(3, steps=4, start_on=Start.RANDOM), by_columns, None),
    "weighted grid": Member(WeightedGrid(3, local=2, steps=2, sketches=64, low=-6.0, high=6.0), by_columns, None),
}

BY_ROWS = TRAINERS | CLUSTERERS
MEMBERS = BY_ROWS | VERTICAL

every_member = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS.keys())
every_member_by_rows = pytest.mark.parametrize("member", BY_ROWS.values(), ids=BY_ROWS.keys())
every_trainer = pytest.mark.parametrize("member", TRAINERS.values(), ids=TRAINERS.keys())
