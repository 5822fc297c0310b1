"""Independent pieces of work over all cores: each result is a file, so work that was stopped goes on where it was.

A file says what its result was made by: the code, the arguments and the data (``coterie.run.fingerprint``). Where one
of them is another now, the result is made anew.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, InvalidInput, require
from coterie.files import read_json, write_atomically
from coterie.flow.workers import die_with
from coterie.run import engines
from coterie.run.fingerprint import Fingerprint, digest

Result = dict[str, Any]
"""What a job hands back: plain values that JSON can hold."""

Arguments = Mapping[str, Any]
"""What a job's function is called with: plain values too."""

Progress = Callable[[int, int, str], None]
"""(jobs done, jobs in all, the newest one's key). The first call says what was kept from before, in words, and the
second, if there is anything to do, what lies ahead."""


class Ahead(str):
    """Words on what lies ahead, in place of a job's key."""


@dataclass(frozen=True)
class Job:
    """A module-level function and its arguments, under a key that names the file of its result."""

    key: str
    work: Callable[..., Result]
    arguments: Arguments = field(default_factory=dict)
    files: tuple[str, ...] = ()  # data that it reads: files or folders
    resumes: bool = False  # its function takes ``kept_in``, a file in which it keeps how far it has come

    def __post_init__(self) -> None:
        clean = re.fullmatch(r"[\w=+,-][\w.=+,-]*(/[\w=+,-][\w.=+,-]*)*", self.key)
        require(bool(clean), "key", self.key, "may hold letters, digits and . = + , - _ between slashes")

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.of(self.work.__module__, {**self.arguments, "": self.work.__qualname__}, self.files)


class JobFailed(CoterieError, RuntimeError):
    """A job raised; the others' results are kept."""


