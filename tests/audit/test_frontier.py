"""The frontier: what each setting of a defence costs, and which one is recommended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.toy import FAMILY, PLAIN, Toy, noise, run, subject

from coterie.audit import engine, work
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.frontier import beside, frontier, mark_dominated
from coterie.audit.toml import document
from coterie.commands import auditing
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import Defended, FrontierPoint
from coterie.measure.intervals import Interval
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.wire.view import ThreatModel

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


def test_a_claim_that_another_test_refutes_is_recommended_nowhere(tmp_path: Path) -> None:
    asked = subject(limits={"max_toy_auc": 0.75, "max_epsilon": 3.0})
    guarantee = Guarantee(2.5, 1e-5, Level.RECORD, Trust.TRUSTED_AGGREGATOR)
    promise = Promise(guarantee, 4.0, Outcome.VIOLATED, ["measured elsewhere"])
    row = Defended("canaries", "noise (strength 4)", "accuracy", Interval.unknown(0.8), 1.0, 1.0, 1.0, promise)
    (swept,) = frontier(asked, [FAMILY], tmp_path, known=[row])
    assert [point.passes for point in swept.points] == [False] * 4
    (other,) = frontier(asked, [FAMILY], tmp_path, known=[replace(row, defence="another")])
    assert [point.passes for point in other.points] == [False, False, False, True]


class Flaky(Toy):
    """It breaks where its weakest defence is on."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        if defence == noise(0.5):
            raise RuntimeError("broke here")
        return super().measure(subject, defence, seed)


def test_a_setting_under_which_an_attack_breaks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strength 0.5 might have met the limits: nobody knows, and nothing passes for it."""
    flaky, limits = Flaky(), {"max_toy_auc": 0.75}
    monkeypatch.setattr(work, "find", lambda name, named=(): flaky)
    monkeypatch.setattr(engine, "all_families", lambda named=(): [flaky])
    result = run(tmp_path, defence={"kind": "noise", "strength": 4.0}, limits=limits)
    assert result.passed
    found = frontier(subject(limits=limits), [flaky], tmp_path)
    (swept,) = found
    assert [point.setting for point in swept.points] == ["none", "noise (strength 1)", "noise (strength 4)"]
    assert [(str(one), one.failed) for one in swept.left_out] == [("toy under noise (strength 0.5)", True)]
    assert swept.recommendation == (
        "Toy: noise (strength 1) is the weakest setting that was measured and meets the limits. The attack broke under "
        "noise (strength 0.5): what it would have found there, nobody knows."
    )
    both = beside(result, found)
    assert not both.passed
    assert 'errors="1"' in junit_xml(both)
    assert "1 attack broke" in both.headline
    assert re.search(r"noise \(strength 0.5\)</th>.*?broke.*?broke here", render(both), re.DOTALL)
    assert beside(both, found).left_out == both.left_out


class Reader(Toy):
    """It reads the reference run, and has nothing to sweep unless it is told."""

    limit = "reader_auc"

    def __init__(self, name: str, *swept: float) -> None:
        self.name, self.swept = name, swept  # type: ignore[misc]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return [ThreatModel("curious server", server=True)]

    def read(self, run: Any) -> Evidence:
        return super().measure(run.subject, run.defence, run.seed)

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [(noise(strength), strength) for strength in self.swept]


def test_audit_and_frontier_take_each_others_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frontier has fewer readers of the reference run than the audit, or others, and it is the same run."""
    families = {one.name: one for one in (FAMILY, Reader("reader"), Reader("sweeper", 1.0, 2.0))}
    monkeypatch.setattr(work, "find", lambda name, named=(): families[name])
    monkeypatch.setattr(engine, "all_families", lambda named=(): list(families.values()))
    said: list[str] = []

    def tell(done: int, total: int, key: str) -> None:
        said.append(key)

    def kept() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}

    asked = subject(audit={"seeds": 1})
    engine.audit(asked, tmp_path, processes=1)
    before = kept()
    frontier(asked, list(families.values()), tmp_path, progress=tell)
    assert before.items() <= kept().items()
    before = kept()
    engine.audit(asked, tmp_path, processes=1, progress=tell)
    frontier(asked, list(families.values()), tmp_path, progress=tell)
    assert kept() == before
    assert not any("made anew" in one for one in said)


def test_a_fresh_frontier_takes_nothing_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what the audit runs nor what is swept besides; and the sweep takes what the audit has just made."""
    sweeper = Reader("sweeper", 2.0)
    monkeypatch.setattr(work, "find", lambda name, named=(): sweeper)
    monkeypatch.setattr(engine, "all_families", lambda named=(): [sweeper])
    path = tmp_path / "f.toml"
    path.write_text(document({"name": "f", **PLAIN, "audit": {"seeds": 1}}))

    def made() -> dict[Path, int]:
        auditing.run_audit(path, tmp_path, with_frontier=True, wanted=auditing.Wanted(fresh=bool(before)))
        return {one: one.stat().st_mtime_ns for one in (tmp_path / "f/jobs").rglob("*.json")}

    before: dict[Path, int] = {}
    before = made()
    after = made()
    assert before.keys() == after.keys()
    assert all(after[one] > before[one] for one in before)


def test_where_nothing_can_be_swept_it_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever would have a defence to sweep is named, with why it has no place."""
    monkeypatch.setattr(engine, "all_families", lambda named=(): [Reader("reader"), Reader("sweeper", 1.0)])
    monkeypatch.setattr("coterie.audit.frontier.all_families", lambda named=(): [Reader("sweeper", 1.0)])
    monkeypatch.setattr(Reader, "admits", lambda self, _: "needs a property" if self.swept else "")
    monkeypatch.setattr(auditing, "subject_of", lambda path: subject())
    words = r"\['reader'\] have no defence .*; sweeper, which has one, is left out: needs a property; `coterie audit`"
    with pytest.raises(InvalidInput, match=words):
        auditing.run_audit(None, tmp_path, with_frontier=True)
    assert list(tmp_path.iterdir()) == []


class Stressed(Toy):
    def differs(self, subject: Subject) -> str:
        return "of another federation"


def test_a_stress_test_is_recommended_by_the_limit_that_names_it(tmp_path: Path) -> None:
    (swept,) = frontier(subject(limits={"max_toy_auc": 0.75}), [Stressed()], tmp_path)
    assert "no limit is set on it; stress.max_toy_auc would give a recommendation" in swept.recommendation
    (swept,) = frontier(subject(limits={"stress.max_toy_auc": 0.75}), [Stressed()], tmp_path)
    assert "noise (strength 1) is the weakest setting that meets the limits" in swept.recommendation


def test_who_always_errs_dominates_nobody() -> None:
    points = [
        FrontierPoint("d", 1.0, Interval.unknown(leak), Interval.unknown(0.9), 0.0, setting=str(leak))
        for leak in (0.02, 0.6)
    ]
    assert [point.dominated for point in mark_dominated(points, turns=True)] == [True, False]


def test_a_dominated_setting_is_worse_in_one_and_better_in_none() -> None:
    def at(leak: float, use: float) -> FrontierPoint:
        return FrontierPoint("d", 1.0, Interval.unknown(leak), Interval.unknown(use), 0.0)

    marked = mark_dominated([at(0.9, 0.95), at(0.6, 0.9), at(0.6, 0.8), at(0.7, 0.85), at(0.5, 0.5)])
    assert [point.dominated for point in marked] == [False, False, True, True, False]
