"""The audit's engine on a family whose results are known."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.toy import UNITS, Noise, Toy, found, noise, run, subject

from coterie.audit import engine, work
from coterie.audit.case import Subject, label
from coterie.audit.evidence import Evidence
from coterie.audit.frontier import frontier
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.flow.protocol import Protocol
from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import AuditResult, Check, Defended, LeftOut, Limit
from coterie.measure.intervals import Interval, Sample, proportion
from coterie.measure.verdicts import Verdict
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.protocols.clusterings.kfed import KFed
from coterie.report.html import render
from coterie.run.fingerprint import forget, leans_on
from coterie.run.jobs import JobFailed

pytestmark = pytest.mark.usefixtures("only_the_toy")


def test_each_defence_is_scored_with_an_interval_over_all_units(tmp_path: Path) -> None:
    result = run(tmp_path)
    real = [one for one in result.findings if not one.control]
    assert [one.defence for one in real] == ["none", "noise (strength 1)", "noise (strength 4)"]
    first = real[0]
    assert first.score == pytest.approx(0.91)  # the mean of 0.90, 0.91 and 0.92
    assert (first.units, first.seeds) == (3 * UNITS, 3)
    # phi = 1000 * 0.0001 / 0.0819 = 1.221, so the units are worth 3000 / (1 + 0.221 * (3.182 / 1.960)^2) = 1896
    assert first.interval.ends == pytest.approx((0.8962, 0.9225), abs=1e-4)
    assert first.verdict is Verdict.LEAKS
    assert first.leakage == pytest.approx(0.82)


def test_a_control_is_not_called_a_leak(tmp_path: Path) -> None:
    controls = [one for one in run(tmp_path).findings if one.control]
    assert {one.verdict for one in controls} == {Verdict.BOUNDED}
    assert all("nothing to find" in one.sentence for one in controls)


def test_costs_and_claims_come_with_each_defence(tmp_path: Path) -> None:
    none, weak, strong = run(tmp_path).defended
    assert none.promise is None
    assert weak.utility.estimate == pytest.approx(0.90)
    assert strong.seconds == pytest.approx(0.5)
    assert weak.promise is not None
    assert weak.promise.epsilon == 10.0
    assert weak.promise.lower_bound == pytest.approx(0.2)  # the largest over the seeds
    assert weak.promise.evidence == ("seed 2",)  # and that seed's own evidence


class OneRun(Toy):
    """Twenty units, all of them right; or what the strength of the defence says."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        return replace(super().measure(subject, defence, seed), findings=[found(1.0, units=20)])


def only(family: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda named=(): [family])
    for module in (engine, work):
        monkeypatch.setattr(module, "find", lambda name, named=(): family)


def test_one_seed_in_which_all_is_told_is_a_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(OneRun(), monkeypatch)
    result = run(tmp_path, audit={"seeds": 1})
    assert result.findings[0].interval == proportion(20, 20)
    assert result.headline == "As configured, without a defence, this federation leaks to 1 kind of attack (toy)."


def test_a_family_that_does_not_fit_is_left_out_with_a_reason(tmp_path: Path) -> None:
    result = run(tmp_path, trainer={"kind": "fedavg"})
    assert result.left_out == [LeftOut("toy", "needs ifca")]
    assert result.findings == []


def test_the_result_is_strict_json(tmp_path: Path) -> None:
    text = run(tmp_path, limits={"max_epsilon": 3.0}).to_json()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert values["findings"][0]["decision"]["verdict"] == "leaks"
    assert values["headline"].startswith("As configured, without a defence, this federation leaks")
    assert values["checks"][0]["measured"]["estimate"] == "inf"


