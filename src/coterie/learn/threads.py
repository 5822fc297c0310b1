"""How torch's threads wait for each other, and how they need not."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

import coterie

Piece = TypeVar("Piece")


def each_in_one_thread(work: Callable[[Piece], None], pieces: Sequence[Piece], several: bool = True) -> None:
    """Work on all pieces, on as many at once as torch has threads, with every kernel in one thread.

    Kernels then never wait for each other, and what a piece needs stays in the cache of one core. One piece alone has
    all threads, and so has each of those that must not run at the same time (``several=False``).
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(pieces) <= 1 or not several:
        for piece in pieces:
            work(piece)
        return
    waiting = iter(pieces)  # one for all, so that each piece is taken once

    def take() -> None:
        try:
            for piece in waiting:
                work(piece)
        except BaseException:
            deque(waiting, maxlen=0)  # nobody goes on
            raise

    helpers = [_pool(os.getpid()).submit(take) for _ in range(min(threads, len(pieces)) - 1)]
    torch.set_num_threads(1)
    try:
        take()
    finally:
        wait(helpers)
        torch.set_num_threads(threads)
    for helper in helpers:
        helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """A process's own: no thread survives a fork."""
    return ThreadPoolExecutor(thread_name_prefix="coterie", initializer=torch.set_num_threads, initargs=(1,))


@cache
def wait_without_spinning() -> bool:
    """Make them sleep where they would spin, if torch was loaded before we could ask for that; whether it was needed.

    GNU's OpenMP reads OMP_WAIT_POLICY once, when it is loaded, and by default waits some milliseconds in a loop: with
    one of two cores taken by others, a round then takes several times as long. But it spins a thousandth of that as
    soon as there are more threads than cores, so a second team is made and left asleep for as long as the process
    lives. Numbers of threads stay as they are, and with them every result.
    """
    if not coterie.TORCH_CAME_FIRST or torch.get_num_threads() == 1:
        return False
    asleep = threading.Event()
    threading.Thread(target=_keep_a_team, args=(asleep,), name="coterie-asleep", daemon=True).start()
    asleep.wait()
    return True


def _keep_a_team(asleep: threading.Event) -> None:
    torch.ones(1 << 18).add_(1)  # large enough that torch gives every thread a part
    asleep.set()
    threading.Event().wait()
