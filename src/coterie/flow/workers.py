"""Worker processes for models whose clients are computed one by one.

Workers are forked, so they share the data without copying it; orders and answers travel as the wire's own bytes.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from coterie import errors
from coterie.wire.codec import decode, encode

Values = tuple[Any, ...]
Work = Callable[..., Values]
PR_SET_PDEATHSIG = 1
DIED = "a worker process died; is there memory enough? Try processes=0"


class WorkerFailed(errors.CoterieError, RuntimeError):
    """A worker process raised or died."""


class Workers:
    """A few processes that run one function on decoded arguments."""

    def __init__(self, work: Work, count: int) -> None:
        context = mp.get_context("fork")
        self._links: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def map(self, arguments: Iterable[Values]) -> Iterator[Values]:
        """The results in the order of the arguments; each worker has one piece of work at a time."""
        waiting = iter(enumerate(arguments))
        busy: dict[Connection, int] = {}
        done: dict[int, Values] = {}
        idle = deque(self._links)
        next_out = 0
        while True:
            while idle and len(done) < 2 * len(self._links):  # a slow first chunk must not pile up the others
                item = next(waiting, None)
                if item is None:
                    break
                link = idle.popleft()
                self._send(link, item[1])
                busy[link] = item[0]
            if not busy and next_out not in done:
                return
            while next_out in done:
                yield done.pop(next_out)
                next_out += 1
            for ready in wait(list(busy)) if busy else []:
                assert isinstance(ready, Connection)
                done[busy.pop(ready)] = self._receive(ready)
                idle.append(ready)

    def _send(self, link: Connection, arguments: Values) -> None:
        try:
            link.send_bytes(encode(arguments))
        except OSError as error:
            raise WorkerFailed(DIED) from error

    def _receive(self, link: Connection) -> Values:
        try:
            failure, result = decode(link.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerFailed(DIED) from error
        if failure:  # our own errors keep their kind
            raise getattr(errors, failure, WorkerFailed)(result)
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        for link, process in zip(self._links, self._processes, strict=True):
            link.close()
            process.terminate()
            process.join()
            process.close()
        self._links, self._processes = [], []


def _serve(work: Work, link: Connection, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent does on it, a worker just ends
    torch.set_num_threads(1)
    while True:
        try:
            arguments = decode(link.recv_bytes())
        except EOFError:
            return
        link.send_bytes(_answer(work, arguments))


def _answer(work: Work, arguments: Values) -> bytes:
    try:
        return encode(("", work(*arguments)))
    except errors.CoterieError as error:
        return encode((type(error).__name__, str(error)))
    except Exception as error:  # whatever the model raised goes to the parent, which raises it
        return encode(("WorkerFailed", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"))


def die_with(parent: int) -> None:
    """Never outlive a killed run. Systems without prctl are asked every second whose child this is."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before this was said
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
