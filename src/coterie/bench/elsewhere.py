"""A contender in a process of its own: what we set for ours (the allocator, threads) must not help or harm it."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from coterie.errors import CoterieError

SPINS = "GOMP_SPINCOUNT"
Build = Callable[..., Callable[[], object]]


class Elsewhere:
    """Runs ``build(*arguments)()`` in a fresh process, once a call; nothing but the signal to start travels."""

    def __init__(self, build: Build, *arguments: object) -> None:
        context = mp.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, arguments), daemon=True)
        with _torchs_own_waiting():
            self._process.start()
        theirs.close()

    def __call__(self) -> None:
        try:
            self._link.send(True)
            self._link.recv()
        except (EOFError, OSError) as error:
            raise CoterieError("the baseline's process died; is there memory enough? Its error is above") from error

    def close(self) -> None:
        self._link.close()
        self._process.join()


@contextmanager
def _torchs_own_waiting() -> Iterator[None]:
    """A process started here spins while it waits, as torch does by default, although it imports us.

    300,000 is what GNU's OpenMP takes if nobody asks for anything; the number goes before the policy.
    """
    if SPINS in os.environ:
        yield
        return
    os.environ[SPINS] = "300000"
    try:
        yield
    finally:
        del os.environ[SPINS]


def _serve(link: Connection, build: Build, arguments: tuple[object, ...]) -> None:
    run = build(*arguments)
    while True:
        try:
            link.recv()
        except EOFError:
            return
        run()
        link.send(True)
