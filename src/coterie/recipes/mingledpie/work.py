"""The jobs: train a federation with or without mingling, and attack one. All arguments are plain values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coterie.attacks.profiling import CURIOUS_SERVER, IdentityProfiling, SensitivityProfiling, colluding_server
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary, reserve
from coterie.data.federation import Examples, Federation
from coterie.data.partition import LabelSets
from coterie.data.partition.arrivals import waves
from coterie.data.sources.base import Source
from coterie.data.sources.binary_features import Purchase100, Texas100
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.embedded import Mnist5k
from coterie.data.sources.mnist import FashionMnist, Mnist
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import Counting
from coterie.defences.mingling.rebuilding import IdealMatrix, NoRebuilding
from coterie.defences.secure_sums import PairwiseMasks
from coterie.errors import Diverged, InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.bundled import Cnn, ResNet18, fcnn, purchase_mlp, texas_mlp
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.findings import Finding
from coterie.measure.judge import Labels, judge
from coterie.measure.preferences import Preferences, judge_top_k
from coterie.measure.utility import accuracy
from coterie.protocols.fedem import FedEM
from coterie.protocols.fedprox import FedProx
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import Outcome, train
from coterie.seal.mock import MockCipher
from coterie.wire.tape import Tape
from coterie.wire.view import View


@dataclass(frozen=True)
class Setup:
    """A data set as the paper trains it, and as quick scale does."""

    source: type[Source]
    model: Callable[[], Model]
    lr: float
    rounds: int
    unequal: tuple[int, int]  # sizes of label sets in the heterogeneous setting
    probe: str = ""  # a file or folder that tells whether the data are there
    quick_rounds: int = 30
    quick_clients: int = 120
    clusters: int = 5  # in the heterogeneous setting


SETUPS = {
    "MNIST": Setup(Mnist, fcnn, 0.01, 100, (1, 3), "train-images*idx3-ubyte*"),
    "MNIST, 5,000 embedded": Setup(Mnist5k, fcnn, 0.01, 100, (1, 3), quick_clients=40),
    "Fashion-MNIST": Setup(FashionMnist, fcnn, 0.01, 100, (1, 3), "train-images*idx3-ubyte*"),
    "CIFAR-10": Setup(Cifar10, lambda: Cnn(10, (3, 32, 32)), 0.1, 240, (1, 3), "cifar-10-*", 5, 40),
    "CIFAR-100": Setup(Cifar100, lambda: ResNet18(100), 0.1, 100, (10, 30), "cifar-100-*", 2, 10),
    "CIFAR-100 with the CNN": Setup(Cifar100, lambda: Cnn(100, (3, 32, 32)), 0.1, 100, (10, 30), "cifar-100-*", 5, 40),
    "Texas100": Setup(Texas100, texas_mlp, 0.1, 300, (5, 20), "*feats*", 5, 40, 10),
    "Purchase100": Setup(Purchase100, purchase_mlp, 0.01, 300, (5, 20), "*purchase*", 30, 120, 10),
}


def present(name: str, data: Path | None) -> bool:
    """Whether the data set's files seem to be in the folder; without a folder, the embedded digits alone are there."""
    setup = SETUPS[name]
    if not setup.probe:
        return data is None
    return data is not None and setup.source().find(data, setup.probe, f"{setup.source.name}.npz") is not None


def local(name: str) -> Local:
    return Local(steps=5, batch_size=50, lr=SETUPS[name].lr)


def mingling(method: str, rate: float, threshold: int) -> Defence:
    """Long runs use the mock, which opens to the same bits as CKKS (``tests/defences``)."""
    mock: dict[str, Any] = {"rate": rate, "threshold": threshold, "cipher": MockCipher()}
    defences: dict[str, Callable[[], Defence]] = {
        "MingledPie": lambda: Mingling(**mock),
        "MingledPie, T counts decoys": lambda: Mingling(**mock, counting=Counting.DECOYS),
        "exact": lambda: Mingling(**mock, exact=True),
        "no rebuilding": lambda: Mingling(**mock, rebuilding=NoRebuilding()),
        "ideal matrix": lambda: Mingling(**mock, rebuilding=IdealMatrix(rate)),
        "secure sums": lambda: Mingling(rate, threshold, cipher=PairwiseMasks(neighbours=8), exact=True),
    }
    return defences.get(method, Defence)()


