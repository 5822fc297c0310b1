"""Every data set by name, and the state of each in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.data.sources.acs_income import AcsIncome
from coterie.data.sources.base import Readiness, Source, State
from coterie.data.sources.binary_features import Location30, Purchase100, Texas100
from coterie.data.sources.celeba import Celeba
from coterie.data.sources.chinese_mnist import ChineseMnist
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.embedded import Digits, Forge, GaussianMixture, Mnist5k, Wave
from coterie.data.sources.faces import Faces
from coterie.data.sources.lfw import Lfw
from coterie.data.sources.mnist import FashionMnist, Mnist
from coterie.data.sources.own import Arrays, ImageFolder, OwnFile, Table
from coterie.data.sources.reviews import Critics, Yelp
from coterie.errors import nearest, require

# Those that need no download first, then those that are published, then the user's own.
SOURCES: dict[str, type[Source]] = {
    source.name: source
    for source in (
        *(Mnist5k, Digits, Faces, GaussianMixture, Forge, Wave),
        *(Mnist, FashionMnist, Cifar10, Cifar100, ChineseMnist, Lfw, Celeba),
        *(Texas100, Purchase100, Location30, AcsIncome, Yelp, Critics),
        *(Table, Arrays, ImageFolder),
    )
}


@dataclass(frozen=True)
class Row:
    """One line of the list of data sets."""

    name: str
    about: str
    state: State
    published_at: str
    layout: str


def find(name: str) -> type[Source]:
    require(name in SOURCES, "data set", name, nearest(name, SOURCES))
    return SOURCES[name]


def check(name: str, folder: Path | str | None = None) -> Row:
    """Reads the data set, or its beginning where that is large, and says what was found."""
    source = find(name)
    if issubclass(source, OwnFile):
        state = State(Readiness.READY, f"{source.about}: {source.layout}")
    else:
        state = source().state(folder)
    return Row(name, source.about, state, source.published_at, source.layout)


def rows(folder: Path | str | None = None) -> list[Row]:
    return [check(name, folder) for name in SOURCES]
