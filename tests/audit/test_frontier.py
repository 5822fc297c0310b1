"""The frontier: what each setting of a defence costs, and which one is recommended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.audit.toy import FAMILY, run, subject

from coterie.audit.frontier import frontier, mark_dominated
from coterie.measure.findings import FrontierPoint
from coterie.measure.intervals import Interval

pytestmark = pytest.mark.usefixtures("only_the_toy")


def test_the_frontier_recommends_the_weakest_that_meets_the_limits(tmp_path: Path) -> None:
    (swept,) = frontier(subject(limits={"max_toy_auc": 0.75, "min_accuracy": 0.8}), [FAMILY], tmp_path)
    chosen = [(point.defence, point.setting, point.note) for point in swept.points if point.recommended]
    assert chosen == [("noise", "noise (strength 1)", "strength 1")]
    assert swept.recommendation == "Toy: noise (strength 1) is the weakest setting that meets the limits."
    assert swept.title == "toy: leakage (AUC) against accuracy"
    (none,) = frontier(subject(limits={"max_toy_auc": 0.55, "min_accuracy": 0.9}), [FAMILY], tmp_path)
    assert not any(point.recommended for point in none.points)
    assert "Toy: no setting meets the limits" in none.recommendation


def test_the_frontier_recommends_nothing_that_the_gate_would_stop(tmp_path: Path) -> None:
    """Strength 1 leaks little enough, and its epsilon of 10 is forbidden."""
    limits = {"max_toy_auc": 0.75, "max_epsilon": 3.0}
    (swept,) = frontier(subject(limits=limits), [FAMILY], tmp_path)
    (chosen,) = [point for point in swept.points if point.recommended]
    assert chosen.setting == "noise (strength 4)"
    assert [point.passes for point in swept.points] == [False, False, False, True]
    assert run(tmp_path, defence={"kind": "noise", "strength": 4.0}, limits=limits).passed
    assert not run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits=limits).passed
    (other,) = frontier(subject(limits={**limits, "max_property_auc": 0.6}), [FAMILY], tmp_path)
    assert "meets the limits (not measured here: max_property_auc; an audit with it decides)." in other.recommendation
    (silent,) = frontier(subject(), [FAMILY], tmp_path)
    assert {point.passes for point in silent.points} == {None}


def test_a_dominated_setting_is_worse_in_one_and_better_in_none() -> None:
    def at(leak: float, use: float) -> FrontierPoint:
        return FrontierPoint("d", 1.0, Interval.unknown(leak), Interval.unknown(use), 0.0)

    marked = mark_dominated([at(0.9, 0.95), at(0.6, 0.9), at(0.6, 0.8), at(0.7, 0.85), at(0.5, 0.5)])
    assert [point.dominated for point in marked] == [False, False, True, True, False]
