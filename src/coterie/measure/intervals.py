"""Estimates that say how sure they are: one type of interval, and the ways to get one.

An ``Interval`` is an estimate with the range that holds the truth with a stated confidence. A ``Sample`` is what one
run showed: the mean over its units (clients, records, observations) and what that mean is worth. ``pooled`` makes one
interval of the samples of all seeds.

**The rule.** Units decide, and seeds are clusters of them. If seeds differ no more than their units explain, all units
count as one sample. What they differ beyond that is charged with Student's quantile, because so few seeds say little
about it:

    inflation = 1 + max(0, phi - 1) * (t / z)^2,     phi = between seeds / within seeds

with t of as many degrees of freedom as there are seeds: that units explain the spread counts as one more seed. Shares
and areas are then bounded by Clopper and Pearson with ``worth / inflation`` trials, in the manner of Korn and Graubard
(1998), so that 8 of 8 is not certainty. Means take Student's reach over units plus the seeds' excess and are bounded
as shares of as many trials are (``_between_ends``); units that are all alike have no spread and still are no certainty
(``_all_alike``).

How often the lower end is too high, which is a false alarm (nominally 2.5 %), simulated at true shares of 0.2 and 0.5:
where seeds do not matter 1 to 2 %; at intraclass correlations up to 0.1 and 10 to 120 units a seed, at most 8 % with
two seeds, 5.5 % with three and 4 % with five. Counting units alone it would be up to 27 %. Of means either end: of
accuracies of 2 to 4 clients with 3 to 10 test rows each, from one to three seeds, at most 1.5 %; of 8 or 20 clients
with 10 to 50 rows at 0.95 to 0.99, 2.1 % (by Student's alone 7 %). Units that are more skewed than right answers are
show less of themselves: the far end of 12 from Beta(9, 1) errs in 5 %, and that of 6 from Beta(0.5, 4.5) or 20 from
Beta(0.2, 3.8) in 7 % from one seed (Student's: 14 %) and in 3 % from three. Two means of 2 to 20 units that are the
same are told apart in at most 2.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, norm, t

from coterie.errors import require

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
ALIKE = 1e-3  # of what a mean can be: values that differ by no more are one value


@dataclass(frozen=True)
class Interval:
    """An estimate, and the range that holds the truth with this confidence; NaN ends where nothing is known of it."""

    estimate: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        require(0 < self.confidence < 1, "confidence", self.confidence, "must lie in (0, 1); 0.95 is usual")
        require(
            self.low <= self.estimate <= self.high or (math.isnan(self.low) and math.isnan(self.high)),
            "interval",
            (self.low, self.estimate, self.high),
            "is not in order",
        )

    @staticmethod
    def unknown(estimate: float) -> Interval:
        """A number of which nobody knows how sure it is; NaN for no number at all."""
        return Interval(estimate, math.nan, math.nan)

    @property
    def is_known(self) -> bool:
        return not math.isnan(self.low)

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]" if self.is_known else f"{self.estimate:.4g}"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Sample:
    """What one run showed: the mean over its units, and what that mean is worth.

    A share (or an area under a ROC curve) lies in [0, 1] and spreads as yes-or-no trials do; ``worth`` says how many
    independent ones it is worth. A mean of other values has the ``spread`` of one unit, NaN where there is one unit
    only, and lies in [least, most].
    """

    mean: float
    units: int
    is_share: bool
    worth: float
    spread: float
    least: float
    most: float

    @staticmethod
    def share(right: float, count: int) -> Sample:
        """So many units of so many."""
        require(count > 0, "units", count, "must be at least 1")
        require(0 <= right <= count, "right", right, f"must lie in 0..{count}")
        return Sample(right / count, count, True, float(count), math.nan, 0.0, 1.0)

    @staticmethod
    def area(area: float, pairs: Sequence[tuple[int, int]]) -> Sample:
        """The area under a ROC curve, over (yes, no) observations; several where only those of a stratum are compared.

        What it is worth follows from Hanley and McNeil's variance (1982), the larger of the two ways round, taken at
        the mean area in every stratum: one that happens to be perfect is no more certain for it. Towards an area of 1
        this tends to 2 yes no / (max(yes, no) + 1) trials, so that an area of 1.000 over 10 and 10 is [0.816, 1].
        """
        if math.isnan(area):
            return Sample(math.nan, sum(yes + no for yes, no in pairs), True, 0.0, math.nan, 0.0, 1.0)
        shares = [yes * no / sum(yes * no for yes, no in pairs) for yes, no in pairs]
        trials = [_trials(area, yes, no) for yes, no in pairs]
        worth = 1 / sum(share**2 / count for share, count in zip(shares, trials, strict=True))
        return Sample(area, sum(yes + no for yes, no in pairs), True, worth, math.nan, 0.0, 1.0)

    @staticmethod
    def detected(found: float, before: float, rate: float, yes: int, no: int) -> Sample:
        """The true positive rate at a false positive rate: ``found`` at ``rate``, ``before`` at half of it.

        The threshold is an order statistic of the ``no`` negatives, and where it falls moves what is found by the
        curve's slope. A ROC curve bends down, so the slope at ``rate`` is at most that of the chord from the origin;
        where nearly all is found that says nothing, and the chord from half the rate takes over. Simulated at 400
        negatives and a rate of 1 %, the interval misses the truth in fewer than one of twenty games.
        """
        require(min(yes, no) > 0, "units", (yes, no), "must be at least 1 on either side")
        inner = min(max(found, 0.5 / yes), 1 - 0.5 / yes)  # what lies at the edge is not certain
        slope = max(2 * (found - before), found * (1 - found), 0.0) / rate
        variance = inner * (1 - inner) / yes + slope**2 * rate * (1 - rate) / no
        return Sample(found, yes, True, inner * (1 - inner) / variance, math.nan, 0.0, 1.0)

    @staticmethod
    def average(values: Sequence[float] | Floats, least: float, most: float) -> Sample:
        """The mean of one value a unit, which lies in [least, most]."""
        found = np.asarray(values, dtype=np.float64)
        require(len(found) > 0, "units", 0, "must be at least 1")
        slack = 1e-6 * (most - least) if math.isfinite(most - least) else 0.0  # of rounding
        for value in (float(found.min()), float(found.max())):  # NaN is no score, and says so itself
            if value < least - slack or value > most + slack:  # whoever scores so breaks: that is no misfit
                raise ValueError(f"a unit scores {value:g}, and is said to lie in [{least:g}, {most:g}]")
        spread = float(found.std(ddof=1)) if len(found) > 1 else math.nan
        return Sample(float(found.mean()), len(found), False, float(len(found)), spread, least, most)

    @staticmethod
    def unknown() -> Sample:
        """Of a run in which there was nothing to score."""
        return Sample(math.nan, 0, True, 0.0, math.nan, 0.0, 1.0)

    @property
    def silent(self) -> bool:
        """Whether the same was said of all: an area that is one half for certain, and evidence of nothing."""
        return self.is_share and self.worth == 0 and not math.isnan(self.mean)

    def shared(self, count: int) -> Sample:
        """One of so many runs of the very same units: all of them together are worth no more than one."""
        return replace(self, worth=self.worth / count, spread=self.spread * math.sqrt(count))

    @property
    def variance(self) -> float:
        """Of the mean; a share's by Agresti and Caffo (2000), for whom 8 of 8 is 9 of 10.

        So are units that are all alike: as if there were one more at either end of what they can be.
        """
        if not self.is_share and not self.alike:
            return self.spread**2 / self.units
        room, count = self.most - self.least, self.worth + 2
        place = (self.mean - self.least) / room
        middle = (place * self.worth + 1) / count
        square = place if self.is_share else place**2  # of a yes or no, or of the one value
        return room**2 * ((square * self.worth + 1) / count - middle**2) / count

    @property
    def alike(self) -> bool:
        """Whether all units of a mean have one value, of what has an end on either side."""
        room = self.most - self.least
        return not self.is_share and math.isfinite(room) and self.spread <= ALIKE * room

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance: of units that are shared the one seed's; a share's is known."""
        return math.inf if self.is_share else self.worth * (1 - 1 / self.units)


