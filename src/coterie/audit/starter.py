"""`coterie init` for a user's own data: a configuration that fits the file, with what had to be guessed said beside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.audit import toml
from coterie.data.federation import Examples
from coterie.data.sources.base import describe
from coterie.data.sources.own import MOST_VALUES, Arrays, ImageFolder, Table, read_frame
from coterie.errors import DataMissing, InvalidInput, nearest, require

if TYPE_CHECKING:
    import pandas as pd


MOST_SETS, ROWS_A_CLIENT = 5, 40
FEW_VALUES = 10  # a column with no more than these is taken as it is; one of more numbers is cut
SHARES = (0.1, 0.5)  # how common a property should be
CUT = 0.7  # the quantile above which a number counts as having the property
LEAST_OF_A_SITE = 10  # rows: with fewer it has nothing to be tested on
LEAST_OF_A_CLASS = 6  # rows with the property, and as many without, so that their label mixes can be matched
SENSITIVE = re.compile(
    r"(^|[^a-z])(sex|gender|rac[ei]|ethnic|religio|marital|married|relationship|nativ|national|country|birth|age|disab|"
    r"health|diseas|diagnos|pregnan|orient|politic|party|union|immigr|citizen|language|criminal)",
    re.IGNORECASE,
)
"""How columns are called that say something of a person which a federation should not give away."""

BOOKKEEPING = re.compile(r"(weight|wgt|wt)$|^(index|unnamed.*|row.*|key|number|no|nr)$|(^|_)id$", re.IGNORECASE)
"""How columns are called that serve whoever made the table: survey weights, row numbers, keys."""

MOST_GAPS = 0.3  # the share of gaps from which on a column is left out


@dataclass(frozen=True)
class Property:
    """Something about a row that nobody trains for: how it is asked for, and who has it."""

    tag: str
    value: int
    says: str  # in words
    option: dict[str, Any]  # what the data must be told for it
    has: NDArray[np.bool_]


def fitted(path: Path, label: str | None, site: str | None = None) -> str:
    """The text of a configuration for this table, these arrays or these pictures.

    ``site``: the column of a table that says who holds a row; without it, clients are made up.
    """
    if not path.exists():
        raise DataMissing(f"data={path} does not exist; name a .csv, .parquet or .npz file, or a folder of pictures")
    if site is not None and (path.is_dir() or path.suffix == ".npz"):
        raise InvalidInput(f"site={site!r} is a column of a table, and {path.name} is none; leave --site out")
    if path.is_dir():
        return _text(path, {"kind": "images", "path": str(path)}, ImageFolder(path).load(), None)
    if path.suffix == ".npz":
        examples = Arrays(path).load()
        return _text(path, {"kind": "arrays", "path": str(path)}, examples, _best(_of_tags(examples), examples))
    return _of_table(path, label, site)


def _of_table(path: Path, label: str | None, site: str | None) -> str:
    frame = read_frame(path)
    if label is None:
        raise InvalidInput(f"say which column of {path.name} is to be learnt: --label ONE_OF {list(frame.columns)}")
    require(label in frame.columns, f"label, a column of {path.name},", label, nearest(label, frame.columns))
    if site is not None:
        others = [name for name in frame.columns if name != label]
        require(site in others, f"site, a column of {path.name},", site, nearest(site, others))
    own = [label] if site is None else [label, site]
    table = Table(path, label, drop=tuple(_useless(frame.drop(columns=own))), tags=() if site is None else (site,))
    table = replace(table, drop_gaps=bool(frame.drop(columns=list(table.drop)).isna().any(axis=None)))
    examples = table.load()
    kept = frame.drop(columns=list(table.drop)).dropna()
    found = _best(_of_columns(kept.drop(columns=own)), examples)
    data: dict[str, Any] = {"kind": "table", "path": str(path), "label": label}
    if table.drop:
        data["drop"] = list(table.drop)
    if table.drop_gaps:
        data["drop_gaps"] = True
    if site is None:
        return _text(path, data, examples, found)
    data["tags"] = [site]
    return _text(path, data, examples, found, _by_site(kept, site))


def _useless(frame: pd.DataFrame) -> Iterator[str]:
    """Columns that nothing can be learnt from as they are: keys, dates, free text, mostly gaps, one value only."""
    from pandas.api import types

    for name in frame.columns:
        column = frame[name]
        values = column.nunique()
        key = types.is_integer_dtype(column) and values == len(column) and bool(column.is_monotonic_increasing)
        text = not types.is_numeric_dtype(column) and values > MOST_VALUES
        if key or text or values < 2 or types.is_datetime64_any_dtype(column) or column.isna().mean() > MOST_GAPS:
            yield str(name)


@dataclass(frozen=True)
class Spread:
    """How rows come to clients: the table of ``[partition]``, in words, and how many clients and clusters there are."""

    said: str
    clients: int
    clusters: int


def _by_site(frame: pd.DataFrame, site: str) -> Spread:
    """A client is a site, with the rows that it really holds."""
    sizes = frame[site].value_counts()
    clients = int((sizes >= LEAST_OF_A_SITE).sum())
    require(
        clients >= 2,
        f"sites with {LEAST_OF_A_SITE} rows or more",
        clients,
        f"must be 2 at least; is {site!r} the column?",
    )
    words = f"# A client is a value of the column {site!r}: {clients} of them have {LEAST_OF_A_SITE} rows or more."
    table = {"kind": "by_tag", "tag": site, "minimum": LEAST_OF_A_SITE}
    return Spread(f"{words}\n[partition]\n{toml.entries(table)}", clients, min(MOST_SETS, max(1, clients // 4)))


def _by_labels(examples: Examples) -> Spread:
    sets = min(examples.classes, MOST_SETS)
    clients = sets * min(4, max(2, len(examples) // (ROWS_A_CLIENT * sets)))
    template = Template(resources.files("coterie.audit").joinpath("label_sets.toml").read_text())
    return Spread(template.substitute(sets=sets, clients=clients).strip(), clients, sets)


def _text(
    path: Path, data: dict[str, Any], examples: Examples, found: Property | None, spread: Spread | None = None
) -> str:
    spread = spread or _by_labels(examples)
    asked = "# property = { tag = ..., value = ... }   # no column was found that would do; see docs/audit.md"
    if found is not None:
        option = found.option
        data |= {name: [*data.get(name, []), *value] if name == "tags" else value for name, value in option.items()}
        words = f"# What a curious client would like to know of another's rows: {found.says}. Name what matters to you."
        asked = f"{words}\nproperty = {toml.value_of({'tag': found.tag, 'value': found.value})}"
    template = Template(resources.files("coterie.audit").joinpath("starter.toml").read_text())
    return template.substitute(
        path=path.name,
        about=describe(examples),
        name=path.stem,
        data=toml.entries(data),
        partition=spread.said,
        clusters=spread.clusters,
        batch=32 if len(examples) >= 50 * spread.clients else 16,
        property=asked,
    )


def _best(candidates: Iterator[Property], examples: Examples) -> Property | None:
    """What is sensitive by its name before what is not; of these, the one that has least to do with the label.

    Recognising labels must not pass for recognising the property.
    """
    classes = np.eye(examples.classes, dtype=bool)[examples.y.numpy()]  # (rows, classes)
    best, least = None, (True, np.inf)
    for found in candidates:
        with_it = (classes & found.has[:, None]).sum(0)
        without = classes.sum(0) - with_it
        if min(with_it.min(), without.min()) < LEAST_OF_A_CLASS:
            continue
        rates = with_it / classes.sum(0)
        rank = (SENSITIVE.search(found.tag) is None, float(rates.max() - rates.min()))
        if rank < least:
            best, least = found, rank
    return best


def _numbers_rows(column: pd.Series) -> bool:
    """Whole numbers, hardly one of which comes twice: a key, in whatever order."""
    from pandas.api import types

    return bool(types.is_integer_dtype(column) and column.nunique() > 0.95 * len(column))


def _common(has: NDArray[np.bool_]) -> bool:
    return bool(SHARES[0] <= has.mean() <= SHARES[1])


def _of_tags(examples: Examples) -> Iterator[Property]:
    for name, values in examples.tags.items():
        for value in values.unique().tolist()[:FEW_VALUES]:
            has = (values == value).numpy()
            if _common(has):
                yield Property(name, value, f"{name} is {value}", {}, has)


def _of_columns(frame: pd.DataFrame) -> Iterator[Property]:
    """A value of a column with few, or the upper end of one with many numbers; of nothing that is mere bookkeeping."""
    from pandas.api import types

    for name in map(str, frame.columns):
        column = frame[name]
        if BOOKKEEPING.search(name) or _numbers_rows(column):
            continue
        if column.nunique() <= FEW_VALUES:
            known, codes = np.unique(column.to_numpy(), return_inverse=True)
            for number, value in enumerate(known):
                if _common(codes == number):
                    yield Property(name, number, f"{name} is {value}", {"tags": [name]}, codes == number)
        elif types.is_numeric_dtype(column):
            cut = float(f"{column.quantile(CUT):.3g}")
            has = column.to_numpy(np.float64) > cut
            if _common(has):
                yield Property(name, 1, f"{name} above {cut:g}", {"above": {name: cut}}, has)
