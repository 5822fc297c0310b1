"""Killed at every touch of the disk, a run goes on to the same bytes, or starts over by itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ring import blobs

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import Smallest
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.run.folder import METRICS, MODELS, RECORD, RunFolder
from coterie.run.jobs import Job, run_jobs
from coterie.run.training import train

TOUCHES = {"open", "os.rename", "os.link", "os.mkdir", "os.remove"}
LOCAL = Local(steps=1, batch_size=4, lr=0.2)
FEDERATION = blobs([8] * 4)
CASES: dict[str, tuple[Protocol[Any], Defence]] = {
    "plain": (FedEM(rounds=1, local=LOCAL, components=2), Defence()),
    "with keys": (Ifca(rounds=1, local=LOCAL, clusters=2, candidates=0), Mingling(smallest=Smallest(1))),
}


def in_child(work: Callable[[], object]) -> bool:
    """Whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def killed_at(touch: int, place: Path, work: Callable[[], object]) -> None:
    """Dies before the so-manieth time that something at this place is opened, moved, made or removed."""
    left = touch

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in TOUCHES and str(args[0]).startswith(str(place)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)  # of this process alone, which ends
    work()


def started_or_resumed(path: Path, case: str) -> None:
    """As a user would: a folder that holds a run is resumed, another one begun."""
    folder = RunFolder(path) if (path / RECORD).exists() else RunFolder.create(path, {"config": {}})
    protocol, defence = CASES[case]
    if not folder.finished:
        train(protocol, FEDERATION, Dense((4, 3)), folder=folder, defence=defence, evaluate_every=1, secret=True)


@pytest.mark.parametrize("case", CASES)
def test_training(tmp_path: Path, case: str) -> None:
    assert in_child(lambda: started_or_resumed(tmp_path / "whole", case))
    touch = 1
    while True:
        place = tmp_path / str(touch)
        ended = in_child(lambda: killed_at(touch, place, lambda: started_or_resumed(place, case)))  # noqa: B023
        assert in_child(lambda: started_or_resumed(place, case))  # noqa: B023
        for name in (METRICS, MODELS):
            assert (place / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (touch, name)
        if ended:
            break
        touch += 1
    assert touch > 15


def cube(number: int) -> dict[str, int]:
    return {"cube": number**3}


def test_jobs_of_audits_and_tables(tmp_path: Path) -> None:
    """Workers are killed with the one that started them; what is there afterwards is whole."""
    jobs = [Job(f"cubes/{number}", cube, {"number": number}) for number in range(2)]
    for touch in range(1, 6):
        place = tmp_path / str(touch)
        child = os.fork()
        if child == 0:
            try:  # a worker inherits the hook, so it may be the one that dies
                killed_at(touch, place, lambda: run_jobs(jobs, place, processes=1))  # noqa: B023
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert run_jobs(jobs, place, processes=1) == {job.key: cube(**job.arguments) for job in jobs}
