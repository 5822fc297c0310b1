"""The task combinations of paper 000 (its Table 2) on the data that there are.

Faces come from LFW in its published form where it is found, else from CelebA, else they are drawn; reviews from a Yelp
file whose busiest author has enough of them, else from the four critics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch.nn.functional import interpolate

from coterie.data.federation import Examples
from coterie.data.sources.base import Readiness, Source
from coterie.data.sources.celeba import Celeba
from coterie.data.sources.faces import Faces
from coterie.data.sources.lfw import Lfw
from coterie.data.sources.reviews import Critics, Reviews, Yelp
from coterie.errors import InvalidInput
from coterie.learn.models.bundled import FaceCnn, Gru
from coterie.learn.models.model import Model
from coterie.rng import Rng

FACES, REVIEWS = "ABC", "DE"
LEAST_REVIEWS = 400  # by one author, for a federation to be made of them


@dataclass(frozen=True)
class Task:
    """Examples whose label is the main task, and the property that the adversary is after."""

    examples: Examples
    model: Model
    tag: str
    value: int
    words: str


@dataclass(frozen=True)
class Detail:
    """How much of the data's detail is kept: what a quick run saves on."""

    pixels: int | None  # a side; None: as published
    tokens: int = 100
    vocabulary: int = 10_000
    drawn: int = 4000  # faces, where there are no photographs


def task(letter: str, data: str | None, detail: Detail, rng: Rng) -> Task:
    return faces(letter, data, detail, rng) if letter in FACES else reviews(letter, data, detail)


def faces(letter: str, data: str | None, detail: Detail, rng: Rng) -> Task:
    if data is not None:
        return photographs(letter, data, detail.pixels)
    label, tag = {"A": ("smile", "sunglasses"), "B": ("hair", "sunglasses"), "C": ("male", "hat")}[letter]
    found = Faces(count=detail.drawn, label=label).make(rng.child("faces"))
    return _pictured(found, detail.pixels, tag, f"drawn faces: {label} / {tag}")


@lru_cache(maxsize=1)  # a process has many cells to run on the same
def photographs(letter: str, data: str, pixels: int | None) -> Task:
    if _ready(Lfw(), data):
        label, tag = {"A": ("Smiling", "Sunglasses"), "B": ("Race", "Sunglasses"), "C": ("Male", "Black")}[letter]
        return _pictured(Lfw(label=label).load(data), pixels, tag, f"LFW: {label} / {tag}")
    label, tag = {"A": ("Smiling", "Eyeglasses"), "B": ("hair", "Eyeglasses"), "C": ("Male", "Wearing_Hat")}[letter]
    found = by_hair(Celeba().load(data)) if label == "hair" else Celeba(label=label).load(data)
    return _pictured(found, pixels, tag, f"CelebA: {label} / {tag}")


def _pictured(found: Examples, pixels: int | None, tag: str, words: str) -> Task:
    x = found.x if pixels is None else interpolate(found.x, size=(pixels, pixels), mode="area")
    found = replace(found, x=x.sub(0.5).div_(0.25))  # centred, of about unit deviation
    channels, height, width = found.x.shape[1:]
    return Task(found, FaceCnn(found.classes, (channels, height, width)), tag, 1, words)


def by_hair(examples: Examples) -> Examples:
    """Black, blond or brown hair as the label; faces with none or several of them are left out."""
    colours = ("Black_Hair", "Blond_Hair", "Brown_Hair")
    has = torch.stack([examples.tags[colour] for colour in colours], 1)
    rows = (has.sum(1) == 1).nonzero().flatten()
    chosen = examples.take(rows)
    return replace(chosen, y=has[rows].argmax(1), classes=3, label_names=colours)


def reviews(letter: str, data: str | None, detail: Detail) -> Task:
    if data is None:
        raise InvalidInput("task D and E need reviews: pass the folder with data sets (--data)")
    source: Reviews = Yelp(authors=10, length=detail.tokens, vocabulary=detail.vocabulary)
    found = source.load(data) if _ready(source, data) else None
    if found is None or int((found.tags["author"] == 1).sum()) < LEAST_REVIEWS:
        found = Critics(length=detail.tokens, vocabulary=detail.vocabulary).load(data)
    author = {"D": 0, "E": 1}[letter]  # the busiest and the next
    model = Gru(found.classes, int(found.x.max()) + 1)
    return Task(found, model, "author", author, f"{found.name}: score / author {author + 1}")


def _ready(source: Source, data: str) -> bool:
    return source.state(data).readiness is Readiness.READY
