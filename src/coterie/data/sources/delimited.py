"""Tables as people save them: the separator, the encoding and the decimal mark are seen from the file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from coterie.errors import CoterieError, InvalidInput, require
from coterie.files import CHUNK, require_plain, require_room, room

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LOOKED_AT = 50  # lines
MOST_COLUMNS = 20_000
LONGEST_LINE = 1 << 22  # letters
CELL = 16  # bytes that a value takes: as a number, and while columns are put together
CELLS = 1 << 20  # that are parsed at a time
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")
NUMBER, DECIMAL_POINT, DECIMAL_COMMA = (
    re.compile(pattern)
    for pattern in (r"\s*[-+]?[\d.,]+(e[-+]?\d+)?\s*", r"\s*[-+]?\d+\.\d+\s*", r"\s*[-+]?\d+,\d+\s*")
)


@dataclass(frozen=True)
class Dialect:
    """How a file is written."""

    separator: str
    encoding: str
    decimal: str

    def __str__(self) -> str:
        words = [SEPARATORS[self.separator], self.encoding.replace("-sig", "")]
        return ", ".join([*words, *(["decimal commas"] if self.decimal == "," else [])])


def read_delimited(path: Path) -> pd.DataFrame:
    """A frame, or an ``InvalidInput`` for whatever is none."""
    data = _contents(path)
    dialect = dialect_of(path, data)
    cells = data.count(dialect.separator.encode()) + data.count(b"\n")
    remedy = f"it has {cells:,} values, most of them empty, or unfolds too far; unpack it, or leave columns out"
    require_room(path.name, path.stat().st_size, len(data) + CELL * cells, remedy)
    try:
        return _frame(data, dialect)
    except CoterieError:
        raise
    except Exception as error:  # what others wrote may break any parser in any way
        raise InvalidInput(
            f"{path.name} cannot be read as a table ({type(error).__name__}: {str(error).strip()}); every line must "
            "have as many values as the first has names"
        ) from error


def _frame(data: bytes, dialect: Dialect) -> pd.DataFrame:
    """Part by part, each in as few bytes as hold it: parsed at once, a table takes many times its size."""
    import pandas as pd

    def parts(**how: object) -> list[pd.DataFrame]:
        """Values without a name are no index: a separator at the end of lines would move all columns by one."""
        said = {"sep": dialect.separator, "encoding": dialect.encoding, "decimal": dialect.decimal, "index_col": False}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # values are lost
            with pd.read_csv(io.BytesIO(data), chunksize=rows, **said, **how) as found:  # type: ignore[call-overload]
                return [narrow(part) for part in found]

    names = pd.read_csv(io.BytesIO(data), sep=dialect.separator, encoding=dialect.encoding, nrows=0).columns
    rows = max(1, CELLS // max(1, len(names)))
    found = parts()
    kinds = {name: {_kind(part[name]) for part in found} for name in found[0].columns} if found else {}
    if mixed := {name: str for name, seen in kinds.items() if len(seen) > 1}:
        found = parts(dtype=mixed)  # what is text in one part is text in all
    return pd.concat(found, ignore_index=True) if len(found) > 1 else found[0]


def narrow(frame: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers in as few bytes as hold them."""
    import pandas as pd

    wide = frame.select_dtypes("int64").columns
    return frame.assign(**{name: pd.to_numeric(frame[name], downcast="integer") for name in wide})


def _kind(column: pd.Series[Any]) -> str:
    return "number" if column.dtype.kind in "iuf" else column.dtype.kind


def dialect_of(path: Path, data: bytes | None = None) -> Dialect:
    """Seen from the first lines, and the encoding from all of it."""
    data = _contents(path) if data is None else data
    require(len(data.strip()) > 0, f"{path.name}", f"{len(data)} bytes", "holds nothing; name a table with a header")
    encoding = _encoding(path, data)
    lines = _first_lines(path, data, encoding)
    require(len(lines) > 0, f"{path.name}", f"{len(data)} bytes", "holds nothing; name a table with a header")
    separator = _separator(lines)
    try:
        names, *rows = csv.reader(lines, delimiter=separator)
    except csv.Error as error:
        raise InvalidInput(f"{path.name} cannot be read as a table ({error}); every value must fit its line") from error
    require(len(names) <= MOST_COLUMNS, f"columns of {path.name}", len(names), f"must be at most {MOST_COLUMNS}")
    if len(names) > 1 and all(NUMBER.fullmatch(name) for name in names):
        raise InvalidInput(f"the first line of {path.name} holds numbers ({names[:3]}); put the columns' names there")
    cells = [cell for row in rows for cell in row]
    commas = separator != "," and any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return Dialect(
        separator, encoding, "," if commas and not any(DECIMAL_POINT.fullmatch(cell) for cell in cells) else "."
    )


def _contents(path: Path) -> bytes:
    """All of it, unpacked: within limits, whatever it promises."""
    require_plain(path)
    size = path.stat().st_size
    most = room(size) // 2  # the rest is for what is in it
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                return _read(packed, most, path)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                require(len(names) == 1, f"files in {path.name}", names[:3], "must be one table; unpack the archive")
                with archive.open(names[0]) as packed:
                    return _read(packed, most, path)
        with path.open("rb") as file:
            first = file.read(CHUNK)
            _require_text(path, first)
            return first + file.read()
    except CoterieError:
        raise
    except Exception as error:
        raise InvalidInput(f"{path} cannot be read ({type(error).__name__}: {error}); save it again") from error


def _read(packed: IO[bytes] | gzip.GzipFile, most: int, path: Path) -> bytes:
    data = packed.read(most + 1)
    require(len(data) <= most, f"{path.name} unpacked", f"over {most} bytes", "is too much for its size; unpack it")
    return data


def _require_text(path: Path, data: bytes) -> None:
    """In UTF-16 every other byte may be anything, and its mark says so."""
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and BINARY.search(data):
        raise InvalidInput(f"{path.name} holds binary data; save it as text, one record a line, with a header")


def _encoding(path: Path, data: bytes) -> str:
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark) and _decodes(data, name):
            return name
    _require_text(path, data)
    return next(name for name in ("utf-8", "cp1252", "latin-1") if _decodes(data, name))


def _decodes(data: bytes, name: str) -> bool:
    decoder = codecs.getincrementaldecoder(name)()
    try:
        for start in range(0, len(data), CHUNK):
            decoder.decode(data[start : start + CHUNK])
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


def _first_lines(path: Path, data: bytes, encoding: str) -> list[str]:
    found = []
    with io.TextIOWrapper(io.BytesIO(data), encoding=encoding, newline="") as text:
        for _ in range(LOOKED_AT):
            line = text.readline(LONGEST_LINE + 1)
            require(len(line) <= LONGEST_LINE, f"a line of {path.name}", "4 million letters", "is too long for a table")
            found += [line] if line.strip() else []
    return found


def _separator(lines: list[str]) -> str:
    """That by which the most lines have as many values as there are names, and of these the most."""

    def worth(separator: str) -> tuple[float, int]:
        try:
            names, *rows = csv.reader(lines, delimiter=separator)
        except csv.Error:
            return 0.0, 0
        alike = sum(len(row) == len(names) for row in rows) / max(1, len(rows))
        return (alike, len(names)) if len(names) > 1 else (0.0, 1)

    return max(SEPARATORS, key=worth)
