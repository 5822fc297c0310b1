"""Worker processes for models whose clients are computed one by one.

Workers are forked, so they share the data without copying it; orders and answers travel as the wire's own bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing as mp
import os
import signal
import struct
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
HALF = 64 << 20  # bytes of shared memory for an answer; only what is used is taken
SHORT = 1 << 15  # bytes of an order that a link holds while its worker still computes, so that nobody waits to send it
PLACE = struct.Struct("<QQ")  # where in the shared memory an answer lies, and its length; 0: it follows
DIED = "a worker process died; is there memory enough? Try processes=0"


class WorkerFailed(errors.CoterieError, RuntimeError):
    """A worker process raised or died."""


class Workers:
    """A few processes that run one function on decoded arguments.

    Each has at most two pieces of work at a time, so that none waits for the next one. Answers lie in memory that it
    shares with us, the two in turn in one half of it; one that is too long for that comes as a message.
    """

    def __init__(self, work: Work, count: int) -> None:
        context = mp.get_context("fork")
        self._links: list[Connection] = []
        self._shared: dict[Connection, mmap.mmap] = {}
        self._processes = []
        for _ in range(count):
            (ours, theirs), shared = context.Pipe(), mmap.mmap(-1, 2 * HALF)
            process = context.Process(target=_serve, args=(work, theirs, shared, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._shared[ours] = shared
            self._processes.append(process)

    def map(self, arguments: Iterable[Values], common: Values = ()) -> Iterator[Values]:
        """The results in the order of the arguments; to each of them ``common`` is added, which travels once."""
        for link in self._links:
            self._send(link, encode((True, common)))
        waiting = enumerate(encode((False, values)) for values in arguments)
        busy: dict[Connection, deque[int]] = {link: deque() for link in self._links}
        done: dict[int, Values] = {}
        next_out, item = 0, next(waiting, None)
        while True:
            while item is not None and len(done) < 2 * len(busy):  # a slow first chunk must not pile up the others
                link = min(busy, key=lambda link: len(busy[link]))
                if len(busy[link]) == 2 or (busy[link] and len(item[1]) > SHORT):
                    break
                self._send(link, item[1])
                busy[link].append(item[0])
                item = next(waiting, None)
            if not any(busy.values()) and next_out not in done:
                return
            while next_out in done:
                yield done.pop(next_out)
                next_out += 1
            for ready in wait([link for link, numbers in busy.items() if numbers]) if any(busy.values()) else []:
                assert isinstance(ready, Connection)
                done[busy[ready].popleft()] = self._receive(ready)

    def _send(self, link: Connection, message: bytes) -> None:
        try:
            link.send_bytes(message)
        except OSError as error:
            raise WorkerFailed(DIED) from error

    def _receive(self, link: Connection) -> Values:
        try:
            message = link.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerFailed(DIED) from error
        at, length = PLACE.unpack_from(message)
        failure, result = decode(memoryview(self._shared[link])[at : at + length] if length else message[PLACE.size :])
        if failure:  # our own errors keep their kind
            raise getattr(errors, failure, WorkerFailed)(result)
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        for link, process in zip(self._links, self._processes, strict=True):
            link.close()
            process.terminate()
            process.join()
            process.close()
            del self._shared[link]
        self._links, self._processes = [], []


def _serve(work: Work, link: Connection, shared: mmap.mmap, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent does on it, a worker just ends
    torch.set_num_threads(1)
    common: Values = ()
    at = 0
    while True:
        try:
            for_all, values = decode(link.recv_bytes())
        except EOFError:
            return
        if for_all:
            common = values
            continue
        answer = _answer(work, (*values, *common))
        if len(answer) > HALF:
            link.send_bytes(PLACE.pack(0, 0) + answer)
            continue
        shared[at : at + len(answer)] = answer
        link.send_bytes(PLACE.pack(at, len(answer)))
        at = HALF - at


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
