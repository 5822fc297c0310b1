"""Runs as the command line begins and resumes them: the same bytes for the same seed, also after being killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.config.schema import parse
from coterie.errors import InvalidInput, RunDamaged
from coterie.rng import Secrets
from coterie.run.folder import CHECKPOINT, METRICS, MODELS, SECRETS, RunFolder, versions
from coterie.run.origin import Origin
from coterie.wire.codec import encode

CONFIG = """
name = "{trainer}"
seed = 3
evaluate_every = 2
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
sets = 5
[model]
kind = "fcnn"
hidden = 16
[trainer]
kind = "{trainer}"
rounds = {rounds}
local = {{ steps = 2, batch_size = 8, lr = 0.1 }}
"""


MAIN = "from coterie.commands.cli import main; main()"
HELD = f"""
import time
from pathlib import Path
from coterie.run import folder

def write_or_wait(path, data, private=False, write=folder.write_atomically):
    while path.name == folder.METRICS and data.count(b"\\n") > 2:
        Path("held").touch()
        time.sleep(0.01)
    write(path, data, private)

folder.write_atomically = write_or_wait
{MAIN}
"""
"""Waits to be killed where it hurts most: the checkpoint is new, and the metrics beside it are not yet."""


def coterie(*arguments: object, folder: Path, program: str = MAIN) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def contents(run: Path) -> dict[str, bytes]:
    """All that was made; every run has secrets of its own, by whose fingerprint alone two of them differ."""
    saved = RunFolder(run).load()
    assert saved is not None
    made = {name: (run / name).read_bytes() for name in (METRICS, MODELS)}
    return made | {CHECKPOINT: encode(replace(saved, root=""))}


@pytest.mark.parametrize("trainer", ["ifca", "fedem"])
def test_a_killed_run_resumed_equals_one_never_killed(tmp_path: Path, trainer: str) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer=trainer, rounds=30))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(coterie("train", "c.toml", "--runs", whole, folder=tmp_path))
    process = coterie("train", "c.toml", "--runs", killed, folder=tmp_path, program=HELD)
    run = killed / f"{trainer}-{trainer}-001"
    while not (tmp_path / "held").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert RunFolder(run).state == "stopped"
    finish(coterie("resume", run, folder=tmp_path))
    assert RunFolder(run).state == "finished"
    assert contents(run) == contents(whole / f"{trainer}-{trainer}-001")


def test_a_finished_run_is_listed_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="fedavg", rounds=2))
    output = finish(coterie("train", "c.toml", folder=tmp_path))
    assert "fedavg" in output
    assert "accuracy" in output
    listed = finish(coterie("runs", folder=tmp_path))
    assert "finished" in listed
    assert "nothing to do" in finish(coterie("resume", "runs/fedavg-fedavg-001", folder=tmp_path))


def test_the_record_says_what_it_takes_to_run_it_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="fedavg", rounds=1))
    finish(coterie("train", "c.toml", "--seed", 9, folder=tmp_path))
    record = json.loads((tmp_path / "runs/fedavg-fedavg-001/run.json").read_text())
    assert record["config"]["seed"] == 9
    assert record["config"]["trainer"]["local"]["lr"] == 0.1
    assert {"python", "coterie", "torch", "numpy"} <= record["versions"].keys()


def test_errors_are_messages_without_a_traceback(tmp_path: Path) -> None:
    process = coterie("resume", "nowhere", folder=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "nowhere" in output
    assert "Traceback" not in output


def test_what_noise_comes_from_is_secret_kept_and_in_nothing_that_is_shared(tmp_path: Path) -> None:
    """Neither the seed nor the record nor a recording gives it away; the run goes on with the same."""
    text = CONFIG.format(trainer="fedavg", rounds=2) + '[defence]\nkind = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0\n'
    (tmp_path / "c.toml").write_text(text.replace("lr = 0.1", "lr = 0.1, poisson = true"))
    for name in ("a", "b"):
        finish(coterie("train", "c.toml", "--runs", name, "--record", f"recorded {name}", folder=tmp_path))
    one, other = (tmp_path / name / "fedavg-fedavg-001" for name in ("a", "b"))
    assert contents(one)[MODELS] != contents(other)[MODELS]  # of the same seed
    secret = (one / SECRETS).read_bytes()
    for path in (one / SECRETS, one / CHECKPOINT):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != one / SECRETS:
            assert secret not in path.read_bytes()
            assert secret.hex() not in path.read_text(errors="ignore")
    assert RunFolder(one).secrets().fingerprint() == Secrets(secret, False).fingerprint()
    (one / SECRETS).write_bytes(b"short")
    with pytest.raises(RunDamaged, match=r"noise\.secret is damaged"):
        RunFolder(one).secrets()


def test_a_run_goes_on_with_what_it_was_begun_with_or_not_at_all(tmp_path: Path) -> None:
    config = parse(tomllib.loads(CONFIG.format(trainer="fedavg", rounds=2)), "c")
    federation = config.federation()
    origin = Origin.of(config, federation)
    record = {**origin.entry, "versions": versions()}
    assert origin.compare(record, "r") == []
    older = {**record, "versions": {**versions(), "torch": "1.0"}}
    (line,) = origin.compare(older, "r")
    assert line.startswith(f"torch is {versions()['torch']} and was 1.0, ")
    examples = replace(federation.examples, x=federation.examples.x + 1)
    others = {
        "its settings": Origin.of(config.model_copy(update={"seed": 4}), federation),
        "its data": Origin.of(config, replace(federation, examples=examples)),
    }
    for what, other in others.items():
        with pytest.raises(InvalidInput, match=f"begun with something else: {what} changed since"):
            other.compare(record, "r")


def test_runs_are_plotted(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(trainer="ifca", rounds=2))
    finish(coterie("train", "c.toml", folder=tmp_path))
    finish(coterie("runs", "--plot", "page.html", folder=tmp_path))
    page = (tmp_path / "page.html").read_text()
    assert "Mean test accuracy over clients" in page
    assert "ifca-ifca-001: the score of each model" in page
    assert "Mean squared error" not in page
