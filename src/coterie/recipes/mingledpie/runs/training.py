"""Train a federation with or without mingling. All arguments are plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.data.auxiliary import reserve
from coterie.data.federation import Examples, Federation
from coterie.data.partition import LabelSets
from coterie.data.partition.arrivals import waves
from coterie.data.sources.embedded import Mnist5k
from coterie.data.sources.mnist import Mnist
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import Counting
from coterie.defences.mingling.rebuilding import IdealMatrix, NoRebuilding
from coterie.defences.secure_sums import PairwiseMasks
from coterie.errors import Diverged, InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.bundled import fcnn
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.utility import scored
from coterie.protocols.base import AnyTrainer, ModelTrainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.fedprox import FedProx
from coterie.protocols.ifca import Ifca
from coterie.protocols.starts import Pretrained, Start
from coterie.recipes.mingledpie.setups import SETUPS
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import Outcome, train
from coterie.seal.mock import MockCipher


def local(name: str, as_run: bool = False) -> Local:
    setup = SETUPS[name]
    return Local(setup.steps, lr=setup.lr, whole=True) if as_run else Local(steps=5, batch_size=50, lr=setup.lr)


def pretrained(name: str, examples: Examples, sets: Sequence[Sequence[int]], rng: Rng) -> tuple[Examples, Pretrained]:
    """The server's prior knowledge, as in the authors' code: models that it trained on examples of each label set.

    They are its own: clients get the others, which are returned.
    """
    setup = SETUPS[name]
    held, rest = reserve(examples, -(-setup.public // min(map(len, sets))), rng)
    known = held.whole()
    rows = [torch.isin(known.y, torch.tensor(labels)).nonzero().flatten()[: setup.public] for labels in sets]
    public = tuple(known.take(of_set, f"{examples.name} (the server's)") for of_set in rows)
    return rest, Pretrained(public=public, local=Local(epochs=setup.epochs, batch_size=50, lr=setup.lr))


def mingling(method: str, rate: float, threshold: int) -> Defence:
    """Long runs use the mock, which opens to the same bits as CKKS (``tests/defences``)."""
    mock: dict[str, Any] = {
        "rate": rate,
        "threshold": threshold,
        "cipher": MockCipher(),
        "exact": False,
        "partition": False,
    }
    defences: dict[str, Callable[[], Defence]] = {
        "MingledPie": lambda: Mingling(**mock),
        "MingledPie, T counts decoys": lambda: Mingling(**mock, counting=Counting.DECOYS),
        "exact": lambda: Mingling(**{**mock, "exact": True}),
        "no rebuilding": lambda: Mingling(**mock, rebuilding=NoRebuilding()),
        "ideal matrix": lambda: Mingling(**mock, rebuilding=IdealMatrix(rate)),
        "secure sums": lambda: Mingling(rate, threshold, cipher=PairwiseMasks(neighbours=20)),
        "default": lambda: Mingling(cipher=PairwiseMasks(neighbours=20)),
    }
    return defences.get(method, Defence)()


def partition_of(
    examples: Examples, name: str, split: str, clusters: int, clients: int, iid_rate: float | tuple[float, ...] = 0.0
) -> LabelSets:
    """Homogeneous sets are consecutive classes: only then does Fashion-MNIST come near the paper's 98 %."""
    sets: int | tuple[tuple[int, ...], ...] = clusters
    sizes: tuple[int, int] | None = SETUPS[name].unequal
    if split == "homogeneous":
        sets = tuple(tuple(part.tolist()) for part in torch.arange(examples.classes).tensor_split(clusters))
        sizes = None
    return LabelSets(clients, sets, sizes, iid_rate)


