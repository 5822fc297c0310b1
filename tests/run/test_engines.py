"""Jobs on a cluster: two real workers on loopback give what processes of this machine give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import socket

import pytest
from joblib import parallel_config
from joblib._parallel_backends import ThreadingBackend
from tests.run.test_jobs import jobs, square

from coterie.errors import DataMissing, InvalidInput
from coterie.run.engines import call, engine, run
from coterie.run.fingerprint import Fingerprint
from coterie.run.jobs import JobFailed, run_jobs, stored

MAIN = "from coterie.commands.cli import main; main()"
TABLE = ("reproduce", "vertical-kmeans", "--table", "noise", "--seeds", "1", "--row", "iris, gap_rr")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and two workers, each a process of its own."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("cluster")
    ready = folder / "ready"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one), "OMP_NUM_THREADS": "1"}
    scheduler = ["scheduler", "--host", place, "--no-dashboard"]
    worker = ["worker", place, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(folder)]
    with ExitStack() as started, ready.open("wb") as log:
        for words in (scheduler, worker, worker):
            command = [sys.executable, "-m", "dask", *words]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
            started.callback(process.wait)
            started.callback(process.terminate)
        while ready.read_text().count("Registered to") < 2:
            time.sleep(0.1)
        yield place


def coterie(folder: Path, *words: str) -> dict[str, object]:
    """What a command left behind, by file."""
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", MAIN, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = (folder / "runs").rglob("*.json")
    return {str(path.relative_to(folder)): json.loads(path.read_text())["result"] for path in found}


@pytest.mark.timeout(900)  # three processes that import all of it
def test_a_cluster_computes_what_this_machine_does(address: str, tmp_path: Path) -> None:
    """And keeps results, goes on with failures, and refuses workers with something else installed."""
    here = coterie(tmp_path / "here", *TABLE)
    there = coterie(tmp_path / "there", *TABLE, "--engine", "dask", "--address", address)
    assert here == there
    assert len(here) > 1
    told: list[tuple[int, int, str]] = []
    kept, trace = tmp_path / "kept", tmp_path / "trace"
    with engine("dask", address):
        assert run_jobs(jobs([2, 3], trace), kept, progress=lambda *row: told.append(row))["squares/3"] == {"square": 9}
        with pytest.raises(JobFailed, match=r"job squares/-1 failed: .*value=-1 is negative; 2 of 3 results are kept"):
            run_jobs(jobs([2, 4, -1], trace), kept)
    assert [row[:2] for row in told] == [(0, 2), (0, 2), (1, 2), (2, 2)]
    assert [stored(kept, job) for job in jobs([4, -1], trace)] == [{"square": 16}, None]
    assert sorted(trace.read_text().split()) == ["-1", "2", "3", "4"]


def test_a_backend_that_cannot_hand_out_results_as_they_come_does_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's is one, and joblib would refuse it."""
    monkeypatch.setattr(ThreadingBackend, "supports_return_generator", False)
    with parallel_config("threading"):
        found = list(run([("two", abs, (-2,)), ("none", abs, ("x",))]))
    assert found[0] == ("two", None, 2)
    assert str(found[1][1]).startswith("TypeError: bad operand")


def test_a_worker_with_other_code_computes_nothing() -> None:
    made_by = Fingerprint("another", "", "")
    with pytest.raises(InvalidInput, match="worker has other code and arguments and data than whoever asks"):
        call(square, {"value": 2, "trace": "nowhere"}, made_by, (), False)


@pytest.mark.parametrize(
    ("kind", "place", "why"),
    [
        ("processes", "tcp://here:1", "is of no use"),
        ("dask", None, "needs its scheduler's"),
        ("dask", "tcp://127.0.0.1:1", "no Dask scheduler answers"),
        ("dask", "nonsense://x", "no Dask scheduler answers"),
    ],
)
def test_what_cannot_be_reached_is_said(kind: str, place: str | None, why: str) -> None:
    with pytest.raises((InvalidInput, DataMissing), match=why), engine(kind, place):  # type: ignore[arg-type]
        pass
