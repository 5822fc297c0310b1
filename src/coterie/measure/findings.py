"""What was found, as plain values: judges and audits make these, and the report, the terminal, JSON and the gate read
these and nothing else.

A score is a ``Finding`` from the run that it was measured in to the page that it is printed on, as what a defence
promised is a ``Promise``. ``measure.plain`` has their plain form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from coterie.errors import require
from coterie.measure.claims import Outcome, Promise
from coterie.measure.intervals import Interval, Sample, pooled
from coterie.measure.operating import OperatingPoint
from coterie.measure.plain import to_plain
from coterie.measure.roc import Curve
from coterie.measure.verdicts import SIZE, Decision, Verdict, decide

UNDEFENDED = "none"  # what the defence is called where there is none


@dataclass(frozen=True)
class Finding:
    """What one attack by one adversary scored under one defence, in one run or over the seeds of several.

    ``judge`` makes one a run, ``over_seeds`` one of several. Family, adversary and defence are filled in by whoever
    knows them.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("decision", "sentence")

    attack: str
    measure: str  # "AUC", "accuracy", "cosine"
    interval: Interval
    chance: float
    runs: Sequence[Sample]  # one a seed: what the interval rests on
    unit: str = "observations"  # what the runs' units are, in the plural
    knew: str = ""  # what the adversary had to know
    perfect: float = 1.0  # what a complete leak would score
    family: str = ""
    adversary: str = ""
    defence: str = UNDEFENDED
    control: bool = False  # in which there is nothing to find
    roc: Curve | None = None  # its area is the score
    by_round: Sequence[tuple[int, float]] = ()  # what it scored by this round
    operating: OperatingPoint | None = None
    stress: bool = False  # of another federation than the configured one

    @staticmethod
    def of(attack: str, measure: str, run: Sample, chance: float, unit: str, knew: str) -> Finding:
        """Of one run."""
        return Finding(attack, measure, pooled([run]), chance, (run,), unit, knew)

    @staticmethod
    def unscored(attack: str, measure: str, chance: float, knew: str) -> Finding:
        """Of an attack whose guess nobody can judge, because there is no truth to judge it by."""
        return Finding(attack, measure, Interval.unknown(math.nan), chance, (), knew=knew)

    @property
    def score(self) -> float:
        return self.interval.estimate

    @property
    def units(self) -> int:
        return sum(run.units for run in self.runs)

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def leakage(self) -> float:
        """0 for chance, 1 for a complete leak; what colours the table."""
        room = self.perfect - self.chance
        if room <= 0 or math.isnan(self.score):
            return math.nan
        return min(1.0, max(0.0, (self.score - self.chance) / room))

    @property
    def decision(self) -> Decision:
        return decide(self.interval, self.chance, self.perfect, self.units, self.seeds)

    @property
    def verdict(self) -> Verdict:
        return self.decision.verdict

    @property
    def sentence(self) -> str:
        """In plain words."""
        who = f"{self.attack} by {_a(self.adversary)}" if self.adversary else self.attack
        under = "without a defence" if self.defence == UNDEFENDED else f"under {self.defence}"
        if self.verdict is Verdict.NOT_SCORED:
            return f"{_capital(who)} was run {under} and not scored: there was nothing to score it by."
        what = f"{who} scores {_short(self.interval)} ({self.measure}; chance {self.chance:.3f}) {under}"
        if self.control:
            found = " It finds what is not there." if self.verdict is Verdict.LEAKS else ""
            return f"Control, in which there is nothing to find: {what}.{found}"
        said = "it leaks" if self.verdict is Verdict.LEAKS else self.decision.in_words(self.unit)
        turned = " It errs more often than a guess does: turned round, it may tell."
        return f"{_capital(what)}: {said}." + (turned if self.interval.high < self.chance else "")

    def __str__(self) -> str:
        return self.sentence + (f" {_capital(str(self.operating))}." if self.operating else "")


