"""What an attack that looks for members is worth: areas, rates at few false alarms, whom it exposes most, a control."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.base import Suspicions
from coterie.errors import require
from coterie.measure.exhibits import Chart, Series
from coterie.measure.findings import Finding
from coterie.measure.intervals import Floats, Sample
from coterie.measure.judge import YesNo, judge
from coterie.measure.roc import Curve
from coterie.rng import Rng

RATES = (0.01, 0.001)
LEAST_RATE = 1e-3  # where a curve on a log scale begins
MOST_EXPOSED = 5  # clients that are named


def rate_name(rate: float) -> str:
    return f"TPR at {rate:.1%} FPR".replace(".0%", "%")


RATE_NAMES = frozenset(rate_name(rate) for rate in RATES)


def findings(guess: Suspicions, truth: YesNo, attack: str, knew: str) -> list[Finding]:
    """The area under the curve, over pairs from one stratum, and the true positive rates at ``RATES`` over all.

    A rate that there are too few non-members for (one of them is more than it) is not scored, nor any of an attack
    that says the same of all.
    """
    area = replace(judge(guess, truth, attack, knew), unit="records", operating=None)
    scores, answers = arrays(guess, truth)
    yes, no = int(answers.sum()), int((~answers).sum())
    found = [area]
    for rate in RATES:
        if yes and no and no * rate >= 1 and area.runs[0].worth:
            curve = Curve.of(scores, answers)
            sample = Sample.detected(curve.at(rate), curve.at(rate / 2), rate, yes, no)
            found.append(Finding.of(attack, rate_name(rate), sample, rate, "records", knew))
        else:
            found.append(Finding.unscored(attack, rate_name(rate), rate, knew, _why_not(yes, no, rate)))
    return found


def _why_not(yes: int, no: int, rate: float) -> str:
    if not yes or not no:
        return ""
    return "there are too few non-members for so few false alarms" if no * rate < 1 else "it says the same of all"


def control(guess: Suspicions, truth: YesNo, attack: str, knew: str, rng: Rng) -> Finding:
    """Records that nobody trained on, on both sides: half of the non-members, drawn at random, pass for members."""
    outside = [key for key in guess.scores if truth.answers.get(key) is False]
    coins = rng.child("control").numpy().permutation(len(outside)) % 2 == 0
    answers = dict(zip(outside, coins.tolist(), strict=True))
    made = judge(guess, YesNo(answers, truth.strata), f"{attack}, on non-members alone", knew)
    return replace(made, unit="records", operating=None, control=True, control_of=attack)


def arrays(guess: Suspicions, truth: YesNo) -> tuple[Floats, NDArray[np.bool_]]:
    keys = [key for key in guess.scores if key in truth.answers]
    require(len(keys) > 0, "guess", "no question", "has an answer in the truth")
    return np.array([guess.scores[key] for key in keys]), np.array([truth.answers[key] for key in keys], bool)


@dataclass(frozen=True)
class Exposed:
    """How exposed the records of one client (or one record) are."""

    name: str
    score: float  # of a client: the share of its records found; of a record: the attack's score
    records: int


def most_exposed(guess: Suspicions, truth: YesNo, whose: Mapping[Hashable, int]) -> list[Exposed]:
    """The clients of whose records the most are found at the larger of the ``RATES`` of false positives."""
    scores, answers = arrays(guess, truth)
    if answers.all() or not answers.any():
        return []
    threshold = float(np.quantile(scores[~answers], 1 - RATES[0], method="higher"))
    found: dict[int, list[bool]] = {}
    for key, score in guess.scores.items():
        if truth.answers.get(key):
            found.setdefault(whose[key], []).append(score > threshold)
    rows = [Exposed(f"client {client}", float(np.mean(hits)), len(hits)) for client, hits in found.items()]
    return sorted(rows, key=lambda one: -one.score)[:MOST_EXPOSED]


def surest(guess: Suspicions, truth: YesNo, most: int = 10) -> list[Hashable]:
    """The members that the attack is surest of."""
    members = [key for key in guess.scores if truth.answers.get(key)]
    return sorted(members, key=lambda key: -guess.scores[key])[:most]


def log_roc(curves: Mapping[str, Curve], family: str) -> Chart:
    """On logarithmic axes: what counts is how many members are found before the first few false alarms."""
    rates = np.logspace(math.log10(LEAST_RATE), 0, 31)
    series = [_logs("chance", rates, rates)]
    series += [
        _logs(name, rates, np.array([curve.at(float(rate)) for rate in rates])) for name, curve in curves.items()
    ]
    return Chart(
        "Members found, by false alarms",
        "Both axes are powers of ten: -2 is one in a hundred. Far above the diagonal on the left is a leak that the "
        "area under the curve hardly shows.",
        "log10 of the false positive rate",
        "log10 of the true positive rate",
        series,
        family=family,
    )


def _logs(name: str, rates: Floats, found: Floats) -> Series:
    there = found > 0
    return Series(name, np.log10(rates[there]).tolist(), np.log10(found[there]).tolist())


def by_size(
    found: Mapping[str, Sequence[tuple[int, float]]], title: str, measure: str, chance: float, family: str
) -> Chart:
    """By attack, (records behind a cluster, score): whether small clusters give more away."""
    series = [
        Series(name, [float(size) for size, _ in sorted(points)], [score for _, score in sorted(points)])
        for name, points in found.items()
    ]
    caption = "One point a cluster: the records that trained it, and how well its members are told from others."
    return Chart(title, caption, "records in the cluster", measure, series, "scatter", ("chance", chance), family)
