"""No door takes more than ten times its input plus 64 MB, whether it lets in what was brought or not."""

from __future__ import annotations

import gzip
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import coterie.audit.engine  # noqa: F401  (with it the classes that can travel are registered)
from coterie.audit.case import read as read_subject
from coterie.audit.starter import Wishes, fitted
from coterie.config.schema import read
from coterie.data.sources.own import Arrays, ImageFolder, Table
from coterie.errors import CoterieError
from coterie.measure.cost import forget_peak
from coterie.run.folder import CHECKPOINT, RECORD, RunFolder
from coterie.wire.codec import MAGIC, decode
from coterie.wire.messages import TRAIN, Contributions, Up
from coterie.wire.recording import load, save

TIMES, PLUS = 10, 64 << 20
MB = 1 << 20

Door = Callable[[Path], object]
Maker = Callable[[Path], None]


def taken(door: Door, path: Path) -> int:
    """Bytes that a process of its own grows by at most."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            forget_peak()
            before = _status("VmRSS")
            try:
                door(path)
                code = 0
            except CoterieError:
                code = 1
            os.write(theirs, str(_status("VmHWM") - before).encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        grown = said.read()
    assert os.waitstatus_to_exitcode(status) in (0, 1), "something else than an error of ours"
    return int(grown)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


# -- what is brought ----------------------------------------------------------------------------------------------


def encoded(header: bytes, blobs: bytes = b"") -> Maker:
    return lambda path: write(path, MAGIC + len(header).to_bytes(8, "little") + header + blobs)


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def repeated(part: bytes, times: int) -> bytes:
    return b"[" + b",".join([part] * times) + b"]"


def recorded(path: Path) -> None:
    sent = Contributions(torch.arange(50), {"w": torch.rand(50, 1, 40_000)}, torch.ones(50), torch.ones(50, 1))
    save(Up(TRAIN, 0, sent), path)


def many_members(path: Path) -> None:
    """Names take memory too."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(40_000):
            archive.writestr(f"{number}.npy", b"")


def promised(path: Path) -> None:
    """A header that says more than there is."""
    with path.open("wb") as file:
        np.savez(file, x=np.zeros((4, 2)), y=np.arange(4))
    path.write_bytes(path.read_bytes().replace(b"(4, 2)", b"(9**9,)"[:6]).replace(b"(4,)", b"(99)"))


def pictures(side: int) -> Maker:
    def make(path: Path) -> None:
        for name in "ab":
            (path / name).mkdir(parents=True)
            Image.new("RGB", (side, side)).save(path / name / "0.png")

    return make


def promising(*size: int) -> Maker:
    """Small pictures that say to be large."""

    def make(path: Path) -> None:
        pictures(4)(path)
        for one in path.rglob("*.png"):
            whole = bytearray(one.read_bytes())
            whole[16:24] = struct.pack(">II", *size)
            whole[29:33] = struct.pack(">I", zlib.crc32(whole[12:29]))
            one.write_bytes(whole)

    return make


def repeating(column: np.ndarray) -> Maker:
    """Values that repeat are hardly there in a Parquet file."""
    return lambda path: pd.DataFrame({"a": column, "label": np.zeros(len(column), np.int8)}).to_parquet(path)


