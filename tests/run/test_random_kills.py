"""Commands killed at any moment: typed again they end in the same bytes, and nothing of them goes on running.

A few kills of each command here; ``COTERIE_KILLS=100 pytest tests/run/test_random_kills.py`` for as many as you like.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from coterie.audit.plugins import all_families
from coterie.commands import auditing, reproduction, training
from coterie.commands.cli import main
from coterie.recipes import all_recipes
from coterie.run.folder import METRICS, MODELS

KILLS = int(os.environ.get("COTERIE_KILLS", "2"))
GONE = 5.0  # seconds in which nothing may be left of a killed command
CLOCKS = {"seconds", "memory_bytes", "created", "this run took", "kept results"}  # what no two runs have alike
CONFIG = """name = "run"
seed = 3
evaluate_every = 1
[data]
kind = "faces"
count = 120
label = "hair"
rows = 16
columns = 16
[partition]
kind = "label_sets"
clients = 6
sets = 2
[model]
kind = "{model}"
[trainer]
kind = "ifca"
clusters = 2
candidates = 0
rounds = 3
local = {{ steps = 1, batch_size = 8, lr = 0.1 }}
[audit]
seeds = 1
families = ["poisoning", "preference profiling"]
preference_profiling = {{ retrain = 1 }}
"""


def trained(place: Path) -> None:
    """As a user would: what holds a run is resumed, and otherwise one is begun, with the next number if need be."""
    (place / "c.toml").write_text(CONFIG.format(model="cnn"))  # whose clients are computed in worker processes
    begun = list(place.glob("runs/*/run.json"))
    main(["resume", str(begun[0].parent)] if begun else ["train", "c.toml"])


def audited(place: Path) -> None:
    (place / "c.toml").write_text(CONFIG.format(model="fcnn"))
    main(["audit", "c.toml"])


def reproduced(place: Path) -> None:
    main(["reproduce", "vertical-kmeans", "--table", "noise", "--seeds", "1", "--row", "iris, gap_rr"])


IMPORTED = (auditing, reproduction, training, all_families(), all_recipes())  # once, and not by every child
COMMANDS: dict[str, Callable[[Path], None]] = {"train": trained, "audit": audited, "reproduce": reproduced}


def started(place: Path, command: str) -> int:
    """A process that is its session's first: whatever it starts is known by that."""
    place.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(place)
        out = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        torch.set_num_threads(1)
        code = 3
        try:
            COMMANDS[command](place)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return child


def ended(place: Path, command: str) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    _, status = os.waitpid(started(place, command), 0)
    assert os.waitstatus_to_exitcode(status) == 0, (place / "output").read_text()[-3000:]
    return time.monotonic() - begun


def left(session: int) -> list[int]:
    """Those of a session who still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def made(place: Path) -> dict[str, object]:
    """All that a command leaves behind, but for what a clock says."""
    files = {path.relative_to(place): path for path in (place / "runs").rglob("*") if path.is_file()}
    plain = {name.name: path.read_bytes() for name, path in files.items() if name.name in (METRICS, MODELS)}
    results = {
        str(name): without_clocks(json.loads(path.read_text())) for name, path in files.items() if is_result(name)
    }
    assert not [name for name in files if name.suffix in (".part", ".partial")]
    return plain | results


def is_result(name: Path) -> bool:
    return name.suffix == ".json" and name.name != "run.json"


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_clocks(inner) for name, inner in value.items() if name not in CLOCKS}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("command", COMMANDS)
def test_same_bytes_and_no_process_left(tmp_path: Path, command: str) -> None:
    window = ended(tmp_path / "whole", command)  # seconds; less, once a command has ended before it was killed
    expected, draws, cut_short, number = made(tmp_path / "whole"), random.Random(command), 0, 0
    assert len(expected) > 1
    while cut_short < KILLS:
        place, number = tmp_path / str(number), number + 1
        child = started(place, command)
        time.sleep(draws.uniform(0, window))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            cut_short += 1
        else:
            window /= 2
        until = time.monotonic() + GONE
        while still := left(child):
            assert time.monotonic() < until, still
            time.sleep(0.02)
        ended(place, command)
        assert made(place) == expected
    print(f"{command}: {number} kills, {cut_short} before the end")
