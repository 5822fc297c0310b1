"""The reference run is the federation as it is configured: it ends when that would end."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.audit import reference
from coterie.audit.case import parse
from coterie.config.schema import Choice
from coterie.errors import InvalidInput

SUBJECT = {
    "evaluate_every": 2,
    "stop": {"measurements": 2},
    "data": {"kind": "digits"},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"kind": "dense", "sizes": [64, 10]},
    "trainer": {"kind": "fedavg", "rounds": 40, "local": {"steps": 1, "lr": 1e-9}},
}


def test_it_stops_where_the_configured_run_would() -> None:
    """At a rate of almost nothing the third measurement in a row is enough; the report says who uses which model."""
    with reference.run(parse(SUBJECT, "subject"), Choice(kind="none"), 0) as run:
        assert run.done.state.round == 6
        assert run.evidence().clusters.startswith("clients a model: 3 (")


def test_rules_for_stopping_are_other_settings() -> None:
    said = parse(SUBJECT, "subject").fingerprint
    assert said != parse(SUBJECT | {"stop": {"measurements": 3}}, "subject").fingerprint
    assert said != parse(SUBJECT | {"evaluate_every": 3}, "subject").fingerprint


def test_numbers_are_not_audited(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(f"{row},{row * 0.5}" for row in range(20)))
    data = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label": "b", "predicts": "numbers"}
    subject = parse(SUBJECT | {"data": data, "model": {"kind": "dense", "sizes": [1, 1]}}, "subject")
    with pytest.raises(InvalidInput, match="the audit's attacks go by classes; `coterie train` takes them"):
        subject.rehearse()
