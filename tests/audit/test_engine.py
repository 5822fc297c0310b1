"""The audit's engine on a family whose results are known."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from tests.audit.toy import FAMILY, Toy, noise, subject

from coterie.audit import engine, gate, work
from coterie.audit.case import Subject, label
from coterie.audit.engine import audit
from coterie.audit.evidence import Claimed, Evidence
from coterie.audit.frontier import frontier, mark_dominated
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome
from coterie.measure.findings import AuditResult, Check, ClaimVerdict, Defended, FrontierPoint, Measured
from coterie.report.html import render
from coterie.run.jobs import JobFailed


@pytest.fixture(autouse=True)
def only_the_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda: [FAMILY])
    monkeypatch.setattr(engine, "find", lambda name: FAMILY)
    monkeypatch.setattr(work, "find", lambda name: FAMILY)


def run(folder: Path, **values: object) -> AuditResult:
    return audit(subject(**values), folder, processes=1)


def test_each_defence_is_scored_with_an_interval_over_seeds(tmp_path: Path) -> None:
    result = run(tmp_path)
    real = [leak for leak in result.leaks if not leak.control]
    assert [leak.defence for leak in real] == ["none", "noise (strength 1)", "noise (strength 4)"]
    first = real[0].score
    assert first.value == pytest.approx(0.91)  # the mean of 0.90, 0.91 and 0.92
    # Student's t with two degrees of freedom: 4.303 * 0.01 / sqrt(3)
    assert (first.high - first.value) == pytest.approx(4.3027 * 0.01 / math.sqrt(3), rel=1e-4)
    assert real[0].verdict == "leaks"
    assert real[0].leakage == pytest.approx(0.82)


def test_a_control_is_not_called_a_leak(tmp_path: Path) -> None:
    controls = [leak for leak in run(tmp_path).leaks if leak.control]
    assert {leak.verdict for leak in controls} == {"no leak found"}
    assert all("nothing to find" in leak.sentence for leak in controls)


def test_costs_and_claims_come_with_each_defence(tmp_path: Path) -> None:
    none, weak, strong = run(tmp_path).defended
    assert none.claim is None
    assert weak.utility.value == pytest.approx(0.90)
    assert strong.seconds == pytest.approx(0.5)
    assert weak.claim is not None
    assert weak.claim.epsilon == 10.0
    assert weak.claim.lower_bound == pytest.approx(0.2)  # the largest over the seeds


def test_the_gate_judges_the_configured_defence(tmp_path: Path) -> None:
    limits = {"max_toy_auc": 0.72, "min_accuracy": 0.85, "max_epsilon": 3.0}
    result = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits=limits)
    assert {check.limit: check.passed for check in result.checks} == {
        "max_toy_auc = 0.72": True,
        "min_accuracy = 0.85": True,
        "max_epsilon = 3": False,
    }
    assert not result.passed
    assert "breaks the limit of at most 3" in result.checks[2].reason


def test_a_limit_that_nothing_measured_is_broken(tmp_path: Path) -> None:
    (check,) = run(tmp_path, limits={"max_epsilon": 3.0}).checks
    assert not check.passed
    assert "nothing measured it" in check.reason


def test_an_unknown_limit_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"limit 'max_toy_acu' is unknown; did you mean 'max_toy_auc'"):
        run(tmp_path, limits={"max_toy_acu": 0.6})


def test_a_family_that_does_not_fit_is_left_out_with_a_reason(tmp_path: Path) -> None:
    result = run(tmp_path, model={"kind": "cnn"})
    assert result.left_out == {"toy": "needs fcnn"}
    assert result.leaks == []


def test_the_result_is_strict_json(tmp_path: Path) -> None:
    text = run(tmp_path, limits={"max_epsilon": 3.0}).to_json()
    assert json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["title"]


def test_roc_curves_run_from_corner_to_corner(tmp_path: Path) -> None:
    roc = run(tmp_path).leaks[0].roc
    assert roc is not None
    assert (roc[0][0], roc[1][0], roc[0][-1], roc[1][-1]) == (0.0, 0.0, 1.0, 1.0)


def test_the_frontier_recommends_the_weakest_that_meets_the_limits(tmp_path: Path) -> None:
    (found,) = frontier(subject(limits={"max_toy_auc": 0.72, "min_accuracy": 0.8}), [FAMILY], tmp_path)
    chosen = [(point.defence, point.setting, point.note) for point in found.points if point.recommended]
    assert chosen == [("noise", "noise (strength 1)", "strength 1")]
    assert found.recommendation == "Toy: noise (strength 1) is the weakest setting that meets the limits."
    assert found.title == "toy: leakage (AUC) against accuracy"
    (none,) = frontier(subject(limits={"max_toy_auc": 0.55, "min_accuracy": 0.9}), [FAMILY], tmp_path)
    assert not any(point.recommended for point in none.points)
    assert "Toy: no setting meets the limits" in none.recommendation


def test_a_dominated_setting_is_worse_in_one_and_better_in_none() -> None:
    def at(leak: float, use: float) -> FrontierPoint:
        return FrontierPoint("d", 1.0, Measured(leak), Measured(use), 0.0)

    marked = mark_dominated([at(0.9, 0.95), at(0.6, 0.9), at(0.6, 0.8), at(0.7, 0.85), at(0.5, 0.5)])
    assert [point.dominated for point in marked] == [False, False, True, True, False]


def test_known_limits_follow_from_the_families() -> None:
    assert gate.known_limits([FAMILY]) == ["max_toy_auc", "max_epsilon", "min_accuracy"]


def test_options_make_the_label() -> None:
    assert label(noise(1.0)) == "noise (strength 1)"


def test_accuracy_and_leakage_are_drawn_over_rounds(tmp_path: Path) -> None:
    accuracy, leakage = run(tmp_path).charts  # the control noted nothing on the way
    assert [series.name for series in accuracy.series] == ["none", "noise (strength 1)", "noise (strength 4)"]
    assert accuracy.series[0].x == [0.0, 5.0]
    assert accuracy.series[0].y == pytest.approx([0.1, 0.95])  # the mean of 0, 0.1 and 0.2; the same for all seeds
    assert accuracy.series[0].low[0] == 0.0  # 0.1 less 4.303 * 0.1 / sqrt(3) is no accuracy
    assert leakage.title == "Leakage to a curious server: guess"
    assert leakage.reference == ("chance", 0.5)
    assert leakage.series[1].y == pytest.approx([0.5, 0.71])


def test_an_interval_stays_within_what_a_score_can_be(tmp_path: Path) -> None:
    assert engine.measured([0.9, 1.0]).high > 1
    assert engine.measured([0.9, 1.0], 0.0, 1.0).high == 1
    assert engine.measured([0.0, 0.1], 0.0, 1.0).low == 0
    assert math.isnan(engine.measured([0.9], 0.0, 1.0).low)


def test_an_epsilon_that_follows_from_nothing_meets_no_limit() -> None:
    stated = Claimed("stated", 1.0, 0.0, "record", "nobody", "not refuted", ["none"], proven=False)
    evidence = Evidence([], "accuracy", 0.9, 0.1, 1.0, 1.0, stated)
    (check,) = gate.checks(subject(limits={"max_epsilon": 3.0}), [(FAMILY, [evidence])])
    assert not check.passed
    assert "no formal guarantee" in check.reason
    (check,) = gate.checks(
        subject(limits={"max_epsilon": 3.0}), [(FAMILY, [replace(evidence, claim=replace(stated, proven=True))])]
    )
    assert check.passed


def test_results_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    run(tmp_path)
    kept = set(tmp_path.rglob("*.json"))
    run(tmp_path, limits={"max_epsilon": 3.0})  # judged anew, not run anew
    assert set(tmp_path.rglob("*.json")) == kept
    run(tmp_path, trainer={"kind": "fedavg"})
    assert len(set(tmp_path.rglob("*.json"))) == 2 * len(kept)


def test_an_edited_data_file_is_another_audit(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_text("a,b\n1,2\n")
    asked = subject(data={"kind": "table", "path": str(data), "label": "b"})
    before = asked.fingerprint
    assert before == asked.fingerprint
    data.write_text("a,b\n1,2\n3,4\n")
    assert asked.fingerprint != before


@pytest.mark.parametrize(("count", "words"), [(1, "1 claim of privacy is"), (2, "2 claims of privacy are")])
def test_the_headline_counts_in_words(count: int, words: str) -> None:
    claim = ClaimVerdict("c", 1.0, 0.0, "record", "nobody", 2.0, Outcome.VIOLATED, ["x"])
    row = Defended("f", "d", "accuracy", Measured(0.9), 1.0, 1.0, 1.0, claim)
    check = Check("max_epsilon = 1", 2.0, False, "broken")
    result = AuditResult("t", {}, [], [row] * count, checks=[check] * count)
    assert words in result.headline
    assert result.headline.endswith("1 of 1 limit is broken." if count == 1 else "2 of 2 limits are broken.")


def test_a_control_that_finds_something_is_in_the_headline(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert "control" not in result.headline
    fooled = [replace(leak, score=Measured(0.8, 0.7, 0.9)) if leak.control else leak for leak in result.leaks]
    assert (
        "A control finds what is not there (toy): those scores prove nothing." in replace(result, leaks=fooled).headline
    )


def test_a_choice_reads_like_words() -> None:
    choice = Choice.model_validate(
        {
            "kind": "ifca",
            "clusters": 4,
            "exact": True,
            "poisson": False,
            "local": {"steps": 3, "lr": 0.1},
            "mix": [1, 2],
        }
    )
    assert label(choice) == "IFCA (clusters 4, exact, no poisson, local (steps 3, lr 0.1), mix (1 2))"


class Picky(Toy):
    """Does not go with strong noise, and warns of weak."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        strength = defence.options.get("strength", 0.0)
        if strength > 3:
            raise InvalidInput(f"strength={strength} is too much for this federation")
        if strength:
            warnings.warn(f"strength={strength} is little", UserWarning, stacklevel=1)
        if subject.model.options.get("hidden") == 0:
            raise InvalidInput("hidden=0 cannot be trained")
        return super().measure(subject, defence, seed)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda: [Picky()])
    for module in (engine, work):
        monkeypatch.setattr(module, "find", lambda name: Picky())


@pytest.mark.usefixtures("picky")
def test_a_defence_that_does_not_fit_is_left_out_and_says_so(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert [row.defence for row in result.defended] == ["none", "noise (strength 1)"]
    assert result.left_out == {"toy under noise (strength 4)": "strength=4.0 is too much for this federation"}
    assert result.warned == {"toy under noise (strength 1)": "UserWarning: strength=1.0 is little"}
    page = render(result)
    assert "is too much for this federation" in page
    assert "Warnings on the way" in page


@pytest.mark.usefixtures("picky")
def test_what_the_user_named_is_not_left_out_in_silence(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"strength=4\.0 is too much"):
        run(tmp_path, defence={"kind": "noise", "strength": 4.0})
    with pytest.raises(JobFailed, match="hidden=0 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 0}, audit={"families": ["toy"]})


@pytest.mark.usefixtures("picky")
def test_an_audit_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no attack could be run: toy: hidden=0 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 0})


@pytest.mark.usefixtures("picky")
def test_the_frontier_goes_without_settings_that_do_not_fit(tmp_path: Path) -> None:
    (found,) = frontier(subject(), [Picky()], tmp_path)
    assert [point.note for point in found.points] == ["", "strength 0.5", "strength 1"]
