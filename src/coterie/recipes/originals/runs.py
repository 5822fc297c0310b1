"""Trainers in the settings of those who published them. All arguments are plain values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from coterie.data.federation import Examples, Federation
from coterie.data.partition import Iid, LabelPermutations, Partition, Rotation
from coterie.data.partition.dealing import is_split
from coterie.data.sources.base import SPLIT, TEST
from coterie.data.sources.embedded import Mnist5k
from coterie.data.sources.mnist import FashionMnist, Mnist
from coterie.errors import InvalidInput
from coterie.learn.models.bundled import fcnn
from coterie.learn.optimisers import Decay
from coterie.learn.sgd import Local
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.sattler import Notebook, Sattler
from coterie.protocols.starts import Given
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import Outcome, train

SOURCES = {"MNIST": Mnist, "Fashion-MNIST": FashionMnist}
TRIAL = 5  # rounds a start: by then those that merge groups had the larger loss, in all of ten that were looked at
GHOSH = Local(steps=10, whole=True, lr=0.1)  # their tau = 10 full-batch steps
LOCALS = {
    "5 steps of 20": Local(steps=5, batch_size=20, lr=0.1),
    "an epoch of 20": Local(epochs=1, batch_size=20, lr=0.05),
    "10 whole steps": Local(steps=10, whole=True, lr=0.1),
    "an epoch of 32, momentum": Local(epochs=1, batch_size=32, lr=0.05, momentum=0.9),
}
RULES: dict[str, dict[str, Any]] = {
    "separation": {},
    "no test": {"separation": 1.0},
    "notebook": {"notebook": Notebook(), "weighting": "equal"},
}


def examples_of(name: str, data: str | None, most: int | None, rng: Rng) -> Examples:
    """A published set, or without a folder 5,000 embedded digits; ``most`` training rows of it, drawn."""
    examples = _loaded(name, data)
    if most is None or not is_split(examples):
        return examples
    tested = examples.tags[SPLIT] == TEST
    training = (~tested).nonzero().flatten()
    drawn = training[torch.randperm(len(training), generator=rng.child("rows").torch())[:most]]
    return examples.take(torch.cat([drawn, tested.nonzero().flatten()]))


@lru_cache(maxsize=1)
def _loaded(name: str, data: str | None) -> Examples:
    """Read once by a process that does several jobs."""
    return Mnist5k().load() if data is None else SOURCES[name]().load(data)


def found(outcome: Outcome) -> Result:
    clusters = outcome.clusters
    return {
        "accuracy": 100 * outcome.accuracy,
        "recovered": 100.0 if clusters.recovered else 0.0,
        "ari": clusters.ari,
        "sizes": list(clusters.sizes),
        "weights": list(clusters.weights),
        "starved": len(clusters.starved),
    }


# -- IFCA on rotated digits --------------------------------------------------------------------------------------------


def rotated(clients: int, samples: int, data: str | None, seed: int) -> Federation:
    """Every picture in four angles, dealt to clients of one angle each."""
    rng = Rng.seeded(seed)
    return Rotation(clients, full=True, samples=samples).split(
        examples_of("MNIST", data, None, rng), rng.child("split")
    )


def ifca(start: str, clients: int, samples: int, rounds: int, *, data: str | None, seed: int) -> Result:
    """One start of IFCA, or the best of several after a short trial; ``rounds`` are of the one that stays."""
    federation = rotated(clients, samples, data, seed)
    starts = {"random": 1, "vote": 1, "best of 4": 4, "best of 8": 8}[start]
    trial = min(TRIAL, rounds)
    total = rounds + trial * (starts - 1)
    protocol = Ifca(
        total,
        GHOSH,
        weighting="equal",
        clusters=4,
        candidates=30 if start == "vote" else 0,
        starts=starts,
        trial=trial,
    )
    return found(train(protocol, federation, fcnn(), seed=seed, evaluate_every=total))


def beside_ifca(baseline: str, clients: int, samples: int, rounds: int, *, data: str | None, seed: int) -> Result:
    """One model for all, a model for each, or the first fine-tuned by each client for ten steps."""
    federation = rotated(clients, samples, data, seed)
    if baseline == "local":
        return found(train(LocalOnly(rounds, GHOSH), federation, fcnn(), seed=seed, evaluate_every=rounds))
    one = train(FedAvg(rounds, GHOSH, weighting="equal"), federation, fcnn(), seed=seed, evaluate_every=rounds)
    if baseline == "global":
        return found(one)
    start = Given(given=one.models_of_clients())
    return found(train(LocalOnly(1, GHOSH), federation, fcnn(), seed=seed, evaluate_every=1, start=start))


# -- Sattler: groups, and clients that are alike -----------------------------------------------------------------------


def sattler(
    groups: str, local: str, rule: str, name: str, clients: int, rounds: int, *, data: str | None, seed: int
) -> Result:
    """Whether the clusters are the groups; of clients that are alike, whether they stayed together."""
    rng = Rng.seeded(seed)
    partitions: dict[str, Partition] = {
        "none": Iid(clients),
        "labels": LabelPermutations(clients, 4),
        "rotations": Rotation(clients),
    }
    examples = examples_of(name, data, 250 * clients, rng)
    federation = partitions[groups].split(examples, rng.child("split"))
    protocol = Sattler(rounds, LOCALS[local], **RULES[rule])
    result = found(train(protocol, federation, fcnn(hidden=100), seed=seed, evaluate_every=rounds))
    clusters = sum(size > 0 for size in result["sizes"])
    right = clusters == 1 if groups == "none" else result["recovered"] > 0
    return result | {"right": 100.0 * right, "clusters": clusters}


# -- FedEM on mixtures -------------------------------------------------------------------------------------------------


def mixture(trainer: str, clients: int, rounds: int, *, data: str | None, seed: int) -> Result:
    """Clients whose labels are a mixture of three namings, in shares drawn from a Dirichlet of 0.4."""
    rng = Rng.seeded(seed)
    partition = LabelPermutations(clients, 3, mixing=0.4)
    federation = partition.split(examples_of("MNIST", data, 250 * clients, rng), rng.child("split"))
    local = Local(epochs=1, batch_size=32, lr=0.1)
    protocols = {
        "FedEM": FedEM(rounds, local, components=3),
        "FedAvg": FedAvg(rounds, local),
        "local": LocalOnly(rounds, local),
    }
    return found(train(protocols[trainer], federation, fcnn(hidden=100), seed=seed, evaluate_every=rounds))


# -- paper 004: six and eight clients ----------------------------------------------------------------------------------

ANGLES = {6: ((0.0, 90.0, -90.0, 180.0), (1, 1, 1, 3)), 8: ((0.0, 60.0, -60.0, 180.0), (2, 1, 1, 4))}


def paper_004(clients: int, compare: str, rounds: int, *, data: str | None, seed: int) -> Result:
    """Two clusters of clients 1 to n/2 and the rest: does Algorithm 1 find the second, which all have one angle?"""
    rng = Rng.seeded(seed)
    if clients not in ANGLES:
        raise InvalidInput(f"clients={clients} is none of paper 004's settings; take 6 or 8")
    angles, members = ANGLES[clients]
    examples = examples_of("MNIST", data, 1000 * clients, rng)
    federation = Rotation(clients, angles, members=members, shuffled=False).split(examples, rng.child("split"))
    local = Local(epochs=2, batch_size=32, lr=1e-4, optimizer="adam", schedule=Decay("linear", by=1e-7))
    protocol = CosineKMeans(rounds, local, clusters=2, compare=compare)  # type: ignore[arg-type]
    outcome = train(protocol, federation, fcnn(), seed=seed, evaluate_every=rounds)
    sides = outcome.clusters.members
    half = clients // 2
    split = bool((sides[:half] == sides[0]).all() and (sides[half:] == sides[-1]).all() and sides[0] != sides[-1])
    return found(outcome) | {"two halves": 100.0 * split, "settled": 100.0 * outcome.state.settled}
