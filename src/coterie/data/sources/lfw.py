"""Labeled Faces in the Wild, with the attributes of Kumar et al."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Examples
from coterie.data.sources.base import Source, describe, integers, numbered, pixels
from coterie.data.sources.pictures import read_pictures
from coterie.errors import InvalidInput, nearest, require

RACES = ("Asian", "White", "Black")
CENTRE = (78, 70, 172, 195)  # of 250x250; at half size this is the 62x47 that papers use


@dataclass(frozen=True)
class Lfw(Source):
    """13,143 faces with 73 attributes (paper 000). An attribute counts as present where its score is positive.

    ``label`` is an attribute as the file spells it ("Smiling", "Male", "Sunglasses", ...), or "Race": the highest
    score of Asian, White and Black (the paper's tasks A to C). All attributes and ``identity`` are tags.
    """

    label: str = "Smiling"
    rows: int = 62
    columns: int = 47
    limit: int | None = None

    name: ClassVar[str] = "lfw"
    about: ClassVar[str] = "13,143 faces with 73 attributes, scaled to 62x47"
    published_at: ClassVar[str] = (
        "http://vis-www.cs.umass.edu/lfw and https://www.cs.columbia.edu/CAVE/databases/pubfig"
    )
    layout: ClassVar[str] = "lfw_attributes.txt and {lfw,lfw_funneled,lfw-deepfunneled}/Some_Name/Some_Name_0001.jpg"

    def read(self, folder: Path) -> Examples:
        listing = self.need(folder, "lfw_attributes.txt")
        people, numbers, names, scores = read_attributes(listing)
        home = self.find(folder, "lfw-deepfunneled", "lfw_funneled", "lfw") or listing.parent
        paths = [home / person / f"{person}_{number:04d}.jpg" for person, number in zip(people, numbers, strict=True)]
        there = np.array([path.is_file() for path in paths])
        if not there.any():
            raise self.missing(home, (str(paths[0].relative_to(home)),))
        chosen = np.flatnonzero(there)[: self.limit]
        tags = {name: integers(scores[chosen, column] > 0) for column, name in enumerate(names)}
        y, label_names = self.labels(names, scores[chosen], tags)
        tags["identity"] = numbered(people[row] for row in chosen)[0]
        return Examples(
            x=pixels(read_pictures([paths[row] for row in chosen], (self.rows, self.columns), CENTRE)),
            y=y,
            classes=len(label_names),
            name=self.name,
            tags=tags,
            label_names=label_names,
        )

    def labels(
        self, names: tuple[str, ...], scores: NDArray[np.float64], tags: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[str, ...]]:
        if self.label == "Race":
            for race in RACES:
                require(race in names, "attribute", race, nearest(race, names))
            return torch.from_numpy(scores[:, [names.index(race) for race in RACES]].argmax(1)), RACES
        require(self.label in tags, "label", self.label, nearest(self.label, [*names, "Race"]))
        return tags[self.label], (f"not {self.label}", self.label)

    def probe(self, folder: Path | str | None) -> str:
        return describe(Lfw(label=self.label, limit=32).load(folder)) + " (the first pictures)"


def read_attributes(path: Path) -> tuple[list[str], list[int], tuple[str, ...], NDArray[np.float64]]:
    """People (with underscores), numbers of their pictures, attribute names, scores (pictures, attributes).

    A comment line, then ``#<tab>person<tab>imagenum<tab>...``, then a line a picture.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    head = next((line for line in lines[:5] if "imagenum" in line), None)
    if head is None:
        raise InvalidInput(f"{path} has no line with person and imagenum among its first; it is not the attribute list")
    names = tuple(head.lstrip("#\t ").split("\t")[2:])
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names) + 2:
            raise InvalidInput(f"{path}, picture {number} has {len(row)} columns; {len(names) + 2} are due")
    people = [row[0].strip().replace(" ", "_") for row in rows]
    return people, [int(row[1]) for row in rows], names, np.array([row[2:] for row in rows], float)
