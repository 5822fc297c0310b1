"""What goes wrong in an audit is said in a line that names the thing, the value and the remedy; what was done stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audit.test_families import coterie, subject

from coterie.audit.case import read
from coterie.audit.engine import audit
from coterie.commands.auditing import Changes
from coterie.errors import CannotWrite, CoterieError, InvalidInput
from coterie.files import write_atomically
from coterie.run.jobs import Job, JobFailed, run_jobs, stored
from coterie.wire.messages import TRAIN, Down, Published
from coterie.wire.recording import save

FILE = """
name = "digits"
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
sets = 5
[audit]
seeds = 3
families = ["model acquisition"]
[audit.model_acquisition]
join = 1
[trainer]
kind = "fedavg"
rounds = 1
"""


WAITING = """
import signal, time
from coterie.audit.families.model_acquisition import Acquisition

def never(family, subject, defence, seed):
    while True:
        time.sleep(0.01)

Acquisition.measure = never
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
from coterie.commands.cli import main; main()
"""
"""Its reference runs end and its attacks do not, however fast or slow the machine is."""


def test_a_stopped_audit_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    command = [sys.executable, "-c", WAITING, "audit", "a.toml"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    kept = wait_for_results(tmp_path, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    _, told = process.communicate()
    assert process.returncode == 130
    assert "coterie: stopped; what was finished is kept, and the same command goes on: coterie audit a.toml" in told
    assert "Traceback" not in told
    assert not (tmp_path / "runs/audit/digits/report.html").exists()
    before = {path: path.stat().st_mtime_ns for path in kept}
    done = coterie(tmp_path, "audit", "a.toml")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    assert (tmp_path / "runs/audit/digits/report.html").exists()


def wait_for_results(folder: Path, process: subprocess.Popen[str]) -> list[Path]:
    while not (found := list(folder.rglob("*.json"))):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    return found


def test_each_command_has_its_own_way_to_go_on() -> None:
    commands = [["train"], ["reproduce", "a b"], ["data"]]
    ask = f"from coterie.commands.cli import how_to_go_on; print(*map(how_to_go_on, {commands}), sep='|')"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    train, reproduce, data = told.split("|")
    assert "coterie resume FOLDER" in train
    assert reproduce.endswith("coterie reproduce 'a b'")
    assert data == "nothing was changed"


# -- a full disk: /dev/full takes nothing ---------------------------------------------------------------------------


def full(path: Path) -> Path:
    """Whatever is written on the way to this file finds no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".part").symlink_to("/dev/full")
    return path


