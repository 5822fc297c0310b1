"""Clusterings are trainers like the others: trained, resumed, listed, recorded and attacked from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.audit.test_families import clustered

from coterie.audit.engine import audit
from coterie.audit.recorded import open_recording
from coterie.audit.toml import document
from coterie.commands import training as session
from coterie.errors import InvalidInput
from coterie.run.folder import RunFolder

SHARED = {"kind": "noisy_sums", "added_by": "shared"}


def written(folder: Path, **more: Any) -> Path:
    values = clustered(**more).model_dump(mode="json", exclude={"audit", "limits", "recorded"})
    (folder / "c.toml").write_text(document({key: value for key, value in values.items() if value is not None}))
    return folder / "c.toml"


@pytest.mark.parametrize(("level", "few"), [("record", "one record of 1697"), ("client", "one client of 10")])
def test_a_delta_at_which_a_unit_may_be_given_away_meets_no_limit(level: str, few: str, tmp_path: Path) -> None:
    trainer = {"kind": "federated_lloyd", "clusters": 4, "level": level, "steps": 1, "bound": 3.0}
    asked = {"seeds": 1, "families": ["reconstruction from k-means"], "compare": [{"kind": "none"}]}
    values = {"trainer": trainer, "audit": asked, "defence": {"kind": "noisy_sums"}}
    with pytest.raises(InvalidInput, match=rf"max_epsilon: delta=0.5 allows to give {few} away, .*; set delta to"):
        audit(clustered(**values, delta=0.5, limits={"max_epsilon": 3}), tmp_path, processes=1)
    assert not list(tmp_path.iterdir())
    assert few in audit(clustered(**values, delta=0.5), tmp_path, processes=1).warned["delta"]
    near = 1e-2 if level == "client" else 1e-5
    assert "delta" not in audit(clustered(**values, delta=near), tmp_path, processes=1).warned


@pytest.mark.parametrize("kind", ["kfed", "federated_lloyd", "feddp_kmeans"])
def test_a_clustering_is_trained_listed_recorded_and_attacked(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, trainer={"kind": kind, "clusters": 4}, evaluate_every=1)
    session.train(path, tmp_path / "runs", None, tmp_path / "messages")
    (run,) = (tmp_path / "runs").iterdir()
    assert "k-means cost" in RunFolder(run).history[-1]
    session.list_runs(tmp_path / "runs")
    assert "k-means cost" in " ".join(capsys.readouterr().out.split())
    result = audit(open_recording(tmp_path / "messages", None), tmp_path / "jobs", processes=1)
    assert {one.family for one in result.findings} == {"reconstruction from k-means"}
    assert result.findings[0].score > 0.99


def test_a_clustering_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path, defence=SHARED)
    session.train(path, tmp_path / "runs", None)
    (run,) = (tmp_path / "runs").iterdir()
    models = (run / "models.npz").read_bytes()
    (run / "models.npz").unlink()
    session.resume(run)
    assert (run / "models.npz").read_bytes() == models


def test_public_rows_belong_to_nobody() -> None:
    asked = clustered()
    held, federation = asked.held(), asked.federation()
    assert held.public is not None
    assert (len(held.public), len(held.examples)) == (100, 1697)
    rows = {tuple(row.tolist()) for row in held.public.x.flatten(1)}
    assert sum(tuple(row.tolist()) in rows for row in federation.examples.x.flatten(1)) == 0  # no digit occurs twice


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"public": None}, r"'federated_lloyd' starts from public points; add \[public\]"),
        ({"public": {"rows": 2000}}, r"public rows=2000 must lie in 1..1796"),
        ({"public": {"row": 20}}, r"public option 'row' is unknown; did you mean 'rows'"),
        ({"public": {"rows": 5}}, r"public rows=5 must be at least 10, one a cluster"),
        ({"trainer": {"kind": "kfed", "local": 2}}, r"trainer 'kfed' option 'local' is unknown"),
        ({"trainer": {"kind": "kfed"}, "defence": SHARED}, r"'noisy_sums' does not fit trainer 'kfed': it has no sums"),
        (
            {"trainer": {"kind": "federated_lloyd"}, "defence": SHARED},
            r"'noisy_sums' does not fit trainer 'federated_lloyd': .* must be bounded, by a level",
        ),
        ({"defence": {**SHARED, "colluders": 20}}, r"colluders=20 must be at least 0 and fewer than the 10 clients"),
        ({"defence": {"kind": "noisy_sums", "masks": True}}, r"is for added_by = 'shared' alone"),
        ({"delta": 1.5}, r"delta=1.5"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_run(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        audit(clustered(**values), tmp_path / "jobs", processes=1)
    assert not (tmp_path / "jobs").exists()