def federation_of(
    examples: Examples,
    name: str,
    split: str,
    clusters: int,
    clients: int,
    rng: Rng,
    iid_rate: float | tuple[float, ...],
) -> Federation:
    """Homogeneous sets are consecutive classes: only then does Fashion-MNIST come near the paper's 98 %."""
    sets: int | tuple[tuple[int, ...], ...] = clusters
    sizes: tuple[int, int] | None = SETUPS[name].unequal
    if split == "homogeneous":
        sets = tuple(tuple(part.tolist()) for part in torch.arange(examples.classes).tensor_split(clusters))
        sizes = None
    return LabelSets(clients, sets, sizes, iid_rate).split(examples, rng.child("partition"))


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
    *,
    data: str | None,
    seed: int,
) -> Result:
    """Accuracies in percent: on test and training data, by cluster, and on the way."""
    examples = SETUPS[name].source().load(data)
    rng = Rng.seeded(seed)
    joining = newcomers * ((rounds - 1) // 10)
    rates = (0.0,) * clients + (iid_rate,) * joining if joining else iid_rate
    federation = federation_of(examples, name, split, clusters, clients + joining, rng, rates)
    if joining:
        federation = waves(federation, range(clients, clients + joining), newcomers, every=10)
    model, how = SETUPS[name].model(), local(name)
    protocol: Any = Ifca(rounds=rounds, local=how, clusters=clusters, choose_on=50, weighting="equal")
    if method == "FedProx":
        protocol = FedProx(rounds=rounds, local=how)
    if method == "FedEM":
        protocol = FedEM(rounds=rounds, local=how, components=3)
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
    return _measured(outcome, model, federation) | {"seconds": time.monotonic() - started}


def _measured(outcome: Outcome, model: Model, federation: Federation) -> Result:
    choices = outcome.scores.choices
    on_training = accuracy(model, outcome.models, choices, replace(federation, test=federation.train))
    best = choices.argmax(1)
    by_cluster = [outcome.scores.accuracy[best == slot].nanmean().item() for slot in range(choices.shape[1])]
    return {
        "accuracy": 100 * outcome.accuracy,
        "training": 100 * float(on_training.nanmean()),
        "clusters": [100 * value for value in by_cluster],
        "curve": [(row["round"], 100 * row["accuracy"]) for row in outcome.history],
        "sizes": outcome.cluster_sizes,
    }


ATTACKED_ROUNDS = 5


def profiled(name: str, method: str, clients: int, *, data: str | None, seed: int) -> Result:
    """What A1 and A2 get of the first five rounds, the server alone and with a client, in percent."""
    rng = Rng.seeded(seed)
    auxiliary, examples = reserve(SETUPS[name].source().load(data), 20, rng)
    federation = federation_of(examples, name, "homogeneous", 5, clients, rng, 0.0)
    defence, model = mingling(method, 0.5, 2), SETUPS[name].model()
    colluding = colluding_server(0)
    tape = Tape([CURIOUS_SERVER, colluding])
    protocol = Ifca(rounds=ATTACKED_ROUNDS, local=local(name), clusters=5, choose_on=50, weighting="equal")
    outcome = train(protocol, federation, model, seed=seed, defence=defence, tape=tape, evaluate_every=1000)
    stands_for = _stands_for(outcome.scores.choices.argmax(1), federation.groups)
    truth = Labels({client: int(group) for client, group in enumerate(federation.groups)}, 5)
    alone = tape.view(CURIOUS_SERVER)
    together = tape.view(colluding, getattr(defence, "keys", None))

    def identity(view: View, **options: Any) -> Finding:
        attack = IdentityProfiling(stands_for, view.threat, **options)
        return judge(attack.infer(view, auxiliary, rng.child("A1")), truth)

    found = {f"epoch {epoch}": identity(alone, upto=epoch - 1) for epoch in (1, 3, 5)}
    found["intersection"] = identity(alone, intersect=True)
    found["sizes read"] = identity(alone, upto=ATTACKED_ROUNDS - 2, read_sizes=True)
    found["with a client"] = identity(together)
    found |= _by_model(model, examples.classes, {"A2": alone, "A2 with a client": together}, auxiliary, federation, rng)
    return {key: [100 * one.score, 100 * one.interval.low, 100 * one.interval.high] for key, one in found.items()}


def _by_model(
    model: Model, classes: int, views: dict[str, View], auxiliary: Auxiliary, federation: Federation, rng: Rng
) -> dict[str, Finding]:
    preferences, found = Preferences.of(federation), {}
    imitation = Imitation(model, Local(steps=5, batch_size=10, lr=0.1))
    for label, view in views.items():
        guess = SensitivityProfiling(imitation, classes, view.threat).infer(view, auxiliary, rng.child("A2"))
        found[f"{label}, top-1"] = judge(guess, preferences)
        found[f"{label}, top-k"] = judge_top_k(guess, preferences)
    return found


def _stands_for(chosen: torch.Tensor, groups: torch.Tensor) -> dict[int, int]:
    """What each cluster serves: the group of most of its clients. A server that set the task up knows it."""
    serves = {}
    for cluster in range(5):
        members = groups[chosen == cluster]
        serves[cluster] = int(members.mode().values) if len(members) else cluster
    return serves
