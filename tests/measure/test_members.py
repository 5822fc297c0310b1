"""Rates at few false alarms, and how sure they are."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from scipy.stats import norm

from coterie.attacks.base import Suspicions
from coterie.measure.intervals import Sample, pooled
from coterie.measure.judge import YesNo
from coterie.measure.members import by_size, control, findings, log_roc, most_exposed, rate_name, surest
from coterie.measure.roc import Curve
from coterie.measure.verdicts import Verdict
from coterie.rng import Rng


def game(shift: float, yes: int, no: int, seed: int) -> tuple[Suspicions, YesNo]:
    draw = np.random.default_rng(seed)
    scores = np.concatenate([draw.normal(shift, 1, yes), draw.normal(0, 1, no)])
    return Suspicions(dict(enumerate(scores.tolist()))), YesNo({at: at < yes for at in range(yes + no)})


def test_names() -> None:
    assert [rate_name(rate) for rate in (0.01, 0.001)] == ["TPR at 1% FPR", "TPR at 0.1% FPR"]


def test_rates_are_those_of_the_curve_and_unscored_where_there_are_too_few() -> None:
    area, one, tenth = findings(*game(1.5, 2000, 2000, 0), "x", "")
    assert abs(area.score - norm.cdf(1.5 / np.sqrt(2))) < 0.03
    assert abs(one.score - norm.sf(norm.isf(0.01) - 1.5)) < 0.08
    assert tenth.verdict is not Verdict.NOT_SCORED
    _, _, few = findings(*game(1.5, 2000, 900, 0), "x", "")
    assert few.verdict is Verdict.NOT_SCORED
    assert "not scored by TPR at 0.1% FPR: there are too few non-members for so few false alarms." in few.sentence


def test_intervals_of_rates_hold_the_truth() -> None:
    """300 games: an interval of 95 % misses 15 on average; 28 or more has probability 0.2 %.

    Counting members alone, as if the threshold were known, would miss in every second game.
    """
    missed, narrow = 0, 0
    truth = norm.sf(norm.isf(0.01) - 1.5)
    for seed in range(300):
        guess, answers = game(1.5, 800, 400, seed)
        found = findings(guess, answers, "x", "")[1]
        missed += not found.interval.low <= truth <= found.interval.high
        alone = pooled([Sample.share(round(found.score * 800), 800)])
        narrow += not alone.low <= truth <= alone.high
    assert missed < 28
    assert narrow > 60


def test_the_edges_are_not_certain() -> None:
    none, all_ = (pooled([Sample.detected(share, share, 0.01, 50, 500)]) for share in (0.0, 1.0))
    assert none.high > 0.05
    assert all_.low < 0.95


def test_a_control_has_nothing_to_find() -> None:
    guess, truth = game(3.0, 500, 500, 0)
    made = control(guess, truth, "x", "", Rng.seeded(0))
    assert made.control
    assert made.verdict is not Verdict.LEAKS
    assert made.units == 500


def test_the_most_exposed_come_first() -> None:
    guess = Suspicions(dict(enumerate([9.0, 8.0, 0.1, 7.0, 0.2, 0.3, 1.0, 0.0])))
    truth = YesNo({at: at < 6 for at in range(8)})
    whose: dict[Hashable, int] = {0: 3, 1: 3, 2: 3, 3: 5, 4: 5, 5: 5}
    first, second = most_exposed(guess, truth, whose)
    assert (first.name, round(first.score, 2), first.records) == ("client 3", 0.67, 3)
    assert second.name == "client 5"
    assert surest(guess, truth, 2) == [0, 1]


def test_curves_are_drawn_on_logarithms() -> None:
    chart = log_roc({"x": Curve([0.0, 0.0, 0.01, 1.0], [0.0, 0.1, 0.5, 1.0])}, "f")
    line = chart.series[1]
    assert line.x[0] == -3.0
    assert line.y[0] == -1.0
    assert by_size({"a": [(20, 0.6), (10, 0.7)]}, "t", "AUC", 0.5, "f").series[0].x == [10.0, 20.0]
