"""What an audit found, as plain values: the report, the terminal, JSON and the gate all read this and nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from coterie.measure.claims import Outcome


@dataclass(frozen=True)
class Measured:
    """A mean over seeds with its 95 % interval; NaN bounds where there was one seed only."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.low) else f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Leak:
    """One attack by one adversary under one defence."""

    family: str  # "property inference"
    attack: str  # "passive"
    adversary: str  # "curious client"
    defence: str  # "none", "DP-SGD (sigma 1.0)"
    measure: str  # "AUC", "accuracy", "cosine"
    score: Measured
    chance: float
    perfect: float  # what a complete leak would score
    seeds: int
    knew: str  # what the adversary had to know
    sentence: str  # the finding in plain words
    control: bool = False  # a control, in which there is nothing to find
    roc: tuple[Sequence[float], Sequence[float]] | None = None  # false and true positive rates

    @property
    def leakage(self) -> float:
        """0 for chance, 1 for a complete leak; what colours the table."""
        if math.isnan(self.score.value):
            return math.nan
        return min(1.0, max(0.0, (self.score.value - self.chance) / (self.perfect - self.chance)))

    @property
    def verdict(self) -> str:
        """By the interval: a score that chance could have given is no leak."""
        if math.isnan(self.score.value):
            return "not measured"
        if math.isnan(self.score.low):
            return "one seed only"
        if self.score.low > self.chance:
            return "leaks"
        return "below chance" if self.score.high < self.chance else "no leak found"


@dataclass(frozen=True)
class ClaimVerdict:
    """What a defence claims, what was measured against it, and what became of it."""

    claim: str
    epsilon: float  # math.inf: no formal claim
    delta: float
    level: str
    trust: str
    lower_bound: float | None  # on epsilon, with 95 % confidence; None: not audited
    outcome: Outcome
    evidence: Sequence[str]
    proven: bool = True  # else the epsilon is stated by somebody and follows from nothing


@dataclass(frozen=True)
class Defended:
    """What one defence costs in one family, and what it promises."""

    family: str
    defence: str
    utility_measure: str  # "accuracy", "k-means cost"
    utility: Measured
    seconds: float  # a round, or a run where there are no rounds
    upload_bytes: float  # a client and round
    memory_bytes: float  # peak
    claim: ClaimVerdict | None = None


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
    kind: str = "line"  # or "scatter"
    reference: tuple[str, float] | None = None  # a horizontal line, such as chance
    family: str = ""


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


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of a defence: how much leaks, how useful it stays, what it costs."""

    defence: str
    strength: float
    leakage: Measured
    utility: Measured
    seconds: float
    dominated: bool = False
    recommended: bool = False
    setting: str = ""  # the defence with all its options
    note: str = ""  # the option that is swept, and its value


@dataclass(frozen=True)
class Frontier:
    title: str
    leakage_measure: str
    utility_measure: str
    chance: float
    points: Sequence[FrontierPoint]
    recommendation: str
    family: str = ""
    higher_is_better: bool = True  # of the utility


@dataclass(frozen=True)
class Check:
    """One limit of the gate."""

    limit: str  # "max_property_auc = 0.6"
    value: float
    passed: bool
    reason: str


@dataclass(frozen=True)
class Method:
    """How a family's numbers came about: for the report's last part."""

    family: str
    paper: str
    question: str
    threat: str
    method: str


@dataclass(frozen=True)
class AuditResult:
    title: str
    subject: Mapping[str, str]  # what was audited, in words
    leaks: Sequence[Leak]
    defended: Sequence[Defended]
    charts: Sequence[Chart] = ()
    galleries: Sequence[Gallery] = ()
    suspected: Sequence[Suspected] = ()
    frontiers: Sequence[Frontier] = ()
    checks: Sequence[Check] = ()
    methods: Sequence[Method] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # families, and defences, that were not run, and why
    warned: Mapping[str, str] = field(default_factory=dict)  # what was warned of on the way, by what it concerns
    reproduce: Mapping[str, str] = field(default_factory=dict)  # command, seed, versions, duration, created
    recorded: bool = False  # attacked as it was written down, not trained here

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def headline(self) -> str:
        """The verdict in a few sentences."""
        parts = [self._leaking()]
        fooled = list(dict.fromkeys(leak.family for leak in self.leaks if leak.control and leak.verdict == "leaks"))
        if fooled:
            parts.append(f"A control finds what is not there ({', '.join(fooled)}): those scores prove nothing.")
        violated = [row for row in self.defended if row.claim and row.claim.outcome is Outcome.VIOLATED]
        if violated:
            verb = "is" if len(violated) == 1 else "are"
            parts.append(f"{counted(len(violated), 'claim')} of privacy {verb} violated by measurement.")
        failed = sum(not check.passed for check in self.checks)
        if failed:
            verb = "is" if failed == 1 else "are"
            parts.append(f"{failed} of {counted(len(self.checks), 'limit')} {verb} broken.")
        elif self.checks:
            parts.append("All limits are met.")
        return " ".join(parts)

    def _leaking(self) -> str:
        where = "As recorded" if self.recorded else "Undefended"
        looked = [leak for leak in self.leaks if not leak.control and (self.recorded or leak.defence == "none")]
        if looked and all(math.isnan(leak.score.value) for leak in looked):
            return "There was no truth to score by: what the attacks suspect is reported, not how right they are."
        families = list(dict.fromkeys(leak.family for leak in looked if leak.verdict == "leaks"))
        if not families:
            return f"{where}, no attack found a leak."
        kinds = counted(len(families), "kind")
        return f"{where}, this federation leaks to {kinds} of attack ({', '.join(families)})."

    def to_json(self) -> str:
        """Strict JSON: NaN and infinity become null and a string."""
        return json.dumps(_plain(dataclasses.asdict(self)), indent=2)


def counted(number: int, thing: str) -> str:
    """ "1 claim", "2 claims"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
