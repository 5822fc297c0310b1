"""What was found, as plain values: judges and audits make these; report, terminal, JSON and gate read nothing else.

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
from coterie.measure.claims import Promise
from coterie.measure.exhibits import Chart, Gallery, Suspected
from coterie.measure.intervals import Interval, Sample, difference, pooled
from coterie.measure.operating import OperatingPoint
from coterie.measure.plain import to_plain
from coterie.measure.roc import Curve
from coterie.measure.verdicts import Decision, Verdict, decide, detectable

UNDEFENDED = "none"  # what the defence is called where there is none


@dataclass(frozen=True)
class Finding:
    """What one attack by one adversary scored under one defence, in one run or over the seeds of several.

    ``judge`` makes one a run, ``over_seeds`` one of several. Family, adversary and defence are filled in by whoever
    knows them.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("decision", "detectable", "beyond", "sentence")

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
    control_runs: Sequence[Sample] = ()  # its control's, seed by seed; empty: it has none
    repeated: bool = False  # every seed has the same units, or would have
    why_not: str = ""  # it was not scored, where that is not for want of a truth
    control_of: str = ""  # the attack that it is the control of; empty: of all by this adversary that have none

    @staticmethod
    def of(attack: str, measure: str, run: Sample, chance: float, unit: str, knew: str) -> Finding:
        """Of one run."""
        return Finding(attack, measure, pooled([run]), chance, (run,), unit, knew)

    @staticmethod
    def unscored(attack: str, measure: str, chance: float, knew: str, why_not: str = "") -> Finding:
        """Of an attack whose guess nobody can judge: there is no truth to judge it by, if nothing else is said."""
        return Finding(attack, measure, Interval.unknown(math.nan), chance, (), knew=knew, why_not=why_not)

    @property
    def score(self) -> float:
        return self.interval.estimate

    @property
    def units(self) -> int:
        return sum(run.units for run in self.runs)

    @property
    def seeds(self) -> int:
        return sum(not math.isnan(run.mean) for run in self.runs)

    @property
    def leakage(self) -> float:
        """0 for chance, 1 for a complete leak; what colours the table."""
        return self.leak_of(self.score)

    def leak_of(self, score: float) -> float:
        """Of such a score, as a share of a complete leak."""
        room = self.perfect - self.chance
        if room <= 0 or math.isnan(score):
            return math.nan
        return min(1.0, max(0.0, (score - self.chance) / room))

    @property
    def decision(self) -> Decision:
        told, silent = (
            (self.units, self.seeds, self.beyond),
            bool(self.runs) and not any(run.worth for run in self.runs),
        )
        return decide(self.interval, self.chance, self.perfect, *told, repeated=self.repeated, silent=silent)

    @property
    def beyond(self) -> Interval | None:
        """How far it lies above its control, seed by seed; None where it has none."""
        if not self.control_runs:
            return None
        return difference(self.runs, self.control_runs, self.interval.confidence)

    @property
    def detectable(self) -> float:
        """The power: the least leak, as a share of a complete one, that so many units show in four of five tries."""
        room = self.perfect - self.chance
        return detectable(self.interval) / room if room > 0 and self.interval.is_known else math.nan

    def among(self, count: int) -> Finding:
        """The same as one of so many attacks, with an interval that holds for all of them together (Bonferroni)."""
        if count < 2 or not self.interval.is_known or not self.runs:
            return self
        return replace(self, interval=pooled(self.runs, 1 - (1 - self.interval.confidence) / count))

    @property
    def verdict(self) -> Verdict:
        return self.decision.verdict

    @property
    def nothing_there(self) -> bool:
        """It was not scored as there is nothing that could be, and not for want of a truth."""
        return math.isnan(self.score) and bool(self.why_not)

    @property
    def named(self) -> str:
        return f"{self.attack} by {_a(self.adversary)}" if self.adversary else self.attack

    @property
    def unscored_for(self) -> str:
        return self.why_not or "there was nothing to score it by"

    @property
    def sentence(self) -> str:
        """In plain words."""
        who = self.named
        bare = " without a defence" if self.family else ""  # outside an audit nobody has said what was in use
        under = bare if self.defence == UNDEFENDED else f" under {self.defence}"
        if self.verdict is Verdict.NOT_SCORED:
            by = f" by {self.measure}" if self.why_not else ""
            return f"{_capital(who)} was run{under} and not scored{by}: {self.unscored_for}."
        what = f"{who} scores {_short(self.interval)} ({self.measure}; chance {self.chance:.3f}){under}"
        if self.control:
            found = " It finds what is not there." if self.verdict is Verdict.LEAKS else ""
            return f"Control, in which there is nothing to find: {what}.{found}"
        said = "it leaks" if self.verdict is Verdict.LEAKS else self.decision.in_words(self.unit)
        return f"{_capital(what)}: {said}."

    def __str__(self) -> str:
        return self.sentence + (f" {_capital(str(self.operating))}." if self.operating else "")


