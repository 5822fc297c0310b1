"""`coterie.audit(...)` of objects, and attacks of one's own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audit.test_families import coterie as command
from torch import nn

import coterie
from coterie.audit import plugins, work
from coterie.audit.case import label, parse
from coterie.audit.objects import Handed, words_for
from coterie.audit.toml import document
from coterie.audits import Audit, audit
from coterie.config import registry
from coterie.data.federation import Examples
from coterie.errors import DataMissing, InvalidInput
from coterie.learn.models.bundled import fcnn
from coterie.learn.models.model import as_model
from coterie.measure.verdicts import Verdict
from coterie.rng import Rng
from coterie.run import fingerprint
from coterie.run.training import train

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "label_census.py"
LOCAL = coterie.Local(steps=2, batch_size=8, lr=0.1)


def federation() -> coterie.Federation:
    """Four kinds of points, each client with two of them."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    x = torch.eye(4)[y] * 2 + torch.randn(400, 4, generator=draws)
    return coterie.LabelSets(8, 2).split(Examples(x, y, 4, "points"), Rng.seeded(0))


def test_objects_are_audited_as_they_are(tmp_path: Path) -> None:
    held, ifca, model = federation(), coterie.Ifca(clusters=2, rounds=3, local=LOCAL, candidates=2), fcnn(4, 4, 8)
    told = audit(
        ifca,
        held,
        model,
        attacks=["preference profiling"],
        compare=[coterie.Dropout(0.2)],
        limits={"min_accuracy": 0.99, "max_profiling_accuracy": 0.1},
        seeds=1,
        processes=1,
    )
    assert not told.passed
    plain, dropped = [one for one in told.result.as_configured if one.defence in ("none", "dropout (rate 0.2)")]
    assert plain.utility.estimate == train(ifca, held, model, seed=0).scores.mean
    assert dropped.utility.estimate == train(ifca, held, model, seed=0, defence=coterie.Dropout(0.2)).scores.mean
    assert set(plain.baselines) == {"a constant answer", "training alone"}
    assert {one.family for one in told.result.findings} == {"preference profiling"}
    assert "Gate: failed" in told.summary()
    assert len(told.summary(80).splitlines()) <= 40
    assert told.report(tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_the_package_is_called_like_a_function() -> None:
    door: Any = coterie.audit
    with pytest.raises(InvalidInput, match="family 'profilng'"):
        door(coterie.FedAvg(rounds=1, local=LOCAL), federation(), fcnn(4, 4, 8), attacks=["profilng"])
    assert coterie.Audit is Audit


def test_objects_are_named_as_a_file_would_name_them() -> None:
    choice = words_for(coterie.DpSgd(0.5, 2.0), registry.DEFENCES)
    assert label(choice) == "DP-SGD (clip 0.5, noise multiplier 2)"
    ifca = words_for(coterie.Ifca(clusters=3, local=coterie.Local(lr=0.5)), registry.TRAINERS)
    assert (ifca.kind, ifca.options["clusters"], ifca.options["local"]) == ("ifca", 3, {"lr": 0.5})
    assert words_for(coterie.Defence(), registry.DEFENCES) == work.NONE


def test_equal_objects_have_equal_results_and_others_do_not() -> None:
    def handed(rounds: int) -> Handed:
        return Handed.of(coterie.FedAvg(rounds=rounds, local=LOCAL), federation(), fcnn(4, 4, 8), [coterie.Defence()])

    assert handed(2).fingerprint == handed(2).fingerprint != handed(3).fingerprint


def test_modules_are_known_by_what_they_do_not_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and printed words alike: heads of attention, a slope, a buffer that is not saved, a part's own source."""
    text = """
import torch
from torch import nn

class Slope(nn.Module):
    def __init__(self, slope, kept=1.0):
        super().__init__()
        self._slope = slope
        self.register_buffer("kept", torch.tensor(kept), persistent=False)

    def forward(self, x):
        return x * self._slope * self.kept
"""
    source = tmp_path / "slopes_of_mine.py"
    source.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    slope: Any = importlib.import_module("slopes_of_mine").Slope

    linear = nn.Linear(4, 4)

    def named(part: nn.Module) -> str:
        model, asked = nn.Sequential(linear, part), [coterie.Defence()]
        return Handed.of(coterie.FedAvg(rounds=1, local=LOCAL), federation(), as_model(model), asked).handed

    first = named(slope(1.0))
    assert first == named(slope(1.0))
    assert first not in (named(slope(2.0)), named(slope(1.0, kept=2.0)))
    torch.manual_seed(0)
    one = nn.MultiheadAttention(4, 1)
    two = nn.MultiheadAttention(4, 2)
    two.load_state_dict(one.state_dict())
    assert named(one) != named(two)
    source.write_text(text.replace("x * self._slope", "x + self._slope"))
    fingerprint.forget()
    assert named(slope(1.0)) != first


def test_rows_stay_with_their_clients_when_a_part_of_them_is_dealt() -> None:
    held = federation()
    subject = Handed.of(coterie.FedAvg(rounds=1, local=LOCAL), held, fcnn(4, 4, 8), [coterie.Defence()])
    rows = torch.arange(0, 400, 2)
    part = subject.dealt(held.examples, rows, 0)
    assert part.clients == held.clients
    for client in range(held.clients):
        own = torch.cat([held.train[client], held.test[client]])
        here = torch.cat([part.train[client], part.test[client]])
        assert set(here.tolist()) == set(own.tolist()) & set(rows.tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": ["profilng"]}, "family 'profilng'"),
        ({"limits": {"max_epsilom": 1.0}}, "limit 'max_epsilom'"),
        ({"seeds": 0}, "coterie.audit: audit.seeds=0"),
        ({"settings": {"canaries": {"cuont": 3}}}, "canaries.cuont"),
        ({"property": ("hat", 1)}, "'hat'"),
        ({"compare": [coterie.Dropout(0.2)] * 2}, "names one defence twice"),
        ({"defence": coterie.Mingling()}, "does not fit"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        audit(coterie.FedAvg(rounds=1, local=LOCAL), federation(), fcnn(4, 4, 8), **options)


# -- attacks of one's own --------------------------------------------------------------------------------------------


def test_the_documented_attack_finds_labels_and_its_control_does_not() -> None:
    """Under secure sums the server is left with what anybody would say."""
    assert len(EXAMPLE.read_text().splitlines()) < 150
    (census,) = plugins.load(str(EXAMPLE))
    model = coterie.FedAvg(rounds=1, local=coterie.Local(steps=4, batch_size=16, lr=0.1))
    found = audit(model, federation(), fcnn(4, 4, 8), attacks=[census], seeds=3, processes=1).result.findings
    read, others = [one for one in found if one.defence == "none"]
    sealed, _ = [one for one in found if one.defence == "secure sums"]
    assert read.verdict is Verdict.LEAKS
    assert others.control
    assert others.verdict is not Verdict.LEAKS
    assert sealed.score < read.score


OWN = """
from helper_of_{name} import SCORE
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample

class Own(Family):
    name, limit, paper, question, threat, method = "own {name}", "own_share", "none", "any?", "nobody", "a constant"

    def admits(self, subject):
        return ""

    def defences(self, subject):
        return []

    def measure(self, subject, defence, seed):
        found = Finding.of("a", "share", Sample.share(SCORE, 100), 0.5, "clients", "")
        return Evidence([found], "accuracy", Sample.average([0.9, 0.8], 0.0, 1.0), 0.1, 0.0, 0.0)
"""


def test_an_attack_is_named_in_a_file_or_on_the_command_line_and_edits_make_results_anew(tmp_path: Path) -> None:
    values = {
        "data": {"kind": "digits"},
        "partition": {"kind": "label_sets", "clients": 4, "sets": 2},
        "model": {"kind": "fcnn", "hidden": 4},
        "trainer": {"kind": "fedavg", "rounds": 1},
        "audit": {"seeds": 1, "families": ["own mine"], "attacks": ["mine.py"]},
        "limits": {"max_own_share": 0.7},
    }
    (tmp_path / "a.toml").write_text(document(values))
    (tmp_path / "mine.py").write_text(OWN.format(name="mine"))
    (tmp_path / "helper_of_mine.py").write_text("SCORE = 55\n")
    first = command(tmp_path, "audit", "a.toml")
    assert first.returncode == 0, first.stderr
    assert "max_own_share = 0.7: 0.550" in first.stdout
    again = command(tmp_path, "audit", "a.toml")
    assert "2 results are from before; --fresh runs all of them again" in again.stderr
    (tmp_path / "helper_of_mine.py").write_text("SCORE = 95\n")
    edited = command(tmp_path, "audit", "a.toml")
    assert "1 result is from before the settings changed, and made anew" in edited.stderr
    assert "max_own_share = 0.7: 0.950" in edited.stdout
    assert edited.returncode == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "does not exist"),
        ("nowhere:Family", "cannot be imported"),
        ("nothing", "module:Family or the path"),
        ("coterie.audit.family:Family", "lacks admits, defences"),
        ("coterie.errors:InvalidInput", "no subclass"),
        ("coterie.audit.families.canaries:FAMILY", "called 'canaries', as another is"),
    ],
)
def test_an_attack_that_cannot_be_used_is_named(target: str, message: str) -> None:
    with pytest.raises((InvalidInput, DataMissing), match=message):
        plugins.all_families([target])
    assert not any(family.target for family in plugins.all_families())  # nobody's name sticks to one of ours


def test_what_others_wrote_imports_no_attack() -> None:
    with pytest.raises(InvalidInput, match=r"would import and run 'mine:Own'; if you trust it, say so"):
        parse({"audit": {"attacks": ["mine:Own"]}}, "test").refuse_code("recording.toml", "say so")
