"""MNIST and Fashion-MNIST in the IDX format, compressed or plain."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import SPLIT, Source, integers, official, pixels
from coterie.errors import InvalidInput

UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, the type, the number of axes, big-endian lengths, the values."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE:
        raise InvalidInput(f"{path} starts with {raw[:4].hex()}; an IDX file of bytes starts with 000008")
    axes = raw[3]
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", axes, 4))
    start, expected = 4 + 4 * axes, int(np.prod(shape))
    if len(raw) - start != expected:
        raise InvalidInput(
            f"{path} holds {len(raw) - start} values; its header says {shape}: it is cut short or foreign"
        )
    return np.frombuffer(raw, np.uint8, expected, start).reshape(shape)


@dataclass(frozen=True)
class Mnist(Source):
    """60,000 and 10,000 handwritten digits, 28x28."""

    name: ClassVar[str] = "mnist"
    about: ClassVar[str] = "70,000 handwritten digits, 28x28"
    published_at: ClassVar[str] = "http://yann.lecun.com/exdb/mnist"
    layout: ClassVar[str] = "{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]"
    places: ClassVar[tuple[str, ...]] = ("MNIST/raw",)
    label_names: ClassVar[tuple[str, ...]] = tuple("0123456789")

    def read(self, folder: Path) -> Examples:
        images, labels = [], []
        for part in ("train", "t10k"):
            images.append(self._idx(folder, f"{part}-images", 3))
            labels.append(self._idx(folder, f"{part}-labels", 1))
            if len(images[-1]) != len(labels[-1]):
                raise InvalidInput(
                    f"{self.name}: {len(images[-1])} {part} images but {len(labels[-1])} labels; "
                    "the files do not belong together"
                )
        return Examples(
            x=pixels(*images),
            y=integers(np.concatenate(labels)),
            classes=10,
            name=self.name,
            tags={SPLIT: official(len(images[0]), len(images[1]))},
            label_names=self.label_names,
        )

    def searched(self, folder: Path) -> Sequence[Path]:
        # MNIST and Fashion-MNIST have the same file names: loose files count where the folder says which.
        loose = "fashion" in folder.resolve().name.lower()
        places = super().searched(folder)
        return places if loose == self.name.startswith("fashion") else places[:-1]

    def _idx(self, folder: Path, stem: str, axes: int) -> NDArray[np.uint8]:
        name = f"{stem}-idx{axes}-ubyte"
        path = self.need(folder, f"{name}.gz", name, name.replace("-idx", ".idx"))
        values = read_idx(path)
        if values.ndim != axes:
            raise InvalidInput(f"{path} has {values.ndim} axes; {axes} are due")
        return values


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """60,000 and 10,000 pictures of clothes, 28x28."""

    name: ClassVar[str] = "fashion_mnist"
    about: ClassVar[str] = "70,000 pictures of clothes, 28x28"
    published_at: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist"
    places: ClassVar[tuple[str, ...]] = ("fashion-mnist", "FashionMNIST/raw")
    label_names: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