def over_seeds(findings: Sequence[Finding]) -> Finding:
    """One finding for several runs of the same attack: units pooled with seeds as clusters (``measure.intervals``)."""
    require(len(findings) > 0, "findings", 0, "must be at least one")
    first = findings[0]
    runs = tuple(run for one in findings for run in one.runs if not math.isnan(run.mean))
    weights = [max(one.units, 1) for one in findings]
    curves = [(one.roc, weight) for one, weight in zip(findings, weights, strict=True) if one.roc is not None]
    roc = Curve.average([curve for curve, _ in curves], [weight for _, weight in curves]) if curves else None
    known = [dict(one.by_round) for one in findings]
    rounds = [round for round in known[0] if all(round in one for one in known)]
    return replace(
        first,
        interval=pooled(runs),
        chance=float(np.average([one.chance for one in findings], weights=weights)),
        runs=runs or first.runs,
        roc=roc.thinned() if roc else None,
        by_round=tuple((round, float(np.mean([one[round] for one in known]))) for round in rounds),
        operating=OperatingPoint.mean([one.operating for one in findings if one.operating is not None]),
    )


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """The real attack that leaks most; None where none was scored."""
    real = [one for one in findings if not one.control and not math.isnan(one.leakage)]
    return max(real, key=lambda one: one.leakage, default=None)


@dataclass(frozen=True)
class Defended:
    """What one defence costs in one family, and what it promises."""

    family: str
    defence: str
    utility_measure: str  # "accuracy", "k-means cost"
    utility: Interval
    seconds: float  # a round, or a run where there are no rounds
    upload_bytes: float  # a client and round
    memory_bytes: float  # peak
    promise: Promise | None = None
    spent: float | None = None  # epsilon, by the run's own ledger; None: nothing was entered


@dataclass(frozen=True)
class LeftOut:
    """A family that was not run, or one that was not run under a defence, and why."""

    family: str
    reason: str
    defence: str = ""  # all of them, if empty

    def __str__(self) -> str:
        return f"{self.family} under {self.defence}" if self.defence else self.family


@dataclass(frozen=True)
class Limit:
    """What the user will not go beyond: ``max_property_auc = 0.6``, ``min_accuracy = 0.9``."""

    name: str
    bound: float
    at_least: bool = False  # else at most

    def __str__(self) -> str:
        return f"{self.name} = {self.bound:g}"

    def unsafe_end(self, measured: Interval) -> float:
        """The end of an interval that decides; the estimate where there are no ends."""
        if not measured.is_known:
            return measured.estimate
        return measured.low if self.at_least else measured.high

    def excess(self, value: float) -> float:
        """How far a value lies beyond the limit; not above zero if it keeps to it."""
        return self.bound - value if self.at_least else value - self.bound