def _trials(area: float, yes: int, no: int) -> float:
    """The independent trials with the variance of such an area; its limits at 0 and 1 are taken a hair from them."""
    area = min(max(area, 1e-9), 1 - 1e-9)
    more, less = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    bent = max((yes - 1) * more + (no - 1) * less, (no - 1) * more + (yes - 1) * less)
    return area * (1 - area) * yes * no / (area * (1 - area) + bent)


def pooled(samples: Sequence[Sample], confidence: float = CONFIDENCE) -> Interval:
    """One interval for the samples of several seeds, or of one; the rule stands at the head of this module.

    Seeds in which nothing could be scored (NaN) are left out, and among means those in which nothing was said.
    """
    known = [sample for sample in samples if not math.isnan(sample.mean)]
    if not all(sample.is_share for sample in known):
        known = [sample for sample in known if not sample.silent]
    if not known:
        return Interval.unknown(math.nan)
    units = sum(sample.units for sample in known)
    mean = sum(sample.mean * sample.units / units for sample in known)
    if all(sample.is_share for sample in known):
        return _pooled_shares(known, min(max(mean, 0.0), 1.0), confidence)
    return _pooled_means(known, mean, confidence)


def _pooled_shares(samples: Sequence[Sample], mean: float, confidence: float) -> Interval:
    inflation = 1.0
    if len(samples) > 1 and 0 < mean < 1:
        spread = sum(sample.worth * (sample.mean - mean) ** 2 for sample in samples) / (len(samples) - 1)
        inflation += max(0.0, spread / (mean * (1 - mean)) - 1) * _dearer(len(samples), confidence)
    trials = sum(sample.worth for sample in samples) / inflation
    error = (1 - confidence) / 2
    low, high = lower_limit(mean * trials, trials, error), upper_limit(mean * trials, trials, error)
    return Interval(mean, min(float(low), mean), max(float(high), mean), confidence)


