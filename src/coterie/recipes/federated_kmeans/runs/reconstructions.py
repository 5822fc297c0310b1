"""Figures 5 to 7: what a curious server rebuilds of a record or a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.attacks import reconstruction
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.estimators import run_clustering
from coterie.flow.guard import Defence
from coterie.measure.reconstruction import Originals, client_shift, cosines
from coterie.privacy.guarantee import Level, Trust
from coterie.protocols.clusterings import feddp_kmeans
from coterie.protocols.clusterings.base import Clusterer
from coterie.recipes.federated_kmeans.runs.problems import CLUSTERS, DELTA, Problem, problem
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

GAUSSIAN_BOUND, CENSUS_BOUND = 8.0, 2.65
"""Bounds by hand, for attacks on federations too small to estimate one at epsilon 1; 2.65 is the public code's."""


TRUSTS: Mapping[str, Trust | None] = {
    "no noise": None,
    "trusted aggregator": Trust.TRUSTED_AGGREGATOR,
    "distributed noise": Trust.DISTRIBUTED_NOISE,
    "local noise": Trust.LOCAL_NOISE,
}


def defence_for(trust: Trust | None, protocol: Clusterer, epsilon: float, clients: int) -> Defence:
    if trust is None or protocol.level is None:
        return Defence()
    kinds: tuple[type[NoisySums], ...] = (CentralNoise, DistributedNoise, LocalNoise)
    kind = next(kind for kind in kinds if kind.trust is trust)
    settings: dict[str, Any] = {"clients": clients} if kind is DistributedNoise else {}
    return kind.within(epsilon, DELTA, protocol.releases(), protocol.level, **settings)


def reconstructions(
    name: str,
    clients: int,
    points: int,
    level: str,
    trust: str,
    epsilon: float,
    trials: int,
    seed: int,
    data: str | None,
) -> Result:
    """The cosines of several trials, each with its own draw of data and noise, and one target in the first client."""
    found = []
    for trial in range(trials):
        given = problem(name, clients, points, seed_of_trial(seed, trial), data)
        found.append(_rebuild(given, Level(level), TRUSTS[trust], epsilon, Rng.seeded(seed).child("trial", trial)))
    return {"cosines": found}


def seed_of_trial(seed: int, trial: int) -> int:
    """Of a trial's data."""
    return 1000 * seed + trial


def _rebuild(given: Problem, level: Level, trust: Trust | None, epsilon: float, rng: Rng) -> float:
    unit_level = None if trust is None else level
    steps = 1 if level is Level.RECORD else 0
    bound = GAUSSIAN_BOUND if given.truth is not None else CENSUS_BOUND
    protocol = feddp_kmeans.FedDPKMeans(CLUSTERS, unit_level, server_data=given.server, steps=steps, bound=bound)
    tape = Tape([reconstruction.CURIOUS_SERVER])
    run_clustering(
        protocol, given.federation, rng, defence_for(trust, protocol, epsilon, given.federation.clients), tape
    )
    view = tape.view(reconstruction.CURIOUS_SERVER)
    return _record(given, protocol, view, rng) if level is Level.RECORD else _client(given, protocol, view, rng)


def _record(given: Problem, protocol: Clusterer, view: View, rng: Rng) -> float:
    first, *others = given.parts
    known = {reconstruction.REST: _examples(first[1:]), reconstruction.OTHERS: _examples(torch.cat(others))}
    attack = reconstruction.RecordReconstruction(0, "lloyd 1", protocol.unit)
    return cosines(attack.infer(view, Auxiliary(parts=known), rng), Originals({0: first[0]}))[0]


def _client(given: Problem, protocol: Clusterer, view: View, rng: Rng) -> float:
    first, *others = given.parts
    attack = reconstruction.ClientReconstruction(0, "centres", protocol.unit, tuple(others))
    public = reconstruction.seen(view, "centres", 0, protocol.unit).public
    truth = client_shift(first, public)
    return cosines(attack.infer(view, Auxiliary(), rng), Originals({0: truth}))[0]


def _examples(x: Tensor) -> Examples:
    return Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "known")
