"""Files: written whole or not at all, secret ones for their owner alone; and what anybody may have written, where what
a file promises is compared with what it holds before memory is taken for it: ten times its size and 64 MB at most."""

from __future__ import annotations

import difflib
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from coterie.errors import CannotWrite, InvalidInput

TIMES, ALWAYS = 10, 64 << 20  # what reading may take: so many times the input, and these bytes in any case
PUBLISHED = 1000  # times, for archives of named data sets: zeros and ones fold well
PART = 256  # bytes that one value of JSON takes at most, however few it is written in
CHUNK = 1 << 20  # bytes that are unfolded at a time
MOST_NAMES = 10_000  # of a folder that are looked through for a near one
MOST = 1 << 28  # bytes of a file that describes something

Array = NDArray[Any]
"""Of numbers of any type: a file, or a user, may have brought them."""


def room(size: int, times: int = TIMES) -> int:
    """Bytes that reading an input of this size may take."""
    return times * size + ALWAYS


def require_room(what: object, size: int, taken: int, remedy: str, times: int = TIMES) -> None:
    if taken > room(size, times):
        raise InvalidInput(
            f"{what} of {size:,} bytes would take {taken:,} of memory, more than {times} times as much and "
            f"{ALWAYS >> 20} MB; {remedy}"
        )


def require_plain(path: Path) -> None:
    """A pipe would be waited for, and a device never ends. What is not there at all is whoever opens it to say."""
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is no plain file; name one")


def meant(path: Path) -> str:
    """What of its folder a path that leads nowhere may have meant, as a question; empty where nothing is like it."""
    try:
        names = [one.name for one in islice(path.expanduser().absolute().parent.iterdir(), MOST_NAMES)]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"did you mean {str(path.with_name(close[0]))!r}? " if close else ""


def contents(path: Path) -> bytes:
    """All of a plain file that is not too large. Raises ``OSError`` where there is none."""
    require_plain(path)
    size = path.stat().st_size
    if size > MOST:
        raise InvalidInput(f"{path} has {size:,} bytes, more than {MOST:,}; is it the right file?")
    return path.read_bytes()


def read_json(data: bytes) -> Any:
    """Raises ``InvalidInput`` for what takes too much memory, and otherwise whatever ``json`` does."""
    parts = sum(map(data.count, (b"[", b"{", b",")))
    require_room("JSON", len(data), PART * parts, f"it has {parts:,} values; send fewer at a time")
    return json.loads(data)


def read_npz(path: Path, times: int = TIMES) -> dict[str, Array]:
    """All arrays of an ``.npz``. Raises ``InvalidInput`` for anything that is none, or that is too large unfolded."""
    require_plain(path)
    try:
        with zipfile.ZipFile(path) as archive:
            unfolded = sum(member.file_size for member in archive.infolist())
            require_room(path, path.stat().st_size, unfolded, "save it without compression: numpy.savez", times)
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    except InvalidInput:
        raise
    except Exception as error:  # what others wrote may break any parser in any way
        raise InvalidInput(f"{path} cannot be read as an .npz ({error}); write it again with numpy.savez") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read_header(file)
        if dtype.hasobject:
            raise InvalidInput(f"array {member.filename!r} holds Python objects, which could run code; save numbers")
        promised = math.prod(shape) * dtype.itemsize
        if promised != member.file_size - file.tell():
            raise InvalidInput(f"array {member.filename!r} of shape {shape} is not what its file holds; write it again")
        held = np.empty(promised, np.uint8)
        for start in range(0, promised, CHUNK):
            part = file.read(min(CHUNK, promised - start))
            held[start : start + len(part)] = np.frombuffer(part, np.uint8)
        return held.view(dtype).reshape(shape, order="F" if by_columns else "C")


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to. The old one or the whole new one is there, also after a power cut or on a full disk.

    ``private``: at no moment may anybody but its owner read it.
    """
    partial = path.with_name(path.name + ".part")
    try:
        if private:
            partial.unlink(missing_ok=True)  # what was left there may be open to others
        flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if private else os.O_TRUNC)
        with os.fdopen(os.open(partial, flags, 0o600 if private else 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CannotWrite(f"cannot write {path}: {error.strerror}; make room or name another folder") from error


def write_atomically(path: Path, data: bytes, private: bool = False) -> None:
    with replacing(path, private) as file:
        file.write(data)


def write_for_good(path: Path, data: bytes) -> None:
    """As ``write_atomically``, and once it returns, no power cut brings the old one back."""
    write_atomically(path, data)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def kept_secret(path: Path, make: Callable[[], bytes]) -> bytes:
    """What this file holds, for its owner alone; made if there is none. Whoever calls keeps others out meanwhile."""
    if not path.exists():
        write_atomically(path, make(), private=True)
    return path.read_bytes()
