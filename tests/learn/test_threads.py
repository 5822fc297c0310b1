"""Torch's threads are asked to sleep, and work is spread over them. How fast they then are is a benchmark's matter."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from coterie.learn.threads import each_in_one_thread

SHOWN = """
import os, threading
from coterie.learn.threads import wait_without_spinning
needed, again = wait_without_spinning(), wait_without_spinning()
print(os.environ["OMP_WAIT_POLICY"], needed, again, sum(t.name == "coterie-asleep" for t in threading.enumerate()))
"""


@pytest.mark.parametrize(
    ("first", "policy", "shown"),
    [
        ("import coterie, torch", None, "passive False False 0"),
        ("import torch; torch.set_num_threads(2); import coterie", None, "passive True True 1"),
        ("import torch; torch.set_num_threads(1); import coterie", None, "passive False False 0"),
        ("import torch; torch.set_num_threads(2); import coterie", "active", "active False False 0"),
        ("import coterie.commands.cli, torch", None, "passive False False 0"),
    ],
)
def test_the_policy_is_set_before_torch_or_a_second_team_sleeps(first: str, policy: str | None, shown: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy is not None:
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-c", f"{first}\n{SHOWN}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == shown.split()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
class TestPieces:
    def test_each_is_worked_on_once_by_kernels_of_one_thread(self) -> None:
        meeting, seen = threading.Barrier(2, timeout=60), []

        def work(piece: int) -> None:
            if piece < 2:
                meeting.wait()  # passes only if two of them run at the same time
            seen.append((piece, torch.get_num_threads()))

        each_in_one_thread(work, range(50))
        assert sorted(seen) == [(piece, 1) for piece in range(50)]
        assert torch.get_num_threads() == 2

    @pytest.mark.parametrize(("pieces", "several"), [(1, True), (3, False)])
    def test_one_at_a_time_has_all_threads(self, pieces: int, several: bool) -> None:
        seen: list[int] = []
        each_in_one_thread(lambda _: seen.append(torch.get_num_threads()), range(pieces), several)
        assert seen == [2] * pieces

    def test_no_pieces_no_work(self) -> None:
        each_in_one_thread(lambda _: pytest.fail("there is nothing to do"), [])

    @pytest.mark.parametrize("broken", range(4))
    def test_an_error_reaches_the_caller_and_ends_the_rest(self, broken: int) -> None:
        done = []

        def work(piece: int) -> None:
            if piece == broken:
                raise KeyError(piece)
            done.append(piece)

        with pytest.raises(KeyError):
            each_in_one_thread(work, range(100_000))
        assert len(done) < 100_000 - 1
        assert torch.get_num_threads() == 2
        each_in_one_thread(done.append, [-1, -2, -3])  # the threads live on
        assert set(done[-3:]) == {-1, -2, -3}

    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        each_in_one_thread(lambda _: None, range(4))
        process = multiprocessing.get_context("fork").Process(target=_work_and_leave)
        process.start()
        process.join(60)
        assert process.exitcode == 7


def _work_and_leave() -> None:
    seen: list[int] = []
    torch.set_num_threads(2)
    each_in_one_thread(seen.append, range(4))
    os._exit(7 if sorted(seen) == [0, 1, 2, 3] else 1)
