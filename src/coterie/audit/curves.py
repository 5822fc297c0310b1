"""The report's figures, from what the runs noted: accuracy and leakage over rounds, and rebuilt pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.audit.family import Family
from coterie.audit.tried import Tried
from coterie.measure.exhibits import Chart, Gallery, Series
from coterie.measure.findings import UNDEFENDED, Finding
from coterie.measure.intervals import student
from coterie.measure.judge import YesNo, judge

PRIVATE, REBUILT = "private", "rebuilt"
POINTS = 10  # of a curve over rounds
LEAST_SEEDS = 3  # for a band: Student's interval of two seeds spans the whole figure and says nothing
BANDS = f" From {LEAST_SEEDS} seeds on, bands are 95 % intervals."

Curve = Sequence[tuple[int, float]]
"""Rounds and values."""


def over_rounds(tried: Sequence[Tried]) -> list[Chart]:
    """For each family the accuracy and then the leakage of each attack, one line a defence."""
    charts: list[Chart] = []
    for family in dict.fromkeys(one.family for one in tried):
        here = [one for one in tried if one.family is family]
        first = here[0].evidence[0]
        measure = first.utility_measure
        learnt = {one.defence: [run.history for run in one.evidence] for one in here}
        caption = "The mean over seeds, every client on its own test data." + BANDS
        charts += _chart(f"{measure.capitalize()}, round by round", caption, measure, learnt, family)
        for number, finding in enumerate(first.findings):
            if finding.control:
                continue
            scored = {one.defence: [run.findings[number].by_round for run in one.evidence] for one in here}
            charts += _leakage(finding, scored, family)
    return charts


def _leakage(first: Finding, scored: Mapping[str, Sequence[Curve]], family: Family) -> list[Chart]:
    title = f"Leakage to a {first.adversary}: {first.attack}"
    caption = "The mean score over seeds, from all that was seen up to this round." + BANDS
    return _chart(title, caption, first.measure, scored, family, ("chance", first.chance))


def _chart(
    title: str,
    caption: str,
    measure: str,
    lines: Mapping[str, Sequence[Curve]],
    family: Family,
    reference: tuple[str, float] | None = None,
) -> list[Chart]:
    """No chart where nothing was noted."""
    series = [_series(name, curves) for name, curves in lines.items() if any(len(curve) > 1 for curve in curves)]
    return [Chart(title, caption, "round", measure, series, "line", reference, family.name)] if series else []


def _series(name: str, curves: Sequence[Curve]) -> Series:
    """The mean over seeds at the rounds that all of them have."""
    known = [dict(curve) for curve in curves]
    rounds = [round for round in sorted(known[0]) if all(round in one for one in known)]
    values = [[one[round] for one in known] for round in rounds]
    means = [float(np.mean(row)) for row in values]
    if len(known) < LEAST_SEEDS:
        return Series(name, [float(round) for round in rounds], means)
    bounds = [student(row) for row in values]
    low, high = [max(0.0, one.low) for one in bounds], [min(1.0, one.high) for one in bounds]
    return Series(name, [float(round) for round in rounds], means, low, high)


def auc_by_round(guess: Suspicions, truth: YesNo) -> list[tuple[int, float]]:
    """The area under the ROC curve of all (round, cluster) that were scored up to a round, at some rounds."""
    rounds = sorted({_round(key) for key in guess.scores if key in truth.answers})
    chosen = [rounds[place] for place in np.unique(np.linspace(0, len(rounds) - 1, POINTS + 1).astype(int))[1:]]
    found = []
    for last in chosen:
        so_far = Suspicions({key: score for key, score in guess.scores.items() if _round(key) <= last})
        score = judge(so_far, truth).score
        if not np.isnan(score):
            found.append((last, score))
    return found


def _round(key: Hashable) -> int:
    assert isinstance(key, tuple)
    return int(key[0])


# -- pictures ------------------------------------------------------------------------------------------------------


def galleries(tried: Sequence[Tried]) -> list[Gallery]:
    """What was private in the first row, and what was made of it under each defence below."""
    rows: dict[Family, list[tuple[str, Sequence[str]]]] = {}
    for one in tried:
        pictures = one.evidence[0].pictures
        if pictures:
            here = rows.setdefault(one.family, [(PRIVATE, pictures[PRIVATE])])
            name = "undefended" if one.defence == UNDEFENDED else one.defence
            here.append((f"{REBUILT}: {name}", pictures[REBUILT]))
    return [Gallery(family.name.capitalize(), family.gallery, here, family.name) for family, here in rows.items()]


def as_png(picture: Tensor) -> str:
    """(channels, rows, columns) in 0..1, one channel or three, as a PNG file in base64."""
    from PIL import Image

    levels = (picture.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