def word(number: int) -> bytes:
    return b"%c%c" % (97 + number % 14, 97 + number // 14 % 14)


def table(path: Path) -> object:
    return Table(path, "label").load()


def run_folder(path: Path) -> object:
    run = RunFolder(path.parent / "run")
    run.path.mkdir(exist_ok=True)
    for name in (CHECKPOINT, RECORD):
        (run.path / name).write_bytes(path.read_bytes())
    try:
        return run.record
    except CoterieError:
        return run.load()


def decoded(path: Path) -> object:
    return decode(path.read_bytes())


def arrays(path: Path) -> object:
    return Arrays(path).load()


def images(path: Path) -> object:
    return ImageFolder(path).load()


def examples(rows: int, *shape: int, kind: type = np.uint8, fold: bool = False) -> Maker:
    """Zeros and ones with labels."""
    x = np.random.default_rng(0).integers(0, 2, (rows, *shape), np.uint8).astype(kind) if len(shape) < 3 else ZEROS
    save_as = np.savez_compressed if fold else np.savez
    return lambda path: save_as(path, allow_pickle=False, x=x, y=np.zeros(len(x), np.int64))


ZEROS = np.zeros((10**5, 1000), np.uint8)
ROWS = b"".join(b"%d,%d,%d\n" % (i % 1000, i % 7, i % 2) for i in range(1_000_000))
TEXTS = b"".join(b"%s,%d\n" % (word(i), i % 2) for i in range(1_000_000))
NAMES = b",".join(b"c%d" % i for i in range(10_000))
UNFOLDED: dict[str, Any] = {"ids": np.arange(3), "leaf/w": np.zeros((3, 1, 10**7), np.float32)}
LONG = b"x" * (20 * MB)


def holding(data: bytes) -> Maker:
    return lambda path: write(path, data)


def letters(header: bytes, blobs: bytes = b"") -> tuple[str, Maker, Door]:
    return "m", encoded(header, blobs), decoded


BROUGHT: dict[str, tuple[str, Maker, Door]] = {
    "codec: one large value": letters(b'{"b":%d}' % len(LONG), LONG),
    "codec: a tensor": letters(b'{"t":"<f4","s":[%d]}' % (len(LONG) // 4), LONG),
    "codec: empty lists": letters(repeated(b"[]", 130_000)),
    "codec: numbers": letters(repeated(b"1000", 280_000)),
    "codec: floats": letters(repeated(b'{"f":"0x1p0"}', 165_000)),
    "codec: tuples": letters(repeated(b'{"u":[]}', 100_000)),
    "codec: tiny tensors": letters(repeated(b'{"t":"|u1","s":[1]}', 80_000), bytes(80_000)),
    "codec: one wide letter": letters(b'"' + LONG + "\U0001f600".encode() + b'"'),
    "codec: escapes": letters(b'"' + b"\\n" * (10 * MB) + b'"'),
    "codec: more parts than may be": letters(repeated(b"[]", 2_000_000)),
    "codec: a promise": letters(b'{"t":"<f4","s":[4000000000]}'),
    "recording: whole": ("m.npz", recorded, load),
    "recording: zeros": ("m.npz", lambda path: np.savez_compressed(path, allow_pickle=False, **UNFOLDED), load),
    "recording: many members": ("m.npz", many_members, load),
    "arrays: pictures": ("m.npz", examples(20_000, 28, 28), arrays),
    "arrays: truth values": ("m.npz", examples(50_000, 300, kind=bool), arrays),
    "arrays: bits, folded": ("m.npz", examples(20_000, 600, fold=True), arrays),
    "arrays: zeros": ("m.npz", examples(1, 1, 1, 1, fold=True), arrays),
    "arrays: a promise": ("m.npz", promised, arrays),
    "table: numbers": ("t.csv", holding(b"a,b,label\n" + ROWS), table),
    "table: one digit a value": ("t.csv", holding(b"a,label\n" + b"1,1\n2,0\n" * 1_500_000), table),
    "table: texts": ("t.csv", holding(b"a,label\n" + TEXTS), table),
    "table: one long text": ("t.csv", holding(b"a,label\n" + b"x,1\ny,0\n" * 500 + LONG + b",1\n"), table),
    "table: Latin-1": ("t.csv", holding(b"a;label\n" + b"K\xf6ln;1\nBonn;0\n" * 700_000), table),
    "table: folded": ("t.csv.gz", holding(gzip.compress(b"a,b,label\n" + ROWS, 1)), table),
    "table: zeros, folded": ("t.csv.gz", holding(gzip.compress(b"a,label\n" + b"1,1\n" * 20_000_000, 1)), table),
    "table: quotes": ("t.csv", holding(b'a,label\n"' + b'""' * (10 * MB)), table),
    "table: one long line": ("t.csv", holding(b"a," * (10 * MB)), table),
    "table: empty values": ("t.csv", holding(NAMES + b",label\n" + (b"," * 10_000 + b"\n") * 1000), table),
    "table: Parquet": ("t.parquet", repeating(np.zeros(2_500_000, np.int64)), table),
    "table: Parquet, texts": ("t.parquet", repeating(np.full(100_000, "x" * 2000, dtype=object)), table),
    "init: numbers": ("t.csv", holding(b"a,b,label\n" + ROWS), lambda path: fitted(path, Wishes("label"))),
    "pictures: drawings": ("photos", pictures(2000), images),
    "pictures: black": ("photos", pictures(5000), images),
    "pictures: a promise": ("photos", promising(60_000, 8_000), images),
    "TOML: numbers": ("c.toml", holding(b"a=[" + b"1," * 500_000 + b"]"), read),
    "TOML: tables": ("c.toml", holding(b"[[a]]\n" * 170_000), read),
    "TOML: dotted": ("c.toml", holding(b"".join(b"a.b%d.c=1\n" % i for i in range(60_000))), read_subject),
    "TOML: too much": ("c.toml", holding(b"#" * (8 * MB)), read),
    "runs: numbers": ("r", holding(b'{"config":{"a":[' + b"1," * 280_000 + b"1]}}"), run_folder),
    "runs: lists": ("r", holding(b'{"config":{"a":[' + b"[]," * 4_000_000 + b"1]}}"), run_folder),
}


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a first use imports is no input's."""
    place = tmp_path_factory.mktemp("warm")
    pd.DataFrame({"a": [1, 2] * 3, "t": ["x", "y"] * 3, "label": [0, 1] * 3}).to_parquet(place / "t.parquet")
    (place / "t.csv").write_text("a,t,label\n" + "1,x,0\n2,y,1\n" * 3)
    for name in ("t.parquet", "t.csv"):
        Table(place / name, "label").load()
    pictures(4)(place / "p")
    ImageFolder(place / "p").load()


@pytest.mark.parametrize("what", BROUGHT)
def test_memory(tmp_path: Path, what: str) -> None:
    name, make, door = BROUGHT[what]
    path = tmp_path / name
    make(path)
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    size = sum(one.stat().st_size for one in files)
    grown = taken(door, path)
    assert grown <= TIMES * size + PLUS