def test_the_curve_over_seeds_has_the_score_as_its_area(tmp_path: Path) -> None:
    first = run(tmp_path).findings[0]
    assert first.roc is not None
    assert (first.roc.false[0], first.roc.true[0], first.roc.false[-1], first.roc.true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert first.roc.area == pytest.approx(first.score, abs=1e-12)


def test_options_make_the_label() -> None:
    assert label(noise(1.0)) == "noise (strength 1)"
    assert label(noise(1.0000001)) == "noise (strength 1.0000001)"  # another defence, whose claims are its own


def test_accuracy_and_leakage_are_drawn_over_rounds(tmp_path: Path) -> None:
    accuracy, leakage = run(tmp_path).charts  # the control noted nothing on the way
    assert [series.name for series in accuracy.series] == ["none", "noise (strength 1)", "noise (strength 4)"]
    assert accuracy.series[0].x == [0.0, 5.0]
    assert accuracy.series[0].y == pytest.approx([0.1, 0.95])  # the mean of 0, 0.1 and 0.2; the same for all seeds
    assert accuracy.series[0].low[0] == 0.0  # 0.1 less 4.303 * 0.1 / sqrt(3) is no accuracy
    assert leakage.title == "Leakage to a curious server: guess"
    assert leakage.reference == ("chance", 0.5)
    assert leakage.series[1].y == pytest.approx([0.5, 0.71])


class Choosy(Noise):
    def fits(self, protocol: Protocol[Any]) -> str:
        return "" if protocol.trains else "it needs gradients"


class Untrained(Toy):
    """Runs a clustering, whatever is configured."""

    def protocol(self, subject: Subject) -> Protocol[Any]:
        return KFed(2)


def test_a_defence_with_no_place_in_a_family_is_a_row_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(Untrained(), monkeypatch)
    monkeypatch.setitem(registry.DEFENCES, "noise", "tests.audit.test_engine:Choosy")
    result = run(tmp_path, defence={"kind": "noise", "strength": 1.0}, limits={"max_toy_auc": 0.75})
    assert result.left_out == [LeftOut("toy", "it needs gradients", f"noise (strength {size})") for size in (1, 4)]
    assert "2 combinations were left out: noise (strength 1) in toy; noise (strength 4) in toy." in result.headline
    assert [row.defence for row in result.as_configured] == ["none", "noise (strength 1)"]
    assert not result.passed  # the undefended family is what is left to judge by
    assert json.loads(result.to_json())["left_out"][0] == {
        "family": "toy",
        "reason": "it needs gradients",
        "defence": "noise (strength 1)",
        "failed": False,
    }
    assert render(result).count("it needs gradients") == 2


def test_a_defence_that_cannot_be_launched_stops_the_audit_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noise, "fits", lambda self, protocol: "it has no place")
    with pytest.raises(InvalidInput, match=r"defence 'noise' does not fit trainer 'ifca': it has no place; change"):
        run(tmp_path, defence={"kind": "noise", "strength": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_attacks_that_were_set_otherwise_are_named(tmp_path: Path) -> None:
    """A report of attacks that hardly tried must not look like one of attacks that did."""
    assert "attacks set otherwise" not in run(tmp_path).subject
    weak = run(tmp_path, audit={"canaries": {"count": 10}, "gradient_inversion": {"iterations": 1}}).subject
    assert weak["attacks set otherwise"] == "gradient inversion (iterations 1), canaries (count 10)"


def test_the_report_says_who_the_clients_are_and_what_is_asked_about(tmp_path: Path) -> None:
    """A question about a property can be judged by who knows which."""
    assert run(tmp_path).subject["clients"].startswith(f"{subject().examples().name}: {subject().federation().clients}")
    data = {"kind": "table", "path": "x.csv", "label": "y", "above": {"age": 52.0}}
    for name, words in {"hand": "hand is left", "age": "age above 52"}.items():
        asked = {"tag": name, "value": "left" if name == "hand" else 1}
        assert subject(data=data, audit={"property": asked}).asked == words
    assert subject().asked == ""


def test_results_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    run(tmp_path)
    kept = set(tmp_path.rglob("*.json"))
    run(tmp_path, limits={"max_epsilon": 3.0})  # judged anew, not run anew
    assert set(tmp_path.rglob("*.json")) == kept
    run(tmp_path, seed=5)
    assert len(set(tmp_path.rglob("*.json"))) == 2 * len(kept)


def test_an_edited_data_file_is_another_audit(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_text("a,b\n1,2\n")
    asked = subject(data={"kind": "table", "path": str(data), "label": "b"})
    before = asked.fingerprint
    assert before == asked.fingerprint
    data.write_text("a,b\n1,2\n3,4\n")
    assert asked.fingerprint != before
    before, then = asked.fingerprint, data.stat()
    data.write_text("a,b\n1,2\n3,5\n")
    os.utime(data, ns=(then.st_atime_ns, then.st_mtime_ns))  # as a copy that keeps times would
    assert data.stat().st_size == then.st_size
    assert asked.fingerprint != before


def test_an_edited_public_file_is_another_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("own.csv", "public.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    tables = {"data": "own.csv", "public": str(tmp_path / "public.csv")}
    said = {
        name: {"kind": "table", "label": "b", "folder": str(tmp_path), "path": path} for name, path in tables.items()
    }
    said["data"] = {"kind": "table", "label": "b", "path": "~/own.csv"}
    asked, seen = subject(**said), set[str]()
    for turn, name in enumerate(("own.csv", "public.csv", "own.csv", "public.csv")):
        (tmp_path / name).write_text(f"a,b\n1,{turn}\n")
        seen.add(asked.fingerprint)
    assert len(seen) == 4


@pytest.mark.parametrize("named", [True, False])  # or the folder is the environment's
def test_a_data_set_in_a_folder_is_known_by_its_files(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = subject().fingerprint
    monkeypatch.setenv("COTERIE_DATA", "" if named else str(tmp_path))
    asked = subject(data={"kind": "texas100", **({"folder": str(tmp_path)} if named else {})})
    before = asked.fingerprint
    (tmp_path / "runs").mkdir()
    for name in ("gate.xml", "runs/result"):
        (tmp_path / name).write_text("ours")  # which is none of it
    assert asked.fingerprint == before
    for place in ("texas100", "texas/100"):  # wherever it is looked for
        before = asked.fingerprint
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "texas100.npz").write_bytes(b"1")
        assert asked.fingerprint != before
    assert subject().fingerprint == embedded  # which reads no folder


def test_a_run_to_begin_with_is_known_by_its_models(tmp_path: Path) -> None:
    asked = subject(trainer={"kind": "fedavg", "begins": {"run": str(tmp_path)}})
    (tmp_path / "models.npz").write_bytes(b"1")
    before = asked.fingerprint
    (tmp_path / "models.npz").write_bytes(b"2")
    assert asked.fingerprint != before


def test_a_model_is_known_by_its_code_and_by_what_that_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "layers_of_mine.py").write_text("WIDTH = 4\n")
    (tmp_path / "net_of_mine.py").write_text(
        "from torch import nn\nfrom layers_of_mine import WIDTH\nclass Net(nn.Sequential): ...\n"
    )
    asked = subject(model={"kind": "net_of_mine:Net"})
    before = asked.fingerprint
    (tmp_path / "layers_of_mine.py").write_text("WIDTH = 8\n")
    forget()
    assert asked.fingerprint != before


@pytest.mark.parametrize("place", ["beside/parts_of_mine", "elsewhere"])
def test_what_is_imported_from_a_plain_folder_or_from_elsewhere_counts(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder without an ``__init__``, and from another one on the path; nothing that is installed does."""
    for name in ("beside/parts_of_mine", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "widths_of_mine.py").write_text("WIDTH = 4\n")
        monkeypatch.syspath_prepend(str(tmp_path / name.partition("/")[0]))
    module = "parts_of_mine.widths_of_mine" if "/" in place else "widths_of_mine"
    text = f"import numpy\nfrom torch import nn\nfrom {module} import WIDTH\nclass Net(nn.Sequential): ...\n"
    net = f"net_of_{place[:6]}"
    (tmp_path / "beside" / f"{net}.py").write_text(text)
    asked = subject(model={"kind": f"{net}:Net"})
    before = asked.fingerprint
    assert leans_on(net) == {net, module}
    (tmp_path / place / "widths_of_mine.py").write_text("WIDTH = 8\n")
    forget()
    assert asked.fingerprint != before


@pytest.mark.parametrize(("count", "words"), [(1, "1 claim of privacy is"), (2, "2 claims of privacy are")])
def test_the_headline_counts_in_words(count: int, words: str) -> None:
    promise = Promise(Guarantee(1.0, 0.0, Level.RECORD, Trust.LOCAL_NOISE), 2.0, Outcome.VIOLATED, ["x"])
    row = Defended("f", "d", "accuracy", Interval.unknown(0.9), 1.0, 1.0, 1.0, promise)
    check = Check(Limit("max_epsilon", 1), Interval(2.0, 2.0, 2.0), False, "broken")
    rows = [replace(row, defence=f"d{number}") for number in range(count) for _ in range(2)]  # each in two families
    result = AuditResult("t", {}, [], rows, checks=[check] * count)
    assert words in result.headline
    assert result.headline.endswith("1 of 1 limit is broken." if count == 1 else "2 of 2 limits are broken.")


def test_a_control_that_finds_something_is_in_the_headline(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert "control" not in result.headline
    runs, interval = (Sample.share(80, 100),) * len(result.findings[0].runs), proportion(80, 100)
    fooled = [
        replace(one, interval=interval, runs=runs) if one.control else replace(one, control_runs=runs)
        for one in result.findings
    ]
    headline = replace(result, findings=fooled).headline
    assert "A control finds what is not there (toy: " in headline
    assert "scored there proves nothing." in headline


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
    assert label(choice) == "IFCA (clusters 4, exact, no poisson, local (steps 3, lr 0.1), mix (1, 2))"
    stack = {"kind": "stack", "members": [{"kind": "dpsgd", "clip": 1.0}, {"kind": "robust"}]}
    assert label(Choice.model_validate(stack)) == "stack (members (DP-SGD (clip 1) + robust))"


class Picky(Toy):
    """Does not go with strong noise, and warns of weak."""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        strength = defence.options.get("strength", 0.0)
        if strength > 3:
            raise InvalidInput(f"strength={strength} is too much for this federation")
        if strength:
            warnings.warn(f"strength={strength} is little", UserWarning, stacklevel=1)
        if subject.model.options.get("hidden") == 5:
            raise InvalidInput("hidden=5 cannot be trained")
        return super().measure(subject, defence, seed)


@pytest.fixture
def picky(only_the_toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    only(Picky(), monkeypatch)


@pytest.mark.usefixtures("picky")
def test_a_defence_that_does_not_fit_is_left_out_and_says_so(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert [row.defence for row in result.defended] == ["none", "noise (strength 1)"]
    why = "strength=4.0 is too much for this federation"
    assert result.left_out == [LeftOut("toy", why, "noise (strength 4)")]
    assert result.headline.endswith("1 combination was left out: noise (strength 4) in toy.")
    assert result.warned == {"toy under noise (strength 1)": "UserWarning: strength=1.0 is little"}
    page = render(result)
    assert all(words in page for words in ("is too much for this federation", "Warnings on the way"))


@pytest.mark.usefixtures("picky")
def test_what_the_user_named_is_not_left_out_in_silence(tmp_path: Path) -> None:
    result = run(tmp_path, defence={"kind": "noise", "strength": 4.0}, limits={"max_toy_auc": 0.99})
    assert "1 combination was left out: noise (strength 4) in toy." in result.headline
    assert "nothing measured it" in result.checks[0].reason
    with pytest.raises(JobFailed, match="hidden=5 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 5}, audit={"families": ["toy"]})


def test_what_was_asked_for_by_name_and_has_no_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="family 'toy', which was asked for, has no place here: needs ifca"):
        run(tmp_path, trainer={"kind": "fedavg"}, audit={"families": ["toy"]})
    assert not list(tmp_path.iterdir())


def test_trainers_that_were_not_audited_are_named(tmp_path: Path) -> None:
    result = run(tmp_path, trainer=[{"kind": "ifca"}, {"kind": "fedavg", "rounds": 3}])
    assert result.subject["trainer"] == "IFCA"
    ((what, why),) = result.warned.items()
    assert what == "trainer: FedAvg (rounds 3)"
    assert why == "not audited, as it is not the first; what is said here is of IFCA alone"


@pytest.mark.usefixtures("picky")
def test_an_audit_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no attack could be run: toy: hidden=5 cannot be trained"):
        run(tmp_path, model={"kind": "fcnn", "hidden": 5})


@pytest.mark.usefixtures("picky")
def test_the_frontier_goes_without_settings_that_do_not_fit(tmp_path: Path) -> None:
    notes = [point.note for swept in frontier(subject(), [Picky()], tmp_path) for point in swept.points]
    assert notes == ["", "strength 0.5", "strength 1"]
