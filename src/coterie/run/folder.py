"""A run on disk. One file, replaced atomically every round, is the truth; all others can be made from it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np

from coterie.errors import CannotWrite, InvalidInput, RunDamaged
from coterie.flow.cohort import Memory
from coterie.learn.params import Params
from coterie.measure.witness import Witness
from coterie.privacy.ledger import Row
from coterie.wire.codec import decode, encode, register
from coterie.wire.traffic import Traffic

Record = dict[str, Any]
"""What it takes to run it again, as JSON."""

Measured = dict[str, Any]
"""A round, and what was measured then, by name."""

CHECKPOINT, RECORD, METRICS, MODELS, LOCK = "checkpoint.bin", "run.json", "metrics.jsonl", "models.npz", "lock"


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
    root: str = ""  # the fingerprint of the secrets that noise comes from


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to. The old one or the whole new one is there, also after a power cut or on a full disk."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CannotWrite(f"cannot write {path}: {error.strerror}; make room or name another folder") from error


def write_atomically(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(path: Path, record: Record) -> RunFolder:
        """A new run; the record is what it takes to run it again."""
        if (path / RECORD).exists():
            raise InvalidInput(f"folder {path} already holds a run; use `coterie resume {path}` or another folder")
        path.mkdir(parents=True, exist_ok=True)
        started = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        write_atomically(path / RECORD, json.dumps(record | started, indent=2).encode())
        return RunFolder(path)

    @property
    def record(self) -> Record:
        try:
            return json.loads((self.path / RECORD).read_text())  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise RunDamaged(
                f"{self.path} holds no run ({RECORD} is missing); `coterie runs` lists those there are"
            ) from error
        except json.JSONDecodeError as error:
            raise RunDamaged(
                f"{self.path / RECORD} is damaged ({error}); start the run again in another folder"
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        write_atomically(self.path / CHECKPOINT, encode(checkpoint))
        lines = "".join(json.dumps(row) + "\n" for row in checkpoint.history)
        write_atomically(self.path / METRICS, lines.encode())

    def load(self) -> Checkpoint | None:
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
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
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "running"
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
    return sorted(found, key=lambda run: (run.record["created"], str(run.path)))


def free_folder(root: Path, name: str) -> Path:
    """The first of name-001, name-002, ... that is free."""
    number = 1
    while (root / f"{name}-{number:03d}").exists():
        number += 1
    return root / f"{name}-{number:03d}"


def versions() -> dict[str, str]:
    packages = ("coterie", "torch", "numpy", "scikit-learn", "dp-accounting", "tenseal")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}
