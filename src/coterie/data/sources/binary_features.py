"""Texas100, Purchase100 and Location-30: binary features, 100 or 30 classes."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import Source, integers
from coterie.errors import InvalidInput
from coterie.files import PUBLISHED, read_npz, require_room

COMMA, NEWLINE, ZERO = (ord(sign) for sign in ",\n0")


@dataclass(frozen=True)
class Purchase100(Source):
    """197,324 shoppers, which of 600 products each bought; the classes are 100 clusters of shoppers."""

    name: ClassVar[str] = "purchase100"
    about: ClassVar[str] = "197,324 shoppers, 600 binary features, 100 classes"
    published_at: ClassVar[str] = "https://github.com/privacytrustlab/datasets (dataset_purchase.tgz)"
    layout: ClassVar[str] = (
        "dataset_purchase (label, then 600 features a line); or purchase100.npz with features, labels"
    )
    places: ClassVar[tuple[str, ...]] = ("purchase",)
    features: ClassVar[int] = 600
    classes: ClassVar[int] = 100
    text: ClassVar[str] = "dataset_purchase"  # the file as it is published: the label, then the features, line by line
    archives: ClassVar[tuple[str, ...]] = ("dataset_purchase.tgz",)  # in which it is published, alone

    def read(self, folder: Path) -> Examples:
        packed = self.find(folder, f"{self.name}.npz")
        if packed is not None:
            x, y = read_packed(packed)
        else:
            x, y = self.read_text(folder)
        if x.shape[1:] != (self.features,) or len(x) != len(y):
            raise InvalidInput(
                f"{self.name}: features {x.shape} and {len(y)} labels; (n, {self.features}) and n are due"
            )
        return Examples(x=torch.from_numpy(x).to(torch.float32), y=integers(y), classes=self.classes, name=self.name)

    def read_text(self, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        path = self.need(folder, self.text, *self.archives, f"{self.name}.npz")
        heads, x = read_bits(path, self.features)
        return x, np.array([int(head.strip(b'"')) for head in heads]) - 1


@dataclass(frozen=True)
class Location30(Purchase100):
    """5,010 people, which of 446 places and kinds of place each visited; the classes are 30 clusters of people."""

    name: ClassVar[str] = "location30"
    about: ClassVar[str] = "5,010 people, 446 binary features, 30 classes"
    published_at: ClassVar[str] = "https://github.com/privacytrustlab/datasets (dataset_location.tgz)"
    layout: ClassVar[str] = (
        "bangkok (label, then 446 features a line), or its archive; or location30.npz with features, labels"
    )
    places: ClassVar[tuple[str, ...]] = ("location",)
    features: ClassVar[int] = 446
    classes: ClassVar[int] = 30
    text: ClassVar[str] = "bangkok"
    archives: ClassVar[tuple[str, ...]] = ("location30.tgz", "dataset_location.tgz")


@dataclass(frozen=True)
class Texas100(Purchase100):
    """67,330 hospital stays with 6,169 features; the classes are the 100 commonest procedures. Takes 1.7 GB."""

    name: ClassVar[str] = "texas100"
    about: ClassVar[str] = "67,330 hospital stays, 6,169 binary features, 100 classes"
    published_at: ClassVar[str] = "https://github.com/privacytrustlab/datasets (dataset_texas.tgz)"
    layout: ClassVar[str] = "texas/100/{feats,labels}; or texas100.npz with features, labels"
    places: ClassVar[tuple[str, ...]] = ("texas/100", "100", "texas")
    features: ClassVar[int] = 6169
    archives: ClassVar[tuple[str, ...]] = ()

    def read_text(self, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        x = read_bits(self.need(folder, "feats", f"{self.name}.npz"), self.features)[1]
        labels = self.need(folder, "labels").read_text().split()
        return x, np.array([int(label) for label in labels]) - 1


def read_packed(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Labels are one-hot there; plain ones are taken too."""
    arrays = read_npz(path, PUBLISHED)
    x, y = arrays["features"], arrays["labels"]
    return x.astype(np.uint8), (y.argmax(1) if y.ndim == 2 else y.astype(np.int64))


def read_bits(path: Path, columns: int) -> tuple[list[bytes], NDArray[np.uint8]]:
    """Lines that end in ``columns`` zeros and ones between commas; what stands before them is the head.

    The last 2 x columns bytes of a line have the same shape in every line, so they are cut out of the file as an
    array: a parser of numbers would take minutes for Texas100.
    """
    raw = np.frombuffer(_text(path).rstrip() + b"\n", np.uint8)
    raw = raw[raw != ord("\r")] if ord("\r") in raw[: 8 * columns] else raw
    ends = np.flatnonzero(raw == NEWLINE)
    starts = np.r_[0, ends[:-1] + 1]
    width = 2 * columns - 1
    short = np.flatnonzero(ends - starts < width)
    if len(short):
        raise InvalidInput(f"{path}, line {short[0] + 1} is shorter than {columns} features")
    x = np.empty((len(ends), columns), np.uint8)
    for first in range(0, len(ends), 4096):
        part = slice(first, first + 4096)
        tail = raw[(ends[part, None] - width) + np.arange(width)]
        x[part] = tail[:, ::2] - ZERO
        wrong = (x[part] > 1).any(1) | (tail[:, 1::2] != COMMA).any(1)
        if wrong.any():
            raise InvalidInput(f"{path}, line {first + int(wrong.argmax()) + 1} is not {columns} zeros and ones")
    heads = [raw[start : end - width].tobytes().rstrip(b", ") for start, end in zip(starts, ends, strict=True)]
    return heads, x


def _text(path: Path) -> bytes:
    """The file's, or that of the only file in an archive."""
    if path.suffix != ".tgz":
        return path.read_bytes()
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile()]
            if len(members) != 1:
                raise InvalidInput(f"{path} holds {len(members)} files; unpack the one with the features")
            require_room(path, path.stat().st_size, members[0].size, "unpack it", PUBLISHED)
            file = archive.extractfile(members[0])
            assert file is not None
            return file.read()
    except tarfile.TarError as error:
        raise InvalidInput(f"{path} cannot be read as an archive ({error}); fetch it again") from error