def _pooled_means(samples: Sequence[Sample], mean: float, confidence: float) -> Interval:
    count, units = len(samples), sum(sample.units for sample in samples)
    if units > 1 and all(_has_but(mean, sample) for sample in samples):
        return _all_alike(samples, mean, confidence)
    within = sum(sample.units * sample.spread**2 for sample in samples) / units**2  # NaN: a unit a seed
    freedom = sum(sample.freedom for sample in samples)
    if math.isnan(within):
        reach = (student([sample.mean for sample in samples], confidence).high - mean) ** 2
    else:
        reach = within * float(t.ppf((1 + confidence) / 2, freedom)) ** 2
        if count > 1:
            between = float(np.var([sample.mean for sample in samples], ddof=1)) / count
            reach += max(0.0, between - within) * float(t.ppf((1 + confidence) / 2, count)) ** 2
    if math.isnan(reach):
        return Interval.unknown(mean)
    return _between_ends(mean, math.sqrt(reach), samples[0].least, samples[0].most, confidence)


def _between_ends(mean: float, reach: float, least: float, most: float, confidence: float) -> Interval:
    """Student's reach, bent by the ends of what a unit can be, of which Student does not know.

    Close to an end few units are skewed: those that would move the mean away from it are rare, and make it spread. So
    the mean is bounded as a share of the way would be of as many trials as have this reach.
    """
    place, wide = (mean - least) / (most - least), reach / (most - least)
    if not 0 < place < 1 or not wide > 0:  # an end that is none
        return Interval(mean, min(mean, max(mean - reach, least)), max(mean, min(mean + reach, most)), confidence)
    trials = place * (1 - place) * (float(norm.ppf((1 + confidence) / 2)) / wide) ** 2
    error = (1 - confidence) / 2
    low, high = (float(end(place * trials, trials, error)) for end in (lower_limit, upper_limit))
    room = most - least
    return Interval(mean, min(mean, least + room * low), max(mean, least + room * high), confidence)


def _has_but(mean: float, sample: Sample) -> bool:
    """Whether every unit has this one value; one unit alone has but its own."""
    near = abs(sample.mean - mean) <= ALIKE * (sample.most - sample.least)  # no end: never alike
    return near and (sample.alike or (sample.units == 1 and math.isfinite(sample.most - sample.least)))