@dataclass(frozen=True)
class Kept:
    """What a folder holds for some jobs: results that can be taken, and why others cannot, by key."""

    results: Mapping[str, Result]
    stale: Mapping[str, str]  # which of code, arguments and data has changed since

    @staticmethod
    def of(jobs: Sequence[Job], folder: Path) -> Kept:
        results, stale = {}, {}
        for job in jobs:
            match _read(folder, job):
                case str(changed):
                    stale[job.key] = changed
                case dict(result):
                    results[job.key] = result
        return Kept(results, stale)

    def __str__(self) -> str:
        """Empty if there is nothing from before."""
        counts = {"from before": len(self.results)} if self.results else {}
        for changed, count in Counter(one.replace("arguments", "settings") for one in self.stale.values()).items():
            counts[f"from before the {changed} changed, and made anew"] = count
        return "; ".join(
            f"{count} {'result is' if count == 1 else 'results are'} {rest}" for rest, count in counts.items()
        )


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
) -> dict[str, Result]:
    """The results by key. What the folder holds of the same code, arguments and data is run again only if ``fresh``.

    Jobs run in processes with one thread each; within ``joblib.parallel_config(...)`` or ``engines.engine`` they run
    where that says, on other machines too, and results are kept here. If one fails, those under way are finished and
    kept, and then it raises. If the user stops it, those under way end at once: a result is whole or not there.
    """
    require(len({job.key for job in jobs}) == len(jobs), "jobs", len(jobs), "two of them have the same key")
    kept = Kept({}, {}) if fresh else Kept.of(jobs, folder)
    results = dict(kept.results)
    todo = [job for job in jobs if job.key not in results]
    tell = progress or (lambda done, total, key: None)
    tell(len(results), len(jobs), str(kept))
    count = min(processes or len(os.sched_getaffinity(0)), len(todo))
    if count == 0:
        return results
    tell(len(results), len(jobs), ahead(todo, folder, count))
    failures: dict[str, BaseException] = {}
    if engines.chosen():
        for job, result in _elsewhere(todo, folder, failures):
            results[job.key] = result
            tell(len(results), len(jobs), job.key)
        return _whole(results, failures, len(jobs))
    others = set(mp.active_children())
    pool = ProcessPoolExecutor(count, mp_context=mp.get_context("fork"), initializer=_prepare, initargs=(os.getpid(),))
    try:
        futures = {pool.submit(_run, job, job.fingerprint, folder): job for job in todo}
        _collect(futures, results, failures, lambda key: tell(len(results), len(jobs), key))
    except KeyboardInterrupt:
        for worker in set(mp.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return _whole(results, failures, len(jobs))


def _whole(results: dict[str, Result], failures: Mapping[str, BaseException], jobs: int) -> dict[str, Result]:
    """All of them, or the first failure."""
    if failures:
        key, error = next(iter(failures.items()))
        told = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        raise JobFailed(
            f"job {key} failed: {told}; {len(results)} of {jobs} results are kept, "
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


def _elsewhere(todo: Sequence[Job], folder: Path, failures: dict[str, BaseException]) -> Iterator[tuple[Job, Result]]:
    """Results as they come from wherever joblib's backend is; each is kept before it is handed on."""
    named = {job.key: (job, job.fingerprint) for job in todo}
    calls = [
        (key, engines.call, (job.work, job.arguments, made_by, job.files, job.resumes))
        for key, (job, made_by) in named.items()
    ]
    for key, error, result in engines.run(calls):
        if error is not None:
            failures[key] = error
        else:
            job, made_by = named[key]
            yield job, _keep(_path(folder, key), made_by, result)


def stored(folder: Path, job: Job) -> Result | None:
    """The result that was kept of this very job, or None."""
    return Kept.of([job], folder).results.get(job.key)


def forget(folder: Path, key: str) -> None:
    """Of a result that is not worth keeping: the job is run again the next time."""
    _path(folder, key).unlink(missing_ok=True)


MADE_BY, RESULT, TOOK = "made by", "result", "seconds"


def ahead(todo: Sequence[Job], folder: Path, processes: int) -> Ahead:
    """How many jobs there are, and how long they will take by what the same ones, or their like, took before."""
    known = {job.key: took for job in todo if (took := _took(folder, job.key)) is not None}
    words = f"{len(todo)} {'job' if len(todo) == 1 else 'jobs'} on {processes} {_processes(processes)}"
    if not known:
        return Ahead(f"{words}; how long, the first of them will show")
    usual = sum(known.values()) / len(known)
    seconds = sum(known.get(job.key, usual) for job in todo) / processes
    about = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{max(1, round(seconds))} s"
    return Ahead(f"{words}; about {about}, by what {len(known)} of them took before")


def _processes(count: int) -> str:
    return "process" if count == 1 else "processes"


def _took(folder: Path, key: str) -> float | None:
    """What this job took when it was last run, under whatever settings."""
    for path in (_path(folder, key), *sorted(folder.parent.glob(f"*/{key}.json"))):
        try:
            took = read_json(path.read_bytes())[TOOK]
        except (OSError, InvalidInput, ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(took, float) and took >= 0:
            return took
    return None


def _read(folder: Path, job: Job) -> Result | str | None:
    """The job's result; what has changed since, if anything; None if there is no file."""
    path = _path(folder, job.key)
    try:
        found = read_json(path.read_bytes())
        changed = job.fingerprint.changed(Fingerprint.parse(found.get(MADE_BY)))
        return changed or dict(found[RESULT])
    except FileNotFoundError:
        return None
    except (InvalidInput, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"result {path} is damaged ({error}); delete it to run that job again") from error


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _run(job: Job, made_by: Fingerprint, folder: Path) -> Result:
    """The fingerprint was taken before the work began: what is edited meanwhile has had no part in it."""
    path = _path(folder, job.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(
        f"{path.stem}.{digest(asdict(made_by).values())}.partial"
    )  # of this code, for these arguments
    further = {"kept_in": part} if job.resumes else {}
    started = time.monotonic()
    made = job.work(**job.arguments, **further)
    result = _keep(path, made_by, made, time.monotonic() - started)
    part.unlink(missing_ok=True)
    return result


def _keep(path: Path, made_by: Fingerprint, result: Result, seconds: float | None = None) -> Result:
    path.parent.mkdir(parents=True, exist_ok=True)
    took = {} if seconds is None else {TOOK: round(seconds, 3)}
    text = json.dumps({MADE_BY: asdict(made_by), **took, RESULT: result})
    write_atomically(path, text.encode())
    return dict(json.loads(text)[RESULT])  # as it will be read: JSON knows neither tuples nor whole numbers as names


def _prepare(parent: int) -> None:
    """One thread; it ends with the one that started it, to which Ctrl-C, which reaches all of a terminal, is left."""
    import torch

    die_with(parent)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
