"""The paper's data sets, each as the paper trains it and as quick scale does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.data.sources.base import Source
from coterie.data.sources.binary_features import Location30, Purchase100, Texas100
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.embedded import Mnist5k
from coterie.data.sources.mnist import FashionMnist, Mnist
from coterie.learn.models.bundled import ResNet18, WideCnn, fcnn
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model

STAND_IN = "Location-30, for Texas100 and Purchase100"  # real binary features, where those two are not to be had
LOCATION = "*bangkok* *location*.tgz"
EMBEDDED, WITH_THE_CNN = "MNIST, 5,000 embedded", "CIFAR-100 with the CNN"


@dataclass(frozen=True)
class Setup:
    """A data set as the paper trains it, and as quick scale does."""

    source: type[Source]
    model: Callable[[], Model]
    lr: float
    rounds: int
    unequal: tuple[int, int]  # sizes of label sets in the heterogeneous setting
    probe: str = ""  # files or folders, any of which tells that the data are there
    beside: str = ""  # what is read besides
    quick_rounds: int = 30
    quick_clients: int = 120
    clusters: int = 5  # in the heterogeneous setting
    steps: int = 5  # of a client in a round, each on all of its data, in the authors' code
    public: int = 1000  # examples of each label set on which that code trains the first models
    epochs: int = 1  # and how often it goes over them; of fewer examples more often, to as many steps


SETUPS = {
    "MNIST": Setup(Mnist, fcnn, 0.01, 100, (1, 3), "train-images*idx3-ubyte*", "*-ubyte*", steps=2),
    EMBEDDED: Setup(Mnist5k, fcnn, 0.01, 100, (1, 3), quick_clients=40, steps=2, public=100, epochs=10),
    "Fashion-MNIST": Setup(FashionMnist, fcnn, 0.01, 100, (1, 3), "train-images*idx3-ubyte*", "*-ubyte*", steps=2),
    "CIFAR-10": Setup(
        Cifar10, lambda: WideCnn(10, (3, 32, 32)), 0.1, 240, (1, 3), "cifar-10-*", "*batch*", 5, 40, epochs=5
    ),
    "CIFAR-100": Setup(Cifar100, lambda: ResNet18(100), 0.1, 100, (10, 30), "cifar-100-*", "train", 2, 10),
    WITH_THE_CNN: Setup(Cifar100, lambda: WideCnn(100, (3, 32, 32)), 0.1, 100, (10, 30), "cifar-100-*", "train", 5, 40),
    "Texas100": Setup(Texas100, lambda: Dense((6169, 256, 100)), 0.1, 300, (5, 20), "*feats*", "labels", 5, 40, 10),
    STAND_IN: Setup(
        Location30, lambda: Dense((446, 256, 30)), 0.1, 300, (2, 6), LOCATION, "", 30, 40, public=100, epochs=10
    ),
    "Purchase100": Setup(
        Purchase100, lambda: Dense((600, 256, 100)), 0.01, 300, (5, 20), "*purchase*", "", 30, 120, 10
    ),
}


def present(name: str, data: Path | None) -> bool:
    """Whether the data set's files seem to be in the folder; without a folder, the embedded digits alone are there."""
    setup = SETUPS[name]
    if not setup.probe:
        return data is None
    names = (*setup.probe.split(), f"{setup.source.name}.npz")
    return data is not None and setup.source().find(data, *names) is not None


def printed(name: str) -> str:
    """The paper's name of a data set; the embedded digits stand for MNIST."""
    return "MNIST" if name == EMBEDDED else name
