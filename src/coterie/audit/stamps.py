"""The files that an audit reads: a result that was kept is taken as long as none of them changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.config.schema import Choice
from coterie.data.catalogue import SOURCES
from coterie.data.sources.base import ENVIRONMENT
from coterie.protocols.starts import MODELS_FILE

READ_WHOLE = 1 << 28  # bytes: a data file up to this is known by its content, a larger one by its size and time
PACKED = ("", ".csv", ".gz", ".npz", ".zip")  # what published data come in; a report in the same folder is none of it

Stamp = tuple[str, int, int, str]


def stamps(data: Sequence[Choice], trainers: Sequence[Choice], recording: Path | None = None) -> list[list[Stamp]]:
    """Of data, public ones too, of the run that a trainer begins with, and of a recording."""
    paths = [path for choice in data for path in _data(choice)]
    paths += [path for choice in trainers for path in _begins(choice)]
    return [_stamps(path) for path in [*paths, *([recording] if recording else [])]]


def _data(choice: Choice) -> Iterator[Path]:
    """Wherever they are looked for."""
    folder, path = (choice.options.get(name) for name in ("folder", "path"))
    source = SOURCES.get(choice.kind)
    if path:
        yield from dict.fromkeys((Path(path).expanduser(), Path(folder or ".").expanduser() / path))
    elif source and source.published and (named := folder or os.environ.get(ENVIRONMENT)):
        home = Path(named).expanduser()  # data sets by name: their own subfolders, and archives and tables beside them
        beside = (one for one in home.glob("*") if one.suffix in PACKED and one.is_file())
        yield from (*(home / name for name in (choice.kind, *source.places)), *sorted(beside))


def _begins(trainer: Choice) -> Iterator[Path]:
    begins = trainer.options.get("begins")
    if isinstance(begins, dict) and begins.get("run"):
        yield Path(begins["run"]) / MODELS_FILE


def _stamps(path: Path) -> list[Stamp]:
    """Names, sizes and times of a file, or of all files in a folder; and what it says, of one file that is not huge."""
    files = [one for one in (sorted(path.rglob("*")) if path.is_dir() else [path]) if one.is_file()]
    return [(str(one), one.stat().st_size, one.stat().st_mtime_ns, _content(one, len(files))) for one in files]


def _content(path: Path, among: int) -> str:
    if among > 1 or path.stat().st_size > READ_WHOLE:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