@dataclass(frozen=True)
class Check:
    """One limit of the gate. It is met only if the whole interval meets it."""

    limit: Limit
    measured: Interval  # of whatever comes nearest to breaking it; unknown where nothing was measured
    passed: bool
    reason: str


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


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of a defence: how much leaks, how useful it stays, what it costs."""

    defence: str
    strength: float
    leakage: Interval
    utility: Interval
    seconds: float
    dominated: bool = False
    recommended: bool = False
    setting: str = ""  # the defence with all its options
    note: str = ""  # the option that is swept, and its value
    passes: bool | None = None  # the limits that this family can measure; None: there is none


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
class Method:
    """How a family's numbers came about: for the report's last part."""

    family: str
    paper: str
    question: str
    threat: str
    method: str
    differs: str = ""  # what it attacks in the place of the configured federation; empty: that one


@dataclass(frozen=True)
class AuditResult:
    DERIVED: ClassVar[tuple[str, ...]] = ("headline", "passed")

    title: str
    subject: Mapping[str, str]  # what was audited, in words
    findings: Sequence[Finding]
    defended: Sequence[Defended]
    as_configured: Sequence[Defended] = ()  # the federation as `coterie train` trains it, under each defence
    charts: Sequence[Chart] = ()
    galleries: Sequence[Gallery] = ()
    suspected: Sequence[Suspected] = ()
    frontiers: Sequence[Frontier] = ()
    checks: Sequence[Check] = ()
    methods: Sequence[Method] = ()
    left_out: Sequence[LeftOut] = ()
    warned: Mapping[str, str] = field(default_factory=dict)  # what was warned of on the way, by what it concerns
    reproduce: Mapping[str, str] = field(default_factory=dict)  # command, seed, versions, duration, created
    recorded: bool = False  # attacked as it was written down, not trained here

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def headline(self) -> str:
        """The verdict in a few sentences."""
        parts = self._verdicts()
        fooled = [one.family for one in self.findings if one.control and one.verdict is Verdict.LEAKS]
        if fooled:
            parts.append(
                f"A control finds what is not there ({', '.join(dict.fromkeys(fooled))}): those scores prove nothing."
            )
        violated = [row for row in self.defended if row.promise and row.promise.outcome is Outcome.VIOLATED]
        if violated:
            verb = "is" if len(violated) == 1 else "are"
            parts.append(f"{counted(len(violated), 'claim')} of privacy {verb} violated by measurement.")
        failed = sum(not check.passed for check in self.checks)
        if failed:
            verb = "is" if failed == 1 else "are"
            parts.append(f"{failed} of {counted(len(self.checks), 'limit')} {verb} broken.")
        elif self.checks:
            parts.append("All limits are met.")
        return " ".join([*parts, *self._omissions()])

    def _omissions(self) -> list[str]:
        """What was asked for and has no place here: counted, so that silence is not taken for safety."""
        places: dict[str, list[str]] = {}
        for one in self.left_out:
            if one.defence:
                places.setdefault(one.defence, []).append(one.family)
        count = sum(len(families) for families in places.values())
        said = "; ".join(f"{defence} in {', '.join(families)}" for defence, families in places.items())
        return [f"{counted(count, 'combination')} {'was' if count == 1 else 'were'} left out: {said}."] if count else []

    def _verdicts(self) -> list[str]:
        """A sentence for each verdict that some family has; its strongest word counts."""
        where = "As recorded" if self.recorded else "Undefended"
        looked = [one for one in self.findings if not one.control and (self.recorded or one.defence == UNDEFENDED)]
        if not looked:
            return ["No attack was run."]
        families: dict[Verdict, dict[str, Finding]] = {verdict: {} for verdict in Verdict}
        for family in dict.fromkeys(one.family for one in looked):
            finding = telling([one for one in looked if one.family == family])
            families[finding.verdict][family] = finding
        if len(families[Verdict.NOT_SCORED]) == sum(len(found) for found in families.values()):
            return ["There was no truth to score by: what the attacks suspect is reported, not how right they are."]
        parts = []
        if leaking := families[Verdict.LEAKS]:
            parts.append(f"{where}, this federation leaks to {_kinds(leaking)} ({', '.join(leaking)}).")
        if undecided := families[Verdict.UNDECIDED]:
            remedies = [f"{family}: {one.decision.remedy(one.unit)}" for family, one in undecided.items()]
            parts.append(f"{where}, it is undecided whether it leaks to {_kinds(undecided)} ({'; '.join(remedies)}).")
        if bounded := families[Verdict.BOUNDED]:
            learn = f"{_kinds(bounded)} learn{'s' if len(bounded) == 1 else ''}"
            parts.append(f"{where}, {learn} less than {SIZE:.0%} of a complete leak ({', '.join(bounded)}).")
        if silent := families[Verdict.NOT_SCORED]:
            parts.append(f"There was no truth to score {_kinds(silent)} by ({', '.join(silent)}).")
        return parts

    def to_json(self) -> str:
        """Strict JSON: NaN and infinity become null and a string."""
        return json.dumps(to_plain(self), indent=2)


def telling(findings: Sequence[Finding]) -> Finding:
    """The finding that a family is judged by: one that leaks before one that is undecided, and then the strongest."""
    order = (Verdict.NOT_SCORED, Verdict.BOUNDED, Verdict.UNDECIDED, Verdict.LEAKS)
    return max(findings, key=lambda one: (order.index(one.verdict), one.leakage))


def counted(number: int, thing: str) -> str:
    """ "1 claim", "2 claims"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _kinds(families: Mapping[str, Finding]) -> str:
    return f"{counted(len(families), 'kind')} of attack"


def _short(interval: Interval) -> str:
    return f"{interval.estimate:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval.is_known else "")


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiou" else f"a {noun}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
