"""Attacks on the verdict itself: families that break, say nothing, or are edited. None may pass for "no leak"."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.audit import toy
from tests.audit.test_families import coterie

from coterie.audit.case import Subject
from coterie.audit.engine import audit
from coterie.audit.evidence import Evidence
from coterie.audit.plugins import hand_over
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.findings import AuditResult
from coterie.report.html import render
from coterie.report.junit import junit_xml

Measure = Callable[[Subject, Choice, int], Any]


class Odd(toy.Toy):
    """The toy, but for what it does when it is run."""

    name = "odd"
    limit = "odd_auc"

    def __init__(self, measured: Measure) -> None:
        self.measured = measured

    def admits(self, subject: Subject) -> str:
        return ""

    def defences(self, subject: Subject) -> list[Choice]:
        return []

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        found: Evidence = self.measured(subject, defence, seed)
        return found


class Sound(Odd):
    name = "sound"
    limit = "sound_auc"


def sound(subject: Subject, defence: Choice, seed: int) -> Evidence:
    return toy.FAMILY.measure(subject, defence, seed)


def throws(subject: Subject, defence: Choice, seed: int) -> Evidence:
    raise ZeroDivisionError("no such unit")


def throws_once(subject: Subject, defence: Choice, seed: int) -> Evidence:
    return throws(subject, defence, seed) if seed == 1 else sound(subject, defence, seed)


def says_nothing(subject: Subject, defence: Choice, seed: int) -> Evidence:
    return replace(sound(subject, defence, seed), findings=[])


def is_its_own_control(subject: Subject, defence: Choice, seed: int) -> Evidence:
    return replace(sound(subject, defence, seed), findings=sound(subject, defence, seed).findings[1:])


def says_another_thing(subject: Subject, defence: Choice, seed: int) -> Evidence:
    found = sound(subject, defence, seed)
    return replace(found, findings=list(found.findings)[: 1 + seed])


def returns_none(subject: Subject, defence: Choice, seed: int) -> object:
    return None


ODD: dict[str, Measure] = {
    "ZeroDivisionError: no such unit (test_broken_attacks.py, line": throws,
    "ZeroDivisionError: no such unit": throws_once,
    "it returned no finding of an attack": says_nothing,
    "no finding of an attack": is_its_own_control,
    "its findings are others in every seed": says_another_thing,
    "TypeError: it returned NoneType in the place of Evidence": returns_none,
}


def audited(folder: Path, *families: Odd, **more: Any) -> AuditResult:
    named = [hand_over(family) for family in families]
    chosen = {"seeds": 2, "attacks": named, "families": [family.name for family in families]}
    fast = {"kind": "fedavg", "rounds": 1, "local": {"steps": 1}}
    return audit(toy.subject(trainer=fast, audit=chosen, **more), folder, processes=1)


@pytest.mark.parametrize(("told", "measure"), ODD.items(), ids=[one.__name__ for one in ODD.values()])
def test_an_attack_that_breaks_is_a_row_and_no_pass(told: str, measure: Measure, tmp_path: Path) -> None:
    result = audited(tmp_path, Odd(measure), Sound(sound), limits={"max_sound_auc": 1.0})
    assert [check.passed for check in result.checks] == [True]
    assert not result.passed
    (row,) = [one for one in result.left_out if one.failed]
    assert (row.family, told in row.reason) == ("odd", True)
    assert "1 attack broke, and nobody knows what it would have found (odd: " in result.headline
    assert {one.family for one in result.findings} == {"sound"}
    assert "broke: " in render(result)
    group = ElementTree.fromstring(junit_xml(result))[0]
    assert (group.get("errors"), group.get("failures"), group.get("tests")) == ("1", "0", "2")


def test_a_limit_on_what_broke_is_broken(tmp_path: Path) -> None:
    result = audited(tmp_path, Odd(throws), Sound(sound), limits={"max_odd_auc": 1.0})
    assert [(check.passed, "nothing measured it" in check.reason) for check in result.checks] == [(False, True)]


def test_where_all_attacks_break_there_is_no_audit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no attack could be run.*odd: ZeroDivisionError"):
        audited(tmp_path, Odd(throws))


def test_one_that_breaks_when_it_is_asked_is_a_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Odd(sound)
    monkeypatch.setattr(family, "differs", lambda subject: 1 / 0, raising=False)
    result = audited(tmp_path, family, Sound(sound))
    broke = [(one.family, one.reason) for one in result.left_out if one.failed]
    assert broke == [("odd", "ZeroDivisionError: division by zero")]


PLUGIN = """
from tests.audit.toy import Toy
class Mine(Toy):
    name, limit = "mine", "mine_auc"
    def admits(self, subject): return ""
    def defences(self, subject): return []
    def measure(self, subject, defence, seed):
        {body}
        return super().measure(subject, defence, seed)
"""
FILE = """
name = "mine"
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
[model]
kind = "fcnn"
hidden = 4
[trainer]
kind = "fedavg"
rounds = 1
local = { steps = 1 }
[audit]
seeds = 2
families = ["mine"]
attacks = ["mine_broken.py"]
"""


def test_what_broke_is_run_again_and_an_edited_attack_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line; an edit that keeps the file's size and time is seen, too."""
    ours = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{ours}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "a.toml").write_text(FILE)
    attack = tmp_path / "mine_broken.py"
    attack.write_text(PLUGIN.format(body="1 / (seed - 1)"))
    done = coterie(tmp_path, "audit", "a.toml", "--json")
    assert done.returncode == 2
    assert "ZeroDivisionError: division by zero (mine_broken.py, line 8)" in done.stderr
    attack.write_text(PLUGIN.format(body="seed = seed -  0"))
    done = coterie(tmp_path, "audit", "a.toml", "--json")
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)["findings"][0]["interval"]["estimate"]
    before = attack.stat()
    attack.write_text(PLUGIN.format(body="seed = seed - 10"))
    os.utime(attack, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert attack.stat().st_size == before.st_size
    done = coterie(tmp_path, "audit", "a.toml", "--json")
    assert json.loads(done.stdout)["findings"][0]["interval"]["estimate"] == pytest.approx(score - 0.1)
