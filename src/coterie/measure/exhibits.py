"""What stands beside the scores for people to look at: charts, pictures, and what attacks suspect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """Lines or points over two axes."""

    title: str
    caption: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: str = "line"  # or "scatter", or "radar"
    reference: tuple[str, float] | None = None  # a horizontal line, such as chance
    family: str = ""
    spokes: Sequence[str] = ()  # of a radar: what its values are of, each in 0..1


@dataclass(frozen=True)
class Gallery:
    """Pictures in rows: what was private beside what the attack made of it."""

    title: str
    caption: str
    rows: Sequence[tuple[str, Sequence[str]]]  # heading, PNG files in base64
    family: str = ""


@dataclass(frozen=True)
class Suspected:
    """What an attack on a recording takes to be so, question by question, whether or not anybody can score it."""

    family: str
    attack: str
    adversary: str
    question: str  # "client", "round and cluster"
    answer: str  # "classes, likeliest first"
    answers: Sequence[tuple[str, str]]
