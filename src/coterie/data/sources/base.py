"""What every data set has in common: a name, a place where it is published, a layout, a state."""

from __future__ import annotations

import csv
import os
import pickle
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Examples
from coterie.errors import CoterieError, DataMissing, InvalidInput, nearest, require
from coterie.rng import Rng

ENVIRONMENT = "COTERIE_DATA"
SPLIT = "split"  # the tag that keeps a published train/test split
TRAIN, TEST = 0, 1

# What a half-downloaded, truncated or foreign file makes the readers raise.
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    csv.Error,
)


class Readiness(Enum):
    READY = "ready"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class State:
    """Whether a data set can be used, and what was found."""

    readiness: Readiness
    reason: str


class Source(ABC):
    """A data set. ``load`` is the door; ``read`` is what each data set has of its own.

    Pictures are float32 in 0..1 with axes (example, channel, row, column). Where a train/test split is
    published, the tag ``split`` keeps it (0 train, 1 test), and partitions use it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    published_at: ClassVar[str]
    layout: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()  # subfolders besides the one named after the source and the folder itself
    published: ClassVar[bool] = True  # it lies in a folder of data sets: the one that is named, or the environment's

    @abstractmethod
    def read(self, folder: Path) -> Examples:
        """The examples from a folder that exists."""

    def load(self, folder: Path | str | None = None, rng: Rng | None = None) -> Examples:
        """The examples. Only generated data needs ``rng``, and only files need a folder."""
        try:
            return self.read(data_folder(folder))
        except CoterieError:
            raise
        except DAMAGE as error:
            raise InvalidInput(
                f"{self.name} cannot be read: {type(error).__name__}: {error}; replace the file by a fresh "
                f"copy from {self.published_at} (expected layout: {self.layout})"
            ) from error

    def probe(self, folder: Path | str | None) -> str:
        """Reads enough to know that the whole can be read, and says what is there."""
        return describe(self.load(folder))

    def state(self, folder: Path | str | None = None) -> State:
        try:
            return State(Readiness.READY, self.probe(folder))
        except DataMissing as error:
            return State(Readiness.MISSING, str(error))
        except InvalidInput as error:
            return State(Readiness.DAMAGED, str(error))

    def find(self, folder: Path, *names: str) -> Path | None:
        """The first of the file or folder names that exists in any of the places; a name may hold stars."""
        for place in self.searched(folder):
            for name in names:
                found = sorted(place.glob(name)) if "*" in name else [place / name]
                for path in found:
                    if path.exists():
                        return path
        return None

    def searched(self, folder: Path) -> Sequence[Path]:
        return [folder / place for place in (self.name, *self.places, ".")]

    def need(self, folder: Path, *names: str) -> Path:
        path = self.find(folder, *names)
        if path is None:
            raise self.missing(folder, names)
        return path

    def missing(self, folder: Path, names: Sequence[str]) -> DataMissing:
        return DataMissing(
            f"{self.name}: {' or '.join(names)} is not in {folder} nor in its subfolder {self.name}; "
            f"get it from {self.published_at} (expected layout: {self.layout})"
        )


def data_folder(folder: Path | str | None) -> Path:
    """The folder that was named, else the one in the environment."""
    named = folder if folder is not None else os.environ.get(ENVIRONMENT)
    if named is None:
        raise DataMissing(f"no data folder is named; pass folder=... or set the environment variable {ENVIRONMENT}")
    path = Path(named).expanduser()
    if not path.is_dir():
        raise DataMissing(f"data folder {path} does not exist; pass folder=... or set {ENVIRONMENT} to one that does")
    return path


def describe(examples: Examples) -> str:
    shape = "x".join(map(str, examples.x.shape[1:])) + (" numbers" if examples.x.dim() == 2 else "")
    return f"{len(examples):,} examples of {shape}, {examples.classes} classes"


def pixels(*parts: NDArray[np.uint8]) -> Tensor:
    """Bytes (n, rows, columns[, channels]) as float32 in 0..1, (n, channels, rows, columns), part by part."""
    first = parts[0].reshape(*parts[0].shape[:3], -1)
    x = torch.empty(sum(map(len, parts)), first.shape[3], first.shape[1], first.shape[2])
    start = 0
    for part in parts:  # straight into place: at this size, touching fresh memory is what costs
        bytes_ = torch.from_numpy(np.require(part.reshape(-1, *first.shape[1:]), requirements="W"))
        x[start : start + len(part)].copy_(bytes_.permute(0, 3, 1, 2))
        start += len(part)
    return x.div_(255)


def integers(values: NDArray[np.generic] | Sequence[int]) -> Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.int64))


def numbered(values: Iterable[object]) -> tuple[Tensor, tuple[str, ...]]:
    """Values as whole numbers by first sorted order, and the names in that order."""
    names, codes = np.unique(np.asarray([str(value) for value in values]), return_inverse=True)
    return integers(codes), tuple(map(str, names))


def official(train: int, test: int) -> Tensor:
    return torch.cat([torch.full((train,), TRAIN), torch.full((test,), TEST)])


Scale = Mapping[str, tuple[float, float]]
"""Public numbers of some columns, (middle, width): what rows are measured by in the place of all rows' own."""

READ_OFF = (
    "the mean and deviation of its columns, by which all rows are standardised ([data] scale has public ones in their "
    "place)"
)


def require_scale(scale: Scale, columns: Sequence[str]) -> None:
    """``columns``: those that would be standardised without."""
    for column, (middle, width) in scale.items():
        require(column in columns, "scale", column, nearest(column, columns))
        finite = np.isfinite(middle) and 0 < width < np.inf
        require(finite, f"scale of {column!r}", (middle, width), "must be finite numbers, the second above 0")


def by_scale(values: NDArray[np.float64], scale: tuple[float, float]) -> NDArray[np.float32]:
    middle, width = scale
    return ((values - middle) / width).astype(np.float32)


def standardised(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Mean 0 and deviation 1 over all rows; a constant becomes 0."""
    spread = float(values.std())
    scaled: NDArray[np.float64] = (values - values.mean()) / (spread if spread > 0 else 1.0)
    return scaled.astype(np.float32)
