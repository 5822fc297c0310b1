"""Where jobs run: processes of this machine, or wherever joblib's backend is: a Dask cluster, Ray, or another.

    with engine("dask", "tcp://10.0.0.1:8786"):
        coterie.audit(...)

Whoever computes has this version of Coterie and the data under the same paths: a worker whose code or data are others
says so, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from coterie.errors import CoterieError, DataMissing, InvalidInput
from coterie.run.fingerprint import Fingerprint

Engine = Literal["processes", "dask", "ray"]
Call = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A name, a function that can be imported, and its arguments."""

Done = tuple[str, BaseException | None, Any]
"""The name, what it raised, and what it returned."""

LOCAL = ("LokyBackend", "ThreadingBackend", "SequentialBackend", "MultiprocessingBackend")


def chosen() -> bool:
    """Whether somebody has said that jobs run elsewhere than in processes of this machine."""
    from joblib.parallel import get_active_backend

    return type(get_active_backend()[0]).__name__ not in LOCAL


@contextmanager
def engine(kind: Engine, address: str | None = None) -> Iterator[None]:
    """All jobs within run there. Dask wants its scheduler's address, Ray finds its cluster by itself or by address."""
    if kind == "processes":
        if address is not None:
            raise InvalidInput(f"address={address!r} is of no use to processes of this machine; name an engine")
        yield
        return
    from joblib import parallel_config

    with _dask(address) if kind == "dask" else _ray(address), parallel_config(kind):
        yield


@contextmanager
def _dask(address: str | None) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise DataMissing('engine="dask" is not installed; `pip install distributed`') from error
    if address is None:
        raise InvalidInput("address=None: a Dask engine needs its scheduler's, as in --address tcp://HOST:8786")
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise DataMissing(f"no Dask scheduler answers at address={address!r} ({error}); start it first") from error
    with client:
        yield


@contextmanager
def _ray(address: str | None) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise DataMissing('engine="ray" is not installed; `pip install ray` (it is large), or take dask') from error
    ray.init(address=address, ignore_reinit_error=True)
    register_ray()
    yield


def run(calls: Sequence[Call]) -> Iterator[Done]:
    """As they come, where the backend can do that (Ray's cannot: then all of them at the end). After a failure those
    under way are finished, as with processes."""
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    work = (delayed(_shielded)(*call) for call in calls)
    as_they_come = get_active_backend()[0].supports_return_generator
    yield from Parallel(n_jobs=-1, batch_size=1, return_as="generator_unordered" if as_they_come else "list")(work)


def _shielded(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Done:
    try:
        return name, None, function(*arguments)
    except CoterieError as error:
        return name, error, None
    except Exception as error:  # what was raised goes to whoever asked, and its class may not be known there
        return name, RuntimeError(f"{type(error).__name__}: {error}"), None


def call(
    work: Callable[..., Any],
    arguments: Mapping[str, Any],
    made_by: Fingerprint,
    files: Sequence[str],
    resumes: bool,
) -> Any:
    """A job on a worker, with one thread, if what it is made by is there what it is here."""
    import torch

    here = Fingerprint.of(work.__module__, {**arguments, "": work.__qualname__}, files)
    if changed := made_by.changed(here):
        raise InvalidInput(
            f"worker has other {changed} than whoever asks; install the same version, and copy data with their times"
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory(prefix="coterie-job-") as place:
            return work(**arguments, **({"kept_in": Path(place) / "part"} if resumes else {}))
    finally:
        torch.set_num_threads(threads)
