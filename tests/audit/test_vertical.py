"""A vertical clustering from a file: trained, resumed, recorded, audited, attacked from its tape; and from CSVs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from tests.audit.test_families import coterie

from coterie.audit.case import Subject, parse
from coterie.audit.engine import audit
from coterie.audit.plugins import find
from coterie.audit.recorded import open_recording
from coterie.audit.toml import document
from coterie.commands import training as session
from coterie.commands.clustering import cluster
from coterie.config.schema import Choice
from coterie.errors import CoterieError
from coterie.run.folder import RunFolder

VALUES: dict[str, Any] = {
    "name": "columns",
    "data": {"kind": "gaussians", "count": 300, "components": 3, "dimensions": 6},
    "partition": {"kind": "vertical", "parties": 3},
    "trainer": {"kind": "vertical_kmeans", "clusters": 5, "steps": 8},
}
FAMILY = "columns from distances"


def subject(**more: Any) -> Subject:
    return parse({**VALUES, **more}, "test")


def scores(defence: dict[str, Any]) -> dict[str, float]:
    asked = subject(trainer={**VALUES["trainer"], "start_on": "records"})
    evidence = find(FAMILY).measure(asked, Choice.model_validate(defence), 0)
    return {one.attack: one.score for one in evidence.findings}


def test_the_ladder_of_defences() -> None:
    """In the open everything; under masks the totals, which is everything; blinded, shapes; noise, next to nothing."""
    bare, masked = scores({"kind": "none"}), scores({"kind": "secure_sums"})
    assert bare["columns from a party's distances"] > 0.99
    assert bare["columns from totals over the parties"] > 0.99
    assert np.isnan(masked["columns from a party's distances"])
    assert masked["columns from totals over the parties"] > 0.99
    assert abs(masked["columns from totals, known records mixed up"]) < 0.6
    blinded = scores({"kind": "blinded_sums"})
    assert blinded["columns from totals over the parties"] < 0.5
    assert blinded["columns from all assignments"] < bare["columns from all assignments"]
    told = scores({"kind": "perturb_once", "epsilon": 0.1, "low": -2.0, "high": 3.0})
    assert told["columns from totals over the parties"] < 0.5


def test_trained_recorded_resumed_and_attacked_from_the_tape_alone(tmp_path: Path) -> None:
    (tmp_path / "v.toml").write_text(document(VALUES))
    session.train(tmp_path / "v.toml", tmp_path / "runs", None, tmp_path / "messages")
    (run,) = (tmp_path / "runs").iterdir()
    assert "k-means cost" in RunFolder(run).history[-1]
    models = (run / "models.npz").read_bytes()
    (run / "models.npz").unlink()
    session.resume(run)
    assert (run / "models.npz").read_bytes() == models
    result = audit(open_recording(tmp_path / "messages", None), tmp_path / "jobs", processes=1)
    assert {one.family for one in result.findings} == {FAMILY}
    (totals,) = [one for one in result.findings if one.attack == "columns from totals over the parties"]
    assert totals.score > 0.99


def test_an_audit_ends_with_a_verdict(tmp_path: Path) -> None:
    asked = subject(audit={"seeds": 1, "families": [FAMILY]}, limits={"max_column_correlation": 0.9, "max_cost": 1e9})
    result = audit(asked, tmp_path, processes=1)
    assert not result.passed
    (cost,) = [check for check in result.checks if check.limit.name == "max_cost"]
    assert not cost.passed  # three parties have one cost between them, and one run does not say how sure it is
    assert "more seeds would decide" in cost.reason
    assert FAMILY in result.headline or "leak" in result.headline


class TestFiles:
    def write(self, folder: Path) -> None:
        x, _ = load_iris(return_X_y=True)
        left = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(key=np.arange(150))
        right = pd.DataFrame(x[:, 2:], columns=["c", "d"]).assign(key=np.arange(150)).sample(120, random_state=0)
        left.to_csv(folder / "bank.csv", index=False)
        right.to_csv(folder / "shop.csv", index=False)

    def test_one_csv_a_party(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        done = coterie(tmp_path, "cluster", "bank.csv", "shop.csv", "--id", "key", "--clusters", "3", "--seed", "0")
        assert done.returncode == 0, done.stderr
        assert "bank: 2 columns of 150 records; 30 that others lack were left out" in done.stdout
        assert "120 records in 3 clusters" in done.stdout
        labels = pd.read_csv(tmp_path / "labels.csv")
        assert list(labels.columns) == ["key", "cluster"]
        assert sorted(labels["cluster"].unique()) == [0, 1, 2]

    def test_what_is_wrong_is_one_line(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        done = coterie(tmp_path, "cluster", "bank.csv", "shop.csv")
        assert done.returncode == 2
        assert "records of party 'shop'=120 must be 150" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "labels.csv").exists()

    @pytest.mark.parametrize(
        ("files", "options", "message"),
        [
            (["bank", "none"], {}, "none.csv does not exist"),
            (["bank", "bank"], {}, "must differ in name"),
            (["bank", "shop"], {"epsilon": 1.0}, "epsilon=1.0 is a defence's; name one by --defence"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, files: list[str], options: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        self.write(tmp_path)
        with pytest.raises(CoterieError, match=message):
            cluster([tmp_path / f"{name}.csv" for name in files], 3, "key", "none", options, tmp_path / "labels.csv", 0)
        assert not (tmp_path / "labels.csv").exists()
