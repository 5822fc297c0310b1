"""The user's own data: a table (CSV or Parquet), arrays (npz), or a folder of pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import (
    DAMAGE,
    READ_OFF,
    Source,
    by_scale,
    integers,
    numbered,
    pixels,
    require_scale,
    standardised,
)
from coterie.data.sources.delimited import CELL, read_delimited
from coterie.data.sources.pictures import ENDINGS, read_pictures
from coterie.errors import CoterieError, DataMissing, InvalidInput, nearest, require
from coterie.files import Array, meant, read_npz, require_room
from coterie.rng import Rng

if TYPE_CHECKING:
    import pandas as pd

    Column = pd.Series[Any]


X_NAMES = ("x", "X", "features", "images", "data", "x_train")
Y_NAMES = ("y", "Y", "labels", "label", "target", "targets", "y_train")
MOST_CLASSES, MOST_VALUES = 1000, 200
GUESSED = (
    "the numbers of [data] scale, which were guessed from all rows (put numbers there that are known without them, and "
    "delete scale_guessed)"
)


Predicted = Literal["classes", "labels", "numbers"]
"""One class an example, labels of which it may have several (truth values), or numbers."""


class OwnFile(Source):
    """A source at a path of the user's: absolute, in the data folder, or in the working folder."""

    published = False
    published_at: ClassVar[str] = "your own file"
    path: Path

    @abstractmethod
    def read(self, folder: Path) -> Examples: ...

    def load(self, folder: Path | str | None = None, rng: Rng | None = None) -> Examples:
        places = [Path(self.path).expanduser()] + ([Path(folder).expanduser() / self.path] if folder else [])
        found = next((place for place in reversed(places) if place.exists()), None)
        if found is None:
            looked = ", ".join(dict.fromkeys(map(str, places)))
            near = next((said for place in reversed(places) if (said := meant(place))), "")
            raise DataMissing(f"path={self.path} does not exist; {near}looked at {looked}")
        try:
            return self.read(found)
        except CoterieError:
            raise
        except DAMAGE as error:
            raise InvalidInput(f"{found} cannot be read: {type(error).__name__}: {error}; {self.layout}") from error


