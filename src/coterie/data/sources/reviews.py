"""Reviews with author and score: Yelp's, and those of four film critics."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from coterie.data.federation import Examples
from coterie.data.sources.base import Source
from coterie.data.sources.text import Vocabulary, tokens
from coterie.errors import InvalidInput, nearest, require

Fields = dict[str, Any]

COUNTED = (
    "the vocabulary, whose words and their numbers follow from all texts ([data] kind = 'arrays' with tokens = true "
    "takes texts that are numbered by a public one)"
)


class Review(NamedTuple):
    author: str
    score: int  # a class, from 0
    text: str


@dataclass(frozen=True)
class Reviews(Source):
    """The label is the score; the tag ``author`` numbers the authors, 0 being the busiest.

    ``authors`` keeps only the busiest so many (Yelp-author of paper 000: ten). Each text is its first ``length``
    tokens; the vocabulary is built from those of all texts kept, so nothing can be claimed of a single one.
    """

    authors: int | None = None
    length: int = 100
    vocabulary: int = 10_000
    limit: int | None = None

    def __post_init__(self) -> None:
        require(self.authors is None or self.authors >= 1, "authors", self.authors, "must be at least 1, or None")
        require(self.length >= 1, "length", self.length, "must be at least 1")

    @abstractmethod
    def reviews(self, folder: Path) -> Iterable[Review]: ...

    @property
    @abstractmethod
    def score_names(self) -> tuple[str, ...]: ...

    def read(self, folder: Path) -> Examples:
        # The busiest of millions are found in a first pass, so that only their texts need memory in a second.
        everyone = list(self.limited(folder)) if self.authors is None else None
        counts = Counter(review.author for review in everyone or self.limited(folder))
        if not counts:
            raise InvalidInput(
                f"{self.name}: no review in the file; replace it by a fresh copy from {self.published_at}"
            )
        ranked = [author for author, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))]
        rank = {author: place for place, author in enumerate(ranked[: self.authors])}
        kept = [review for review in everyone or self.limited(folder) if review.author in rank]
        words = [tokens(review.text, self.length) for review in kept]
        vocabulary = Vocabulary.of(words, self.vocabulary)
        return Examples(
            x=vocabulary.encode(words, self.length),
            y=torch.tensor([review.score for review in kept]),
            classes=len(self.score_names),
            name=self.name,
            tags={"author": torch.tensor([rank[review.author] for review in kept])},
            label_names=self.score_names,
            vocabulary=vocabulary.words,
            elsewhere=COUNTED,
        )

    def limited(self, folder: Path) -> Iterator[Review]:
        for number, review in enumerate(self.reviews(folder)):
            if number == self.limit:
                return
            yield review


@dataclass(frozen=True)
class Yelp(Reviews):
    """Yelp reviews with stars, from the academic data set's JSON lines or from a CSV with the same columns."""

    name: ClassVar[str] = "yelp"
    about: ClassVar[str] = "reviews with user and stars"
    published_at: ClassVar[str] = "https://business.yelp.com/data/resources/open-dataset"
    layout: ClassVar[str] = (
        "yelp_academic_dataset_review.json (user_id, stars, text), or a CSV with these columns: "
        "yelp.csv or yelp_*.csv[.zip]"
    )

    @property
    def score_names(self) -> tuple[str, ...]:
        return tuple(f"{stars} stars" for stars in range(1, 6))

    def reviews(self, folder: Path) -> Iterator[Review]:
        path = self.need(
            folder,
            "yelp_academic_dataset_review.json",
            "yelp_academic_dataset_review.json.gz",
            "yelp.csv",
            "yelp*.csv*",
        )
        rows: Iterator[Fields] = json_lines(path) if ".json" in path.name else csv_rows(path)
        for number, row in enumerate(rows, 1):
            absent = [key for key in ("user_id", "stars", "text") if row.get(key) is None]
            if absent:
                raise InvalidInput(f"{path}, review {number} has no {', '.join(absent)}; it has {list(row)}")
            stars = float(row["stars"])
            if stars not in (1, 2, 3, 4, 5):
                raise InvalidInput(f"{path}, review {number}: stars={row['stars']!r} must be 1 to 5")
            yield Review(str(row["user_id"]), int(stars) - 1, str(row["text"]))


@dataclass(frozen=True)
class Critics(Reviews):
    """5,006 film reviews by four critics (Pang and Lee's scale data), scored in three or four classes."""

    score_classes: int = 4

    name: ClassVar[str] = "critics"
    about: ClassVar[str] = "5,006 film reviews by four critics"
    published_at: ClassVar[str] = "https://www.cs.cornell.edu/people/pabo/movie-review-data (scale data)"
    layout: ClassVar[str] = (
        "scaledata/{critic}/{subj,label.3class,label.4class}.{critic}; "
        "or movie_reviews_4authors.jsonl[.gz] with author, label3, label4, text"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.score_classes in (3, 4), "score_classes", self.score_classes, "must be 3 or 4")

    @property
    def score_names(self) -> tuple[str, ...]:
        return tuple(f"score {score}" for score in range(self.score_classes))

    def reviews(self, folder: Path) -> Iterator[Review]:
        home = self.find(folder, "scaledata", "scale_data/scaledata")
        return self.from_folder(home) if home is not None else self.from_lines(folder)

    def from_lines(self, folder: Path) -> Iterator[Review]:
        path = self.need(folder, "movie_reviews_4authors.jsonl*", "scaledata")
        key = f"label{self.score_classes}"
        for number, row in enumerate(json_lines(path), 1):
            for name in ("author", key, "text"):
                require(name in row, f"{path.name}, review {number}: field", name, nearest(name, row))
            yield Review(str(row["author"]), int(row[key]), str(row["text"]))

    def from_folder(self, home: Path) -> Iterator[Review]:
        for folder in sorted(path for path in home.iterdir() if path.is_dir()):
            critic = folder.name
            texts = (folder / f"subj.{critic}").read_text(encoding="latin-1").splitlines()
            scores = (folder / f"label.{self.score_classes}class.{critic}").read_text().split()
            if len(texts) != len(scores):
                raise InvalidInput(f"{folder} has {len(texts)} texts and {len(scores)} scores; it is cut short")
            yield from (Review(critic, int(score), text) for score, text in zip(scores, texts, strict=True))


def json_lines(path: Path) -> Iterator[Fields]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def csv_rows(path: Path) -> Iterator[Fields]:
    """The rows of a CSV, which may be the first file in a zip."""
    if path.suffix != ".zip":
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
        return
    with zipfile.ZipFile(path) as packed:
        inside = next((name for name in packed.namelist() if name.endswith(".csv")), None)
        if inside is None:
            raise InvalidInput(f"{path} holds {packed.namelist()}; a CSV file is due")
        with packed.open(inside) as raw:
            yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