def over_seeds(findings: Sequence[Finding], repeated: bool = False) -> Finding:
    """One finding for several runs of the same attack: units pooled with seeds as clusters (``measure.intervals``).

    ``repeated``: all of them asked about the same units, which count once.
    """
    require(len(findings) > 0, "findings", 0, "must be at least one")
    first = findings[0]
    runs = tuple(run for one in findings for run in one.runs or (Sample.unknown(),))
    runs = tuple(run.shared(len(runs)) for run in runs) if repeated else runs
    weights = [max(one.units, 1) for one in findings]
    curves = [(one.roc, weight) for one, weight in zip(findings, weights, strict=True) if one.roc is not None]
    roc = Curve.average([curve for curve, _ in curves], [weight for _, weight in curves]) if curves else None
    known = [dict(one.by_round) for one in findings]
    rounds = [round for round in known[0] if all(round in one for one in known)]
    return replace(
        first,
        interval=pooled(runs),
        chance=float(np.average([one.chance for one in findings], weights=weights)),
        perfect=float(np.average([one.perfect for one in findings], weights=weights)),
        runs=runs,
        repeated=repeated,
        why_not=first.why_not if all(one.why_not for one in findings) else "",
        roc=roc.thinned() if roc else None,
        by_round=tuple((round, float(np.mean([one[round] for one in known]))) for round in rounds),
        operating=OperatingPoint.mean([one.operating for one in findings if one.operating is not None]),
    )


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """The real attack that leaks most; None where none was scored."""
    real = [one for one in findings if not one.control and not math.isnan(one.leakage)]
    return max(real, key=lambda one: one.leakage, default=None)


def telling(findings: Sequence[Finding]) -> Finding:
    """The finding that a family is judged by: one that leaks before one that is undecided, and then the strongest.

    Nothing is bounded beside an attack of which nobody knows what it found.
    """
    order = (Verdict.BOUNDED, Verdict.NOT_SCORED, Verdict.UNDECIDED, Verdict.LEAKS)

    def most(one: Finding) -> tuple[bool, int, float]:
        return not one.nothing_there, order.index(one.verdict), -1.0 if math.isnan(one.leakage) else one.leakage

    return max(findings, key=most)


@dataclass(frozen=True)
class Defended:
    """What one defence costs in one family, and what it promises."""

    DERIVED: ClassVar[tuple[str, ...]] = ("unbeaten", "learnt_nothing")

    family: str
    defence: str
    utility_measure: str  # "accuracy", "k-means cost"
    utility: Interval
    seconds: float  # a round, or a run where there are no rounds
    upload_bytes: float  # a client and round
    memory_bytes: float  # peak
    promise: Promise | None = None
    spent: float | None = None  # epsilon, by the run's own ledger; None: nothing was entered
    baselines: Mapping[str, Interval] = field(default_factory=dict)  # what clients would have without the federation
    gains: Mapping[str, Interval] = field(default_factory=dict)  # over each of them, client by client
    clusters: str = ""  # of the first seed: who uses which model
    units: int = 0  # clients, over all seeds, that the utility rests on
    seeds: int = 1
    repeated: bool = False  # every seed has the same clients

    @property
    def unbeaten(self) -> list[str]:
        """The baselines that it is not known to be better than."""
        return [name for name, gain in self.gains.items() if not math.isnan(gain.estimate) and not gain.low > 0]

    @property
    def learnt_nothing(self) -> bool:
        return bool(self.unbeaten)  # what a defence costs it is no price: there is nothing to lose


@dataclass(frozen=True)
class LeftOut:
    """A family that was not run, or one that was not run under a defence, and why."""

    family: str
    reason: str
    defence: str = ""  # all of them, if empty
    failed: bool = False  # it has a place here, and broke: what it would have found, nobody knows

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
    left_out: Sequence[LeftOut] = ()  # settings of which there is no point, and why; those that broke among them


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
    DERIVED: ClassVar[tuple[str, ...]] = ("headline", "verdicts", "passed")

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
    launched: str = UNDEFENDED  # the defence that is configured

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and not any(one.failed for one in self.left_out)

    @property
    def verdicts(self) -> Mapping[str, Mapping[str, str]]:
        """By family and defence, what its most telling finding says, as one of so many attacks (``headline``)."""
        from coterie.measure.headline import by_defence

        return {
            family: {defence: one.verdict.value for defence, one in found.items()}
            for family, found in by_defence(self).items()
        }

    @property
    def headline(self) -> str:
        """The verdict in a few sentences."""
        from coterie.measure.headline import headline_of  # which reads what this module defines

        return headline_of(self)

    def to_json(self) -> str:
        """Strict JSON: NaN and infinity become null and a string."""
        return json.dumps(to_plain(self), indent=2)


def counted(number: int, thing: str) -> str:
    """ "1 claim", "2 claims"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _short(interval: Interval) -> str:
    ends = f" [{interval.low:.3f}, {interval.high:.3f}]" if interval.is_known else ""
    return f"{interval.estimate:.3f}{ends}".replace("-", "−")  # a minus, at which no line is broken


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiou" else f"a {noun}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
