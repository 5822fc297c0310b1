"""Is it a leak? One word for each answer, in the headline, the tables, the gate, the frontier, JSON and JUnit alike.

No score is called safe for being uncertain: without an interval that bounds it, it is undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from scipy.stats import norm

from coterie.measure.intervals import Interval

SIZE = 0.1
"""The stated size: a leak is bounded where the whole interval lies under this share of the way to a complete leak."""

POWER = 0.8
"""How often as many more units as are named would decide, if the score stays what it is."""

FAR = 1000  # times what there is: nobody will run so much


class Verdict(Enum):
    LEAKS = "leaks"
    BOUNDED = "bounded"
    UNDECIDED = "undecided"
    NOT_SCORED = "not scored"


@dataclass(frozen=True)
class Decision:
    """A verdict with what belongs to it; NaN for what does not."""

    verdict: Verdict
    size: float = math.nan  # bounded: the leak is below this share of a complete one
    more_units: float = math.nan  # undecided: about so many would decide; infinity: out of reach
    more_seeds: float = math.nan  # NaN, too, where all seeds have the same units
    fooled: bool = False  # undecided: it is above chance, and not known to be above its control
    repeated: bool = False  # undecided: all seeds have the same units, so that more seeds tell nothing new
    trivial: bool = False  # undecided: guessing scores a complete leak
    silent: bool = False  # undecided: it said the same of all
    turned: bool = False  # undecided: it answers yes or no, and is wrong more often than a guess
    beneath: bool = False  # undecided: it is below chance, and known to be above its control

    def in_words(self, unit: str) -> str:
        """``unit`` in the plural, such as "clients"."""
        if self.verdict is Verdict.BOUNDED:
            return f"bounded: less than {self.size:.0%} of a complete leak"
        if self.verdict is not Verdict.UNDECIDED:
            return str(self.verdict.value)
        return f"undecided: {self.remedy(unit)}"

    def remedy(self, unit: str) -> str:
        """What would decide, of what is undecided."""
        if self.fooled:
            return "it is not known to find more than its control does, where there is nothing to find"
        if self.trivial:
            return "there is nothing to tell apart here: guessing scores as much as a complete leak"
        if self.silent:
            return "it says the same of all, which is no answer"
        if self.turned:
            return "it errs more often than a guess does, and turned round it may tell"
        if self.beneath:
            return "it scores less than chance and more than its control, so that it finds something"
        if math.isnan(self.more_units):
            return "one run does not say how sure its score is, and more seeds would"
        if math.isinf(self.more_units):
            return f"no number of {unit} within reach would decide"
        if self.repeated:
            return f"about {self.more_units:,.0f} more {unit} would decide, and more seeds of the same would not"
        seeds = f"{self.more_seeds:.0f} more seed" + ("" if self.more_seeds == 1 else "s")
        return f"about {seeds} ({self.more_units:,.0f} {unit}) would decide"


def decide(
    interval: Interval,
    chance: float,
    perfect: float,
    units: int,
    seeds: int,
    beyond: Interval | None = None,
    repeated: bool = False,
    silent: bool = False,
) -> Decision:
    """*Leaks* if the interval lies above chance, *bounded* if it lies under the stated size, else *undecided*.

    Who answers yes or no can be turned round, so that such a score is bounded from below, too.
    ``beyond``: how far it lies above its control, where there is one; a leak is known to lie above that, too. Chance
    may be an answer that is good because it is the same for all: who scores less than that, and more than the control,
    has found something, and who is better at using it may score more.
    ``repeated``: every seed has the same units. ``silent``: the attack said the same of all.
    """
    if math.isnan(interval.estimate):
        return Decision(Verdict.NOT_SCORED)
    if not perfect > chance:
        return Decision(Verdict.UNDECIDED, trivial=True)
    if silent:
        return Decision(Verdict.UNDECIDED, silent=True)
    if not interval.is_known:
        return Decision(Verdict.UNDECIDED)
    if interval.low > chance:
        fooled = beyond is not None and not beyond.low > 0
        return Decision(Verdict.UNDECIDED, fooled=True) if fooled else Decision(Verdict.LEAKS)
    bound = chance + SIZE * (perfect - chance)
    if interval.high < chance and beyond is not None and beyond.low > 0:
        return Decision(Verdict.UNDECIDED, beneath=True)
    if interval.high <= bound:
        if not yes_or_no(chance, perfect) or 1 - interval.low <= bound:
            return Decision(Verdict.BOUNDED, SIZE)
        if interval.high < chance:
            return Decision(Verdict.UNDECIDED, turned=True)
        interval = turned_round(interval)
    return undecided(further_share(interval, chance, bound), units, seeds, repeated)


def undecided(further: float, units: int, seeds: int, repeated: bool = False) -> Decision:
    """``further``: how much more would decide, as a share of these units of all seeds; of the same units in every seed
    there are only as many as in one, and more seeds add none."""
    if further > FAR:
        seeds_more = math.nan if repeated else math.inf
        return Decision(Verdict.UNDECIDED, more_units=math.inf, more_seeds=seeds_more, repeated=repeated)
    seeds = max(seeds, 1)
    more = math.ceil(further * units / (seeds if repeated else 1))
    more_seeds = math.nan if repeated else math.ceil(further * seeds)
    return Decision(Verdict.UNDECIDED, more_units=more, more_seeds=more_seeds, repeated=repeated)


def yes_or_no(chance: float, perfect: float) -> bool:
    """Whether such a score is of answers that say as much when they are turned round: 0.02 is as good as 0.98."""
    return (chance, perfect) == (0.5, 1.0)


def turned_round(interval: Interval) -> Interval:
    """Of the opposite answers."""
    return Interval(1 - interval.estimate, 1 - interval.high, 1 - interval.low, interval.confidence)


def further_share(interval: Interval, low: float, high: float) -> float:
    """How much more, as a share of what there is, would put the interval above ``low`` or under ``high``.

    An interval narrows with the root of what it rests on. For it to decide with probability ``POWER`` and not only
    every other time, its reach must shrink to z / (z + z_power) of the distance, where z belongs to its confidence.
    """
    ways = []
    if interval.estimate > low:
        ways.append((interval.estimate - interval.low) / (interval.estimate - low))
    if interval.estimate < high:
        ways.append((interval.high - interval.estimate) / (high - interval.estimate))
    z, power = float(norm.ppf((1 + interval.confidence) / 2)), float(norm.ppf(POWER))
    needed = (min(ways, default=math.inf) * (z + power) / z) ** 2
    return max(needed - 1, 0.0)


def detectable(interval: Interval) -> float:
    """How far from chance a score must lie for an interval as wide as this one to be above it with ``POWER``."""
    z = float(norm.ppf((1 + interval.confidence) / 2))
    return (interval.high - interval.low) / 2 * (z + float(norm.ppf(POWER))) / z
