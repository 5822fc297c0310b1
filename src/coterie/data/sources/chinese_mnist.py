"""Chinese MNIST: handwritten Chinese numerals, as Kaggle has them or in one npz."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import Source, integers, pixels
from coterie.data.sources.pictures import read_pictures
from coterie.errors import InvalidInput, require
from coterie.files import PUBLISHED, read_npz

CHARACTERS = tuple("零一二三四五六七八九十百千万亿")


@dataclass(frozen=True)
class ChineseMnist(Source):
    """15,000 numerals 64x64 by 100 writers (tag ``writer``), 15 classes; or the ten digits alone.

    Stands in for paper 004's CMNIST, which is not public. ``size`` scales the pictures (the paper uses 32).
    """

    digits_only: bool = False
    size: int = 64

    name: ClassVar[str] = "chinese_mnist"
    about: ClassVar[str] = "15,000 handwritten Chinese numerals by 100 writers, 64x64"
    published_at: ClassVar[str] = "https://www.kaggle.com/datasets/gpreda/chinese-mnist"
    layout: ClassVar[str] = (
        "chinese_mnist.csv and data/input_{suite}_{sample}_{code}.jpg; "
        "or chinese_mnist_64.npz with images, label, writer"
    )
    places: ClassVar[tuple[str, ...]] = ("chinese-mnist",)

    def __post_init__(self) -> None:
        require(4 <= self.size <= 64, "size", self.size, "must be 4 to 64")

    def read(self, folder: Path) -> Examples:
        packed = self.find(folder, "chinese_mnist*.npz")
        images, labels, writers = self.from_npz(packed) if packed else self.from_pictures(folder)
        if not len(images) == len(labels) == len(writers):
            raise InvalidInput(f"{self.name}: {len(images)} images, {len(labels)} labels, {len(writers)} writers")
        kept = np.flatnonzero(labels < 10) if self.digits_only else np.arange(len(labels))
        classes = 10 if self.digits_only else len(CHARACTERS)
        return Examples(
            x=pixels(images[kept]),
            y=integers(labels[kept]),
            classes=classes,
            name=self.name,
            tags={"writer": integers(writers[kept])},
            label_names=CHARACTERS[:classes],
        )

    def from_npz(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        arrays = read_npz(path, PUBLISHED)
        return self.scaled(arrays["images"]), arrays["label"].astype(np.int64), arrays["writer"].astype(np.int64)

    def scaled(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if images.shape[1:] == (self.size, self.size):
            return images
        from PIL import Image

        target = (self.size, self.size)
        return np.stack([np.asarray(Image.fromarray(one).resize(target, Image.Resampling.BILINEAR)) for one in images])

    def from_pictures(self, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        listing = self.need(folder, "chinese_mnist.csv", "chinese_mnist*.npz")
        with listing.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        keys = ("suite_id", "sample_id", "code")
        if not rows or any(key not in rows[0] for key in keys):
            raise InvalidInput(
                f"{listing} must have the columns {', '.join(keys)}; it has {list(rows[0]) if rows else []}"
            )
        numbers = np.array([[int(row[key]) for key in keys] for row in rows])
        name = "input_{}_{}_{}.jpg".format(*numbers[0])
        found = self.need(listing.parent, f"data/data/{name}", f"data/{name}", name)
        paths = [found.parent / "input_{}_{}_{}.jpg".format(*row) for row in numbers]
        return read_pictures(paths, (self.size, self.size), grey=True), numbers[:, 2] - 1, numbers[:, 0]