def trained(
    name: str,
    method: str,
    split: str,
    clusters: int,
    clients: int,
    rounds: int,
    rate: float = 0.5,
    threshold: int = 2,
    iid_rate: float = 0.0,
    newcomers: int = 0,  # how many join every ten rounds; they alone have the IID rate then
    as_run: bool = False,  # a pre-trained start and steps on all of a client's data, as in the authors' code
    *,
    data: str | None,
    seed: int,
) -> Result:
    """Accuracies in percent: on test and training data, by cluster, and on the way."""
    examples = SETUPS[name].source().load(data)
    rng = Rng.seeded(seed)
    joining = newcomers * ((rounds - 1) // 10)
    rates = (0.0,) * clients + (iid_rate,) * joining if joining else iid_rate
    partition, begins = partition_of(examples, name, split, clusters, clients + joining, rates), Start()
    if as_run:
        sets = partition.label_sets(examples, rng.child("partition"))
        examples, begins = pretrained(name, examples, sets, rng)
    federation = partition.split(examples, rng.child("partition"))
    if joining:
        federation = waves(federation, range(clients, clients + joining), newcomers, every=10)
    model, protocol = SETUPS[name].model(), trainer_of(method, local(name, as_run), rounds, clusters, as_run, begins)
    newest: list[float] = []
    started = time.monotonic()
    try:
        outcome = train(
            protocol,
            federation,
            model,
            seed=seed,
            defence=mingling(method, rate, threshold),
            evaluate_every=max(1, rounds // 10),
            progress=lambda done, measured: newest.append(measured["accuracy"] if measured else 0.0),
        )
    except (Diverged, InvalidInput) as error:
        if method not in ("no rebuilding", "ideal matrix"):
            raise
        return {"accuracy": 100 * newest[-1], "training": 100 * newest[-1], "failed": str(error), "curve": []}
    return _measured(outcome, model, federation, clients) | {"seconds": time.monotonic() - started}


def trainer_of(method: str, how: Local, rounds: int, clusters: int, as_run: bool, begins: Start) -> AnyTrainer:
    """All but FedProx and FedEM are IFCA, under one defence or another."""
    if method == "FedProx":
        return FedProx(rounds=rounds, local=how)
    if method == "FedEM":
        return FedEM(rounds=rounds, local=how, components=3)
    looked_at = None if as_run else 50
    return Ifca(rounds=rounds, local=how, clusters=clusters, choose_on=looked_at, weighting="equal", begins=begins)


def _measured(outcome: Outcome, model: Model, federation: Federation, tested: int) -> Result:
    """``tested``: so many clients, whose test rows are of pure label sets; newcomers change training only."""
    choices, on_test = outcome.scores.choices, outcome.scores.accuracy[:tested]
    on_training = scored(model, outcome.models, choices, replace(federation, test=federation.train))
    groups = federation.groups[:tested]  # what a cluster serves; its number changes with the seed
    by_cluster = [on_test[groups == group].nanmean().item() for group in range(int(groups.max()) + 1)]
    return {
        "accuracy": 100 * float(on_test.nanmean()),
        "training": 100 * float(on_training.nanmean()),
        "clusters": [100 * value for value in by_cluster],
        "curve": [(row["round"], 100 * row["accuracy"]) for row in outcome.history],
        "cluster curves": _curves(outcome, choices.argmax(1)[:tested], groups),
        "sizes": outcome.cluster_sizes,
    }


def _curves(outcome: Outcome, chosen: Tensor, groups: Tensor) -> list[list[tuple[int, float]]]:
    """How accuracy grew in the cluster that serves each group at the end."""
    slots = [int(chosen[groups == group].mode().values) for group in range(int(groups.max()) + 1)]
    return [
        [(row["round"], 100 * value) for row in outcome.history if (value := row["clusters"][slot]) is not None]
        for slot in slots
    ]


LABEL_SETS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def undefended(trainer: str, rounds: int, clients: int, seed: int, data: str | None) -> Result:
    """Mean test accuracy in percent; label sets of two digits, learning rate 0.01, 5 local steps of 50."""
    examples = Mnist().load(data) if data else Mnist5k().load()
    federation = LabelSets(clients=clients, sets=LABEL_SETS).split(examples, Rng.seeded(seed).child("partition"))
    how = Local(steps=5, batch_size=50, lr=0.01)
    protocols: dict[str, ModelTrainer] = {
        "IFCA": Ifca(clusters=5, rounds=rounds, local=how, choose_on=50),
        "FedProx": FedProx(rounds=rounds, local=how),
        "FedEM": FedEM(components=3, rounds=rounds, local=how),
        "FedAvg": FedAvg(rounds=rounds, local=how),
    }
    outcome = train(protocols[trainer], federation, fcnn(), seed=seed, evaluate_every=rounds)
    return {"accuracy": 100 * outcome.accuracy, "sizes": outcome.cluster_sizes}
