"""A run on disk. One file, replaced atomically every round, is the truth; all others can be made from it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CannotWrite, InvalidInput, RunDamaged
from coterie.files import contents, kept_secret, read_json, replacing, require_plain, write_atomically
from coterie.flow.cohort import Memory
from coterie.learn.params import Params
from coterie.measure.witness import Witness
from coterie.privacy.ledger import Row
from coterie.rng import KEY_BYTES, Secrets
from coterie.wire.codec import decode, encode, register
from coterie.wire.traffic import Traffic

Record = dict[str, Any]
"""What it takes to run it again, as JSON."""

Measured = dict[str, Any]
"""A round, and what was measured then, by name."""

CHECKPOINT, RECORD, METRICS, MODELS, LOCK = "checkpoint.bin", "run.json", "metrics.jsonl", "models.npz", "lock"
SECRETS = "noise.secret"  # what the run's noise comes from: for its owner alone, and no part of what is shared


@register
@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    state: Any
    memory: dict[int, Memory]  # what the clients keep
    history: list[Measured]
    spent: tuple[Row, ...] = ()  # the ledger's entries
    metrics: tuple[tuple[str, float, float], ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    witness: Witness | None = None  # what really was, for whoever scores attacks afterwards
    root: str = ""  # by which secrets and data are known again


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(path: Path, record: Record) -> RunFolder:
        """A new run; the record is what it takes to run it again. Of two that want one folder, one gets it."""
        started = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        text = json.dumps(record | started, indent=2).encode()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path, prefix=RECORD) as whole:
                whole.write(text)
                whole.flush()
                os.fsync(whole.fileno())
                os.chmod(whole.name, 0o644)
                os.link(whole.name, path / RECORD)  # whole, and only where there is none
        except FileExistsError as error:
            raise InvalidInput(
                f"folder {path} already holds a run; use `coterie resume {path}` or another folder"
            ) from error
        except OSError as error:
            raise CannotWrite(f"cannot write {path / RECORD}: {error.strerror}; name another folder") from error
        return RunFolder(path)

    @property
    def record(self) -> Record:
        try:
            found = read_json(contents(self.path / RECORD))
        except FileNotFoundError as error:
            raise RunDamaged(
                f"{self.path} holds no run ({RECORD} is missing); `coterie runs` lists those there are"
            ) from error
        except (InvalidInput, ValueError, OSError, RecursionError) as error:
            raise RunDamaged(
                f"{self.path / RECORD} is damaged ({error}); start the run again in another folder"
            ) from error
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise RunDamaged(f"{self.path / RECORD} says nothing of a configuration; start the run again elsewhere")
        return found

    @property
    def created(self) -> str:
        """When, as far as the record says so."""
        try:
            return str(self.record.get("created", ""))
        except RunDamaged:
            return ""

    def secrets(self) -> Secrets:
        """What the run's noise comes from: drawn from the operating system once, by whoever holds the run."""
        path = self.path / SECRETS
        try:
            return Secrets(kept_secret(path, lambda: os.urandom(KEY_BYTES)), reproducible=False)
        except InvalidInput as error:
            raise RunDamaged(f"{path} is damaged ({error}); start the run again in another folder") from error

    def save(self, checkpoint: Checkpoint) -> None:
        write_atomically(self.path / CHECKPOINT, encode(checkpoint), private=True)  # with what the clients keep
        lines = "".join(json.dumps(row) + "\n" for row in checkpoint.history)
        write_atomically(self.path / METRICS, lines.encode())

    def load(self) -> Checkpoint | None:
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            require_plain(path)
            checkpoint = decode(path.read_bytes())
        except InvalidInput as error:
            raise RunDamaged(f"{path} is damaged ({error}); start the run again in another folder") from error
        if not isinstance(checkpoint, Checkpoint):
            raise RunDamaged(f"{path} holds no checkpoint; start the run again in another folder")
        return checkpoint

    def finish(self, models: Params) -> None:
        with replacing(self.path / MODELS) as file:
            np.savez(file, allow_pickle=False, **{name: leaf.numpy() for name, leaf in models.items()})

    @property
    def finished(self) -> bool:
        return (self.path / MODELS).exists()

    @property
    def history(self) -> list[Measured]:
        path = self.path / METRICS
        try:
            rows = [read_json(line) for line in contents(path).splitlines()] if path.exists() else []
        except (InvalidInput, ValueError, OSError, RecursionError) as error:
            raise RunDamaged(f"{path} is damaged ({error}); `coterie resume` writes it anew") from error
        return [row for row in rows if isinstance(row, dict)]

    @property
    def state(self) -> str:
        try:
            self.record  # noqa: B018
        except RunDamaged:
            return "damaged"
        if self.finished:
            return "finished"
        try:
            with (self.path / LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
        except OSError:  # nobody has begun with it, or it is not ours to look at
            return "stopped"
        return "stopped"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a second process from working on the same run; the system lets go of it when this one dies."""
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(
                    f"run {self.path} is being worked on by another process; wait for it or stop it"
                ) from error
            yield


def list_runs(root: Path) -> list[RunFolder]:
    """All runs below a folder, oldest first."""
    found = [RunFolder(path.parent) for path in root.rglob(RECORD)] if root.is_dir() else []
    return sorted(found, key=lambda run: (run.created, str(run.path)))


def free_folder(root: Path, name: str) -> Path:
    """The first of name-001, name-002, ... that is free, made for whoever asked."""
    number = 1
    while True:
        path = root / f"{name}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise CannotWrite(f"cannot make {path}: {error.strerror}; name another folder with --runs") from error
        else:
            return path


def versions() -> dict[str, str]:
    packages = ("coterie", "torch", "numpy", "scikit-learn", "dp-accounting", "tenseal")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}
