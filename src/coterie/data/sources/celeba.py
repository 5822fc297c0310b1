"""CelebA: its published pictures and lists, or an npz of small pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Examples
from coterie.data.sources.base import SPLIT, TEST, TRAIN, Source, describe, integers, pixels
from coterie.data.sources.pictures import read_pictures
from coterie.errors import InvalidInput, nearest, require
from coterie.files import PUBLISHED, read_npz

SQUARE = (0, 20, 178, 198)  # the face, without a strip above and below


@dataclass(frozen=True)
class Celeba(Source):
    """Faces of celebrities with 40 attributes. ``label`` is one of them; all of them and ``identity`` are tags.

    The published pictures are cut to a square and scaled to ``size`` (all 202,599 at 48 take 5.6 GB: set
    ``limit``). Where the list of the published split lies there too, its test part becomes the test part.
    """

    label: str = "Smiling"
    size: int = 48
    limit: int | None = None

    name: ClassVar[str] = "celeba"
    about: ClassVar[str] = "faces with 40 attributes and identities"
    published_at: ClassVar[str] = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (aligned and cropped)"
    layout: ClassVar[str] = (
        "img_align_celeba/000001.jpg, list_attr_celeba.txt, identity_CelebA.txt[, list_eval_partition.txt]; "
        "or celeba_*.npz with images, identity, attributes, attribute_names"
    )

    def read(self, folder: Path) -> Examples:
        packed = self.find(folder, "celeba_*.npz", "celeba.npz")
        listing = self.find(folder, "list_attr_celeba.txt")
        if listing is None and packed is not None:
            return self.from_npz(packed)
        return self.from_pictures(folder, self.need(folder, "list_attr_celeba.txt", "celeba_*.npz"))

    def from_npz(self, path: Path) -> Examples:
        arrays = read_npz(path, PUBLISHED)
        names = tuple(map(str, arrays["attribute_names"]))
        has = arrays["attributes"][: self.limit].astype(bool)
        tags = {"identity": integers(arrays["identity"][: self.limit])}
        images = arrays["images"][: self.limit]
        if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
            raise InvalidInput(f"{path}: images {images.dtype} {images.shape} must be uint8 (n, rows, columns, 3)")
        return self.examples(images, names, has, tags)

    def from_pictures(self, folder: Path, listing: Path) -> Examples:
        files, names, has = read_attribute_list(listing)
        files, has = files[: self.limit], has[: self.limit]
        home = self.need(folder, "img_align_celeba")
        inner = home / "img_align_celeba"  # unpacking the archive into a folder of its name nests it
        home = inner if inner.is_dir() else home
        if not (home / files[0]).is_file():
            raise self.missing(home, (files[0],))
        tags = {"identity": self.column(self.need(folder, "identity_CelebA.txt"), files)}
        split = self.find(folder, "list_eval_partition.txt")
        if split is not None:
            tags[SPLIT] = torch.where(self.column(split, files) == 2, TEST, TRAIN)
        images = read_pictures([home / file for file in files], (self.size, self.size), SQUARE)
        return self.examples(images, names, has, tags)

    def column(self, path: Path, files: list[str]) -> Tensor:
        """``file number`` lines as one number a file."""
        values = dict(line.split()[:2] for line in path.read_text().splitlines() if line.strip())
        absent = next((file for file in files if file not in values), None)
        if absent is not None:
            raise InvalidInput(f"{path} says nothing about {absent}; it is cut short or from another version")
        return torch.tensor([int(values[file]) for file in files])

    def examples(
        self, images: NDArray[np.uint8], names: tuple[str, ...], has: NDArray[np.bool_], tags: dict[str, Tensor]
    ) -> Examples:
        require(self.label in names, "label", self.label, nearest(self.label, names))
        tags = {name: integers(has[:, column]) for column, name in enumerate(names)} | tags
        return Examples(
            x=pixels(images),
            y=tags[self.label],
            classes=2,
            name=self.name,
            tags=tags,
            label_names=(f"not {self.label}", self.label),
        )

    def probe(self, folder: Path | str | None) -> str:
        return describe(replace(self, limit=32).load(folder)) + " (the first pictures)"


def read_attribute_list(path: Path) -> tuple[list[str], tuple[str, ...], NDArray[np.bool_]]:
    """A line with the number of pictures, one with the names, then ``file 1 -1 ...`` lines."""
    lines = path.read_text().splitlines()
    names = tuple(lines[1].split()) if len(lines) > 2 else ()
    rows = [line.split() for line in lines[2:] if line.strip()]
    if not rows or not names:
        raise InvalidInput(f"{path} lists no pictures; it should begin with their number and the attributes' names")
    if int(lines[0]) != len(rows):
        raise InvalidInput(f"{path} announces {lines[0].strip()} pictures and lists {len(rows)}; it is cut short")
    wrong = next((row for row in rows if len(row) != len(names) + 1), None)
    if wrong is not None:
        raise InvalidInput(f"{path}: {wrong[0]} has {len(wrong) - 1} attributes; {len(names)} are due")
    return [row[0] for row in rows], names, np.array([row[1:] for row in rows]) == "1"
