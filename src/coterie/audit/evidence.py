"""What one run under one defence with one seed showed, as plain values that a job can hand back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scored:
    """What one attack scored in one run."""

    attack: str
    adversary: str
    measure: str
    score: float
    chance: float
    perfect: float = 1.0
    knew: str = ""
    control: bool = False
    suspicions: tuple[Sequence[float], Sequence[bool]] | None = None  # scores and answers, for a ROC curve
    interval: tuple[float, float] | None = None  # over what was observed, where there is one run only
    by_round: Sequence[tuple[int, float]] = ()  # what it scored by this round


@dataclass(frozen=True)
class Claimed:
    """What a defence promised for what was really run, and the lower bound that was measured."""

    text: str
    epsilon: float
    delta: float
    level: str
    trust: str
    outcome: str
    evidence: Sequence[str]
    lower_bound: float | None = None
    proven: bool = True  # else the epsilon is stated by somebody and follows from nothing


@dataclass(frozen=True)
class Evidence:
    """Everything that one run under one defence with one seed showed."""

    scored: Sequence[Scored]
    utility_measure: str
    utility: float
    seconds: float  # a round, or the run where there are no rounds
    upload_bytes: float  # a client and round
    memory_bytes: float
    claim: Claimed | None = None
    history: Sequence[tuple[int, float]] = ()  # round and utility
    charts: Sequence[dict[str, Any]] = ()  # as result.Chart; the first seed's are shown
    pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)  # "private" and "rebuilt": PNG files in base64
    suspected: Sequence[dict[str, Any]] = ()  # as result.Suspected

    @staticmethod
    def of_recording(scored: Sequence[Scored], **more: Any) -> Evidence:
        """What was written down says neither how useful the models were nor what they cost."""
        return Evidence(scored, "accuracy", math.nan, math.nan, math.nan, math.nan, **more)

    def plain(self) -> dict[str, Any]:
        return asdict(self)
