"""Independent pieces of work over all cores: each result is a file, so work that was stopped goes on where it was."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, InvalidInput, require
from coterie.run.folder import write_atomically

Result = dict[str, Any]
"""What a job hands back: plain values that JSON can hold."""

Progress = Callable[[int, int, str], None]
"""(jobs done, jobs in all, the newest one's key)"""


@dataclass(frozen=True)
class Job:
    """A module-level function and its arguments, under a key that names the file of its result."""

    key: str
    work: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean = re.fullmatch(r"[\w=+,-][\w.=+,-]*(/[\w=+,-][\w.=+,-]*)*", self.key)
        require(bool(clean), "key", self.key, "may hold letters, digits and . = + , - _ between slashes")


class JobFailed(CoterieError, RuntimeError):
    """A job raised; the others' results are kept."""


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, processes: int | None = None, progress: Progress | None = None
) -> dict[str, Result]:
    """The results by key. What the folder holds already is not run again.

    Jobs run in processes with one thread each. If one fails, those under way are finished and kept, and then it raises.
    If the user stops it, those under way end at once: a result is whole or not there.
    """
    require(len({job.key for job in jobs}) == len(jobs), "jobs", len(jobs), "two of them have the same key")
    results = {job.key: found for job in jobs if (found := stored(folder, job.key)) is not None}
    todo = [job for job in jobs if job.key not in results]
    tell = progress or (lambda done, total, key: None)
    tell(len(results), len(jobs), "")
    count = min(processes or len(os.sched_getaffinity(0)), len(todo))
    if count == 0:
        return results
    failures: dict[str, BaseException] = {}
    others = set(mp.active_children())
    pool = ProcessPoolExecutor(count, mp_context=mp.get_context("fork"), initializer=_prepare)
    try:
        futures = {pool.submit(_run, job, folder): job for job in todo}
        _collect(futures, results, failures, lambda key: tell(len(results), len(jobs), key))
    except KeyboardInterrupt:
        for worker in set(mp.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if failures:
        key, error = next(iter(failures.items()))
        told = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        raise JobFailed(
            f"job {key} failed: {told}; {len(results)} of {len(jobs)} results are kept, "
            "and the same command goes on with the others"
        ) from error
    return results


def _collect(
    futures: dict[Future[Result], Job],
    results: dict[str, Result],
    failures: dict[str, BaseException],
    tell: Callable[[str], None],
) -> None:
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            if future.cancelled():
                continue
            key, error = futures[future].key, future.exception()
            if error is None:
                results[key] = future.result()
                tell(key)
            else:
                failures[key] = error
                for other in waiting:
                    other.cancel()


def stored(folder: Path, key: str) -> Result | None:
    """The result that was kept, or None."""
    path = _path(folder, key)
    try:
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"result {path} is damaged ({error}); delete it to run that job again") from error


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _run(job: Job, folder: Path) -> Result:
    result = job.work(**job.arguments)
    path = _path(folder, job.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result).encode())
    return result


def _prepare() -> None:
    """One thread; and Ctrl-C, which reaches all processes of a terminal, is left to the one that started this."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