def _all_alike(samples: Sequence[Sample], mean: float, confidence: float) -> Interval:
    """Of n units that all have one value: two of two are no certainty, wherever between the ends they lie.

    By Markov's inequality a unit lies at least so far above the lower end with probability true mean / value, and n
    of them with its n-th power, so that below value * error^(1/n) the true mean is too low to be believed; likewise
    from above. At an end this is the interval of Clopper and Pearson for n of n.
    """
    worth = sum(sample.worth for sample in samples)
    kept = ((1 - confidence) / 2) ** (1 / worth) if worth > 0 else 0.0
    least, most = samples[0].least, samples[0].most
    low, high = least + kept * (mean - least), most - kept * (most - mean)
    return Interval(mean, min(low, mean), max(high, mean), confidence)


def difference(ours: Sequence[Sample], theirs: Sequence[Sample], confidence: float = CONFIDENCE) -> Interval:
    """How far our mean lies above theirs, paired seed by seed; seeds in which either is unknown (NaN) are left out.

    By the same rule: units decide, and what the differences of seeds differ beyond that is charged. The quantile is
    Student's, with Welch and Satterthwaite's degrees of freedom, as variances of few units are uncertain themselves.
    Who is silent about theirs, where there is nothing to find, has found nothing, and that is certain.
    """
    both = [
        (one, other)
        for one, other in zip(ours, theirs, strict=True)
        if not math.isnan(one.mean) and not math.isnan(other.mean)
    ]
    if not both:
        return Interval.unknown(math.nan)
    gaps, count = [one.mean - other.mean for one, other in both], len(both)
    mean = float(np.mean(gaps))
    sides = [sample for pair in both for sample in pair]
    found = [(one.variance, 0.0 if other.silent else other.variance) for one, other in both]
    variances = [variance for pair in found for variance in pair]
    within = sum(variances) / count**2
    least, most = both[0][0].least - both[0][1].most, both[0][0].most - both[0][1].least
    if math.isnan(within):
        return pooled([Sample.average(gaps, least, most)], confidence)
    reach = within * float(t.ppf((1 + confidence) / 2, _welch(variances, sides))) ** 2
    if count > 1:
        excess = max(0.0, float(np.var(gaps, ddof=1)) / count - within)
        reach += excess * float(t.ppf((1 + confidence) / 2, count)) ** 2
    low, high = max(mean - math.sqrt(reach), least), min(mean + math.sqrt(reach), most)
    return Interval(mean, min(low, mean), max(high, mean), confidence)


def _welch(variances: Sequence[float], samples: Sequence[Sample]) -> float:
    """The degrees of freedom of a sum of such variances."""
    uncertain = sum(one**2 / sample.freedom for one, sample in zip(variances, samples, strict=True))
    return sum(variances) ** 2 / uncertain if uncertain else math.inf


def _dearer(seeds: int, confidence: float) -> float:
    level = (1 + confidence) / 2
    return float(t.ppf(level, seeds) / norm.ppf(level)) ** 2


def student(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of repetitions of which nothing more is known, with Student's interval; a single one has none."""
    found = np.asarray(values, dtype=np.float64)
    require(len(found) > 0, "values", 0, "must be at least 1")
    mean = float(found.mean())
    if len(found) < 2:
        return Interval.unknown(mean)
    reach = float(t.ppf((1 + confidence) / 2, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found)))
    return Interval(mean, mean - reach, mean + reach, confidence)


def lower_limit(successes: ArrayLike, trials: float, error: float) -> Floats:
    """One-sided Clopper-Pearson: a proportion below this gives so many successes with at most this probability."""
    successes = np.asarray(successes, dtype=np.float64)
    tiny = np.finfo(np.float64).tiny
    found = beta.ppf(error, np.maximum(successes, tiny), trials - successes + 1)
    return np.where(successes == 0, 0.0, found)


def upper_limit(successes: ArrayLike, trials: float, error: float) -> Floats:
    """One-sided Clopper-Pearson from above."""
    return 1 - lower_limit(trials - np.asarray(successes, dtype=np.float64), trials, error)


def proportion(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Clopper-Pearson: exact, and never too narrow."""
    require(trials > 0, "trials", trials, "must be at least 1")
    require(0 <= successes <= trials, "successes", successes, f"must lie in 0..{trials}")
    error = (1 - confidence) / 2
    low, high = float(lower_limit(successes, trials, error)), float(upper_limit(successes, trials, error))
    return Interval(successes / trials, low, high, confidence)