@dataclass(frozen=True)
class Table(OwnFile):
    """A CSV or Parquet file: one column is the label, others are features, some may be tags instead.

    Numbers are standardised over all rows unless ``standardise`` is off; text and truth values become one column of
    zeros and ones a value. A record shows in all rows through their mean and deviation, so nothing can be claimed of
    one that is standardised so: ``scale`` has public numbers in their place, (middle, width) of each column;
    ``scale_guessed`` says that they are none, but were guessed from the rows. Tags are numbered in sorted order and
    are not features, but for those in ``keep``, which are features, too. ``above`` makes a further tag of a column of
    numbers, 1 where it lies above the bound, and leaves it a feature. Rows with gaps raise, or go with ``drop_gaps``.

    ``predicts="numbers"``: the label columns (one or several) are measurements, standardised like features, so that an
    error of 1 is that of always answering the mean. ``"labels"``: an example may have several labels; their columns
    have two values each, of which the larger one means yes.
    """

    path: Path
    label: str | tuple[str, ...]
    tags: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    above: Mapping[str, float] = field(default_factory=dict)
    standardise: bool = True
    drop_gaps: bool = False
    predicts: Predicted = "classes"
    keep: tuple[str, ...] = ()
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    scale_guessed: bool = False

    name: ClassVar[str] = "table"
    about: ClassVar[str] = "a CSV or Parquet file of yours"
    layout: ClassVar[str] = "a .csv, .csv.gz or .parquet file with a header; name the label column"

    def read(self, folder: Path) -> Examples:
        frame = self.without_gaps(read_frame(folder), folder)
        y, names = self.targets(frame)
        tags = {tag: sorted_values(frame[tag]) for tag in self.tags}
        aside = {*self.named, *self.tags, *self.drop} - set(self.keep)
        features = [column for column in frame.columns if column not in aside]
        require(len(features) > 0, "features", features, "none is left beside label, tags and drop; keep a column")
        numbers = [column for column in features if is_number(frame[column])]
        numbers += self.named if self.predicts == "numbers" else ()
        require_scale(self.scale, numbers)
        return Examples(
            x=torch.from_numpy(self.encoded(frame, features, folder)),
            y=y,
            classes=len(names),
            name=folder.stem,
            tags={tag: codes for tag, (codes, _) in tags.items()}
            | {tag: integers(self.numbers(frame[tag]) > bound) for tag, bound in self.above.items()},
            label_names=names,
            tag_names={tag: values for tag, (_, values) in tags.items()},
            elsewhere=self.shown_in(numbers),
            known=self.taken_to_be_known(frame, features),
        )

    def shown_in(self, numbers: Sequence[str]) -> str:
        """In what of other rows a record shows."""
        if self.standardise and set(numbers) - set(self.scale):
            return READ_OFF
        return GUESSED if self.scale and self.scale_guessed else ""

    def taken_to_be_known(self, frame: pd.DataFrame, features: Sequence[str]) -> str:
        """Whoever writes a scale vouches for it; and a text that only one record has is a column of its own."""
        scaled = ["the numbers of [data] scale"] if self.scale else []
        texts = [name for name in features if not is_number(frame[name])]
        texts += self.named if self.predicts != "numbers" else ()
        listed = ", ".join(map(repr, texts))
        return " and ".join([*scaled, *([f"which values {listed} may have"] if texts else [])])

    def scaled(self, name: str, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """By public numbers where they are given."""
        if name in self.scale:
            return by_scale(values, self.scale[name])
        return standardised(values) if self.standardise else values.astype(np.float32)

    @property
    def named(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def targets(self, frame: pd.DataFrame) -> tuple[torch.Tensor, tuple[str, ...]]:
        if self.predicts == "classes":
            one = len(self.named) == 1
            require(one, "label", self.label, "must be one column for classes; set predicts to 'labels' or 'numbers'")
            return self.labels(frame[self.named[0]])
        made = self.yes_or_no if self.predicts == "labels" else self.measured
        return torch.from_numpy(np.stack([made(frame[column]) for column in self.named], 1)), self.named

    @staticmethod
    def yes_or_no(column: Column) -> NDArray[np.bool_]:
        codes, values = sorted_values(column)
        require(len(values) == 2, f"values of label column {column.name!r}", len(values), "must be two: no and yes")
        return np.asarray(codes.numpy() == 1)

    def measured(self, column: Column) -> NDArray[np.float32]:
        return self.scaled(str(column.name), self.numbers(column, "to predict"))

    def without_gaps(self, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
        said = {"label": self.named, "tags": self.tags, "drop": self.drop, "above": self.above}
        for option, columns in said.items():
            for column in columns:
                what = f"{option}: column of {path.name}"
                require(column in frame.columns, what, column, nearest(column, frame.columns))
        for column in self.keep:
            require(column in self.tags, "keep", column, "must be one of tags; other columns are features anyway")
        frame = frame.drop(columns=list(self.drop))
        gaps = frame.isna().sum()
        if gaps.any() and not self.drop_gaps:
            worst = str(gaps.idxmax())
            raise InvalidInput(
                f"column {worst!r} of {path.name} has {int(gaps.max())} gaps in {len(frame)} rows; fill them, "
                "leave the column out with drop=..., or leave those rows out with drop_gaps=True"
            )
        return frame.dropna()

    def numbers(self, column: Column, what: str = "in above") -> NDArray[np.float64]:
        from pandas.api import types

        require(types.is_numeric_dtype(column), f"column {what}", column.name, "holds no numbers; name another")
        return column.to_numpy(np.float64)

    def labels(self, column: Column) -> tuple[torch.Tensor, tuple[str, ...]]:
        codes, values = sorted_values(column)
        if len(values) > min(MOST_CLASSES, max(len(column) // 2, 1)):
            raise InvalidInput(
                f"label column {column.name!r} has {len(values)} values in {len(column)} rows; that is a measurement "
                "or a key, not a class: predict it as such with predicts='numbers', cut it into ranges, or name another"
            )
        return codes, values

    def encoded(self, frame: pd.DataFrame, features: list[str], path: Path) -> NDArray[np.float32]:
        """(rows, columns): numbers as they are or standardised, and a column of zeros and ones for each text."""
        texts = {name: self.texts(frame[name]) for name in features if not is_number(frame[name])}
        widths = [len(texts[name][1]) if name in texts else 1 for name in features]
        remedy = f"its texts become {sum(widths)} columns of numbers; leave some out with drop=... or make them tags"
        require_room(path.name, path.stat().st_size, 4 * len(frame) * sum(widths), remedy)
        x = np.zeros((len(frame), sum(widths)), np.float32)
        for name, end, width in zip(features, np.cumsum(widths), widths, strict=True):
            if name in texts:
                x[np.arange(len(x)), end - width + texts[name][0]] = 1
            else:
                x[:, end - 1] = self.scaled(name, frame[name].to_numpy(np.float64))
        return x

    def texts(self, column: Column) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Each row's text as its number in sorted order, and the texts."""
        import pandas as pd
        from pandas.api import types

        if types.is_datetime64_any_dtype(column):
            raise InvalidInput(
                f"column {column.name!r} holds dates; turn them into numbers or leave it out with drop=..."
            )
        found, known = sorted_values(column)
        codes = found.numpy()
        stray = pd.to_numeric(pd.Series(known), errors="coerce").isna().to_numpy()[codes]
        if not types.is_bool_dtype(column) and 0 < stray.sum() < len(stray) / 2:
            first = int(stray.argmax())
            raise InvalidInput(
                f"column {column.name!r} holds numbers but for {stray.sum()} of {len(stray)} rows, the first with "
                f"{known[codes[first]]!r} in row {column.index[first] + 1}; mend them, or leave the column out with "
                "drop=..."
            )
        if len(known) > MOST_VALUES:
            raise InvalidInput(
                f"column {column.name!r} has {len(known)} different texts, more than {MOST_VALUES}; "
                "leave it out with drop=... or make it a tag"
            )
        return codes, known


def is_number(column: Column) -> bool:
    from pandas.api import types

    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


def sorted_values(column: Column) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Each row's value as its number in sorted order, and the values; of what has no order, as text."""
    import pandas as pd

    try:
        codes, values = pd.factorize(column, sort=True)
    except TypeError:  # numbers among texts
        codes, values = pd.factorize(column.astype(str), sort=True)
    return integers(codes), tuple(map(str, values))


def read_frame(path: Path) -> pd.DataFrame:

    if path.suffix in (".parquet", ".pq"):
        try:
            frame = _read_parquet(path)
        except CoterieError:
            raise
        except ImportError as error:
            raise InvalidInput(
                f"path={path.name} needs pyarrow to be read, which is not installed; install pyarrow, or save it as CSV"
            ) from error
        except Exception as error:  # what others wrote may break any parser in any way
            raise InvalidInput(f"{path.name} cannot be read as Parquet ({error}); write it again") from error
    elif path.name.endswith((".csv", ".csv.gz", ".csv.zip", ".tsv", ".txt")):
        frame = read_delimited(path)
    else:
        raise InvalidInput(
            f"path={path.name} must end in .csv, .csv.gz, .csv.zip, .tsv, .txt or .parquet; save a spreadsheet as CSV"
        )
    require(
        len(frame) > 0, f"rows of {path.name}", 0, "must be at least 1, below a line of column names; is it a table?"
    )
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    """Values that repeat are hardly there, so what they will take is counted before they are unfolded."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    size, file = path.stat().st_size, pq.ParquetFile(path)
    schema, cells = file.schema_arrow, file.metadata.num_rows * file.metadata.num_columns
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    require(not nested, f"columns of {path.name} that hold lists", nested[:3], "must be none; leave them out")
    remedy = f"it has {cells:,} values; save it as CSV"
    require_room(path.name, size, CELL * cells, remedy)
    texts = [field.name for field in schema if field.type in (pa.string(), pa.large_string(), pa.binary())]
    table = pq.read_table(path, read_dictionary=texts)
    for name in texts:
        for part in table[name].chunks:
            lengths = pc.binary_length(part.dictionary).take(part.indices)
            require_room(path.name, size, CELL * cells + 2 * (pc.sum(lengths).as_py() or 0), remedy)
    return table.cast(schema).to_pandas()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Arrays(OwnFile):
    """An npz file. Its arrays are found by their usual names (x or features, y or labels) or by those given.

    Bytes of three or four axes are pictures (n, rows, columns[, channels]) and are scaled to 0..1; other numbers stay
    as they are; whole numbers of two axes given as ``tokens`` are texts. One-hot labels are taken too. With
    ``predicts="labels"`` an example may have several labels (0 and 1), with ``"numbers"`` y are measurements. Further
    arrays of whole numbers or texts, one an example, become tags (``split`` is the published split).
    """

    path: Path
    x: str | None = None
    y: str | None = None
    tokens: bool = False
    predicts: Predicted = "classes"

    name: ClassVar[str] = "arrays"
    about: ClassVar[str] = "an .npz file of yours"
    layout: ClassVar[str] = "an .npz file with an array of examples and one of labels"

    def read(self, folder: Path) -> Examples:
        held = read_npz(folder)
        x_name, y_name = self.chosen("x", self.x, X_NAMES, held), self.chosen("y", self.y, Y_NAMES, held)
        taken = sum(array.nbytes for array in held.values()) + 4 * held[x_name].size  # and x in numbers of four bytes
        require_room(folder.name, folder.stat().st_size, taken, "save it without compression: numpy.savez")
        x, y = held.pop(x_name), held.pop(y_name)
        codes, names = self.targets(y_name, y)
        facts = {name: values for name, values in held.items() if values.shape == (len(x),)}
        texts = {name: numbered(values.tolist()) for name, values in facts.items() if values.dtype.kind == "U"}
        whole = {name: integers(values) for name, values in facts.items() if values.dtype.kind in "iub"}
        return Examples(
            x=self.inputs(x_name, x),
            y=codes,
            classes=len(names),
            name=folder.stem,
            tags={**whole, **{name: own for name, (own, _) in texts.items()}},
            label_names=names,
            tag_names={name: values for name, (_, values) in texts.items()},
        )

    def targets(self, name: str, y: Array) -> tuple[torch.Tensor, tuple[str, ...]]:
        if self.predicts == "classes":
            return numbered_labels(y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(-1))
        wide = y.reshape(len(y), -1)
        names = tuple(map(str, range(wide.shape[1])))
        if self.predicts == "numbers":
            require(wide.dtype.kind in "fiu", f"array {name}", wide.dtype, "must hold numbers to predict")
            return torch.from_numpy(wide.astype(np.float32)), names
        known = np.unique(wide).tolist()
        require(set(known) <= {0, 1}, f"values of array {name}", known[:5], "must be 0 and 1, or truth values")
        return torch.from_numpy(wide.astype(bool)), names

    def chosen(self, what: str, given: str | None, usual: tuple[str, ...], held: dict[str, Array]) -> str:
        name = given if given is not None else next((name for name in usual if name in held), None)
        if name is None:
            raise InvalidInput(f"{self.path} holds {sorted(held)}; say which array is {what}={what!r}")
        require(name in held, f"array {what}", name, nearest(name, held))
        return name

    def inputs(self, name: str, x: Array) -> torch.Tensor:
        if self.tokens:
            require(
                x.ndim == 2 and x.dtype.kind in "iu", f"array {name}", (x.dtype, x.shape), "must be (n, length) tokens"
            )
            return integers(x)
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return pixels(x)
        require(
            x.ndim >= 2 and x.dtype.kind in "fiub",
            f"array {name}",
            (x.dtype, x.shape),
            "must be numbers of two axes or more",
        )
        return torch.from_numpy(x.astype(np.float32))


def numbered_labels(y: Array) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Whole numbers from 0 stay as they are; other labels are numbered in sorted order."""
    if y.dtype.kind in "iu" and y.size and y.min() >= 0 and y.max() < MOST_CLASSES:
        return integers(y), tuple(map(str, range(int(y.max()) + 1)))
    values, codes = np.unique(y, return_inverse=True)
    require(
        len(values) <= MOST_CLASSES, "classes", len(values), f"must be at most {MOST_CLASSES}; are these measurements?"
    )
    return integers(codes), tuple(map(str, values))


@dataclass(frozen=True)
class ImageFolder(OwnFile):
    """Pictures in one subfolder a class, scaled to one size."""

    path: Path
    rows: int = 32
    columns: int = 32
    grey: bool = False

    name: ClassVar[str] = "images"
    about: ClassVar[str] = "a folder of yours with one subfolder of pictures a class"
    layout: ClassVar[str] = "class-name/picture.{jpg,png,...}"

    def read(self, folder: Path) -> Examples:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        paths = [path for home in classes for path in sorted(home.rglob("*")) if path.suffix.lower() in ENDINGS]
        if not paths:
            raise InvalidInput(f"path={folder} has no pictures in subfolders; expected {self.layout}")
        y, names = numbered(path.relative_to(folder).parts[0] for path in paths)
        return Examples(
            x=pixels(read_pictures(paths, (self.rows, self.columns), grey=self.grey)),
            y=y,
            classes=len(names),
            name=folder.name,
            label_names=names,
        )