def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(CannotWrite, match=r"report\.html: No space left on device; make room or name another folder"):
        write_atomically(full(path), b"new" * 10_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")  # once there is room
    assert path.read_text() == "new"


def square(number: int) -> dict[str, Any]:
    return {"value": number**2}


def test_a_full_disk_in_a_job_keeps_the_others(tmp_path: Path) -> None:
    jobs = [Job(f"square{number}", square, {"number": number}) for number in range(3)]
    full(tmp_path / "square1.json")
    with pytest.raises(JobFailed, match=r"square1\.json: No space left.*the same command goes on"):
        run_jobs(jobs, tmp_path, processes=1)
    assert stored(tmp_path, jobs[0]) == {"value": 0}
    assert run_jobs(jobs, tmp_path, processes=1)["square1"] == {"value": 1}


def test_a_full_disk_while_recording_is_named(tmp_path: Path) -> None:
    message = Down(TRAIN, 0, torch.tensor([0]), Published({"w": torch.zeros(1, 5000)}))
    (tmp_path / "0.part").symlink_to("/dev/full")
    with pytest.raises(CannotWrite, match=r"cannot record .*0\.npz: No space left on device; make room"):
        save(message, tmp_path / "0.npz")
    assert list(tmp_path.iterdir()) == []


# -- what users bring -----------------------------------------------------------------------------------------------


def test_data_in_the_place_of_a_configuration_and_names_that_are_near(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("size,kind\n1,2\n")
    (tmp_path / "federation.toml").write_text("")
    with pytest.raises(
        CoterieError, match=r"is not valid TOML: .*; if it is your data: coterie init --data .*people\.csv$"
    ):
        read(tmp_path / "people.csv")
    with pytest.raises(CoterieError, match=r"does not exist; did you mean '.*federation\.toml'\? `coterie init`"):
        read(tmp_path / "federatoin.toml")
    (tmp_path / "f.toml").write_text('[data]\nkind = "table"\npath = "poeple.csv"\nlabel = "kind"\n')
    with pytest.raises(
        CoterieError, match=r"path=poeple\.csv does not exist; did you mean '.*people\.csv'\? looked at"
    ):
        read(tmp_path / "f.toml").examples()


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_seeds_of_the_command_line_are_refused_in_one_line(seeds: int) -> None:
    with pytest.raises(CoterieError, match=rf"^seeds={seeds} must be at (least 1|most 1000)$"):
        Changes(seeds).made(subject())


def test_a_partition_names_itself(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("size,hand,class\n" + "1,left,0\n2,right,1\n" * 20)
    data = {"kind": "table", "path": str(tmp_path / "people.csv"), "label": "class", "tags": ["hand"]}
    with pytest.raises(CoterieError, match="partition 'by_tag': tag of people='hands' is unknown"):
        subject(data=data, partition={"kind": "by_tag", "tag": "hands"}).federation()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "is no plain file; name one"),
        ("missing", "does not exist; `coterie init`"),
        ("bytes", "is not valid TOML"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(CoterieError, match=rf"{name} {message}"):
        read(tmp_path / name)


ROWS = "".join(f"{n},{n % 7},{'left' if n % 3 else 'right'},{n % 2}\n" for n in range(60))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"label": "clas"}, r"column of people\.csv='clas' is unknown; did you mean 'class'"),
        (ROWS, {"tags": ["hands"]}, r"column of people\.csv='hands' is unknown; did you mean 'hand'"),
        (ROWS.replace("41,", "forty,"), {}, r"column 'size' holds numbers but for 1 of 60 rows, .*'forty' in row 42"),
        (ROWS.replace("41,", ","), {}, r"column 'size' of people\.csv has 1 gaps in 60 rows; fill them"),
        ("", {}, r"rows of people\.csv=0 must be at least 1"),
        (ROWS, {"path": "nowhere.csv"}, r"path=nowhere\.csv does not exist; looked at"),
        ('"open', {}, r"people\.csv cannot be read"),
    ],
)
def test_a_table_that_cannot_be_used_is_named_before_anything_is_trained(
    tmp_path: Path, rows: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "people.csv").write_text(rows if '"' in rows else "size,kind,hand,class\n" + rows)
    data = {"kind": "table", "path": str(tmp_path / "people.csv"), "label": "class"} | options
    with pytest.raises(CoterieError, match=message):
        audit(subject(data=data), tmp_path / "jobs", processes=1)
    assert not (tmp_path / "jobs").exists()


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.parquet").write_bytes(b"PAR1")
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    data = {"kind": "table", "path": str(tmp_path / "people.parquet"), "label": "class"}
    with pytest.raises(InvalidInput, match=r"people\.parquet needs pyarrow .* install pyarrow, or save it as CSV"):
        audit(subject(data=data), tmp_path, processes=1)


MODELS = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self, outputs=10):
        super().__init__()
        self.layer = nn.Linear(64, outputs)

    def forward(self, x):
        return self.layer(x.flatten(1))

class Nan(Base):
    def forward(self, x):
        return super().forward(x) / 0 * 0

class Shaped(Base):
    def forward(self, x):
        return self.layer(x)
"""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "mine:Shaped"}, r"model 'mine:Shaped' fails on examples of shape \(1, 8, 8\): RuntimeError: "),
        ({"kind": "mine:Base", "outputs": 3}, r"outputs of model 'mine:Base'=\(4, 3\) must be .* = \(4, 10\)"),
        ({"kind": "mine:Bse"}, r"has no attribute 'Bse'\); is it here or on PYTHONPATH"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], message: str
) -> None:
    (tmp_path / "mine.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=message):
        audit(subject(model=model), tmp_path / "jobs", processes=1)


def test_a_model_that_returns_nan_ends_in_one_line(tmp_path: Path) -> None:
    """And it is found where one stands, without PYTHONPATH."""
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "a.toml").write_text(f'{FILE}[model]\nkind = "own_models:Nan"\n')
    done = coterie(tmp_path, "audit", "a.toml")
    assert done.returncode == 2
    told = "coterie: model 'own_models:Nan' gives NaN or infinity for examples that are finite; mend its forward pass"
    assert done.stderr.splitlines()[-1] == told
    assert "Traceback" not in done.stderr


def test_training_that_diverges_names_the_rate(tmp_path: Path) -> None:
    wild = {"kind": "ifca", "clusters": 5, "rounds": 3, "local": {"steps": 3, "batch_size": 16, "lr": 1e30}}
    asked = subject(trainer=wild, audit={"seeds": 1, "families": ["preference profiling"]})
    with pytest.raises(JobFailed, match=r"became NaN or infinite in local training; lower lr=1e\+30"):
        audit(asked, tmp_path, processes=1)
