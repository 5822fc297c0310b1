"""Parties' tables of the same records, brought into one order: by place, by index, or by identifiers.

Joining by identifiers shows each party's identifiers to whoever runs it, unless another ``Join`` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Examples, VerticalFederation
from coterie.data.holdings import UserData, is_frame
from coterie.errors import InvalidInput, require
from coterie.files import Array

Ids = Array
Orders = list[NDArray[np.int64]]
Join = Callable[[Sequence[Ids]], Orders]
"""From each party's identifiers, which come once, to where each has those that all have, in one order."""


@dataclass(frozen=True)
class Aligned:
    """All columns side by side, one row a record that every party has, and whose each column is."""

    table: UserData  # a DataFrame if all parties brought one, else a matrix
    owners: NDArray[np.int64] | None  # (columns,); None: one party holds them all
    parties: tuple[Hashable, ...]
    ids: Ids | None = None  # (records,): what names each record; None: its place
    left_out: tuple[int, ...] = ()  # how many of each party's records some other party does not have

    def federation(self, x: Tensor) -> VerticalFederation:
        """``x`` (records, columns) is the table as numbers."""
        owners = np.zeros(x.shape[1], dtype=np.int64) if self.owners is None else self.owners
        columns = tuple(torch.from_numpy(np.flatnonzero(owners == party)) for party in range(len(self.parties)))
        return VerticalFederation(Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "columns"), columns)


def aligned(given: UserData, columns: UserData = None, ids: UserData = None, join: Join | None = None) -> Aligned:
    """What parties hold, record by record.

    - a dictionary {party: table} or a sequence of tables, one a party. DataFrames must have the same index, in the same
      order; arrays the same number of rows. ``ids`` joins them otherwise: the name of a column that all have (it is no
      feature), or a sequence with the identifiers of each party's rows. Records that some party lacks are left out;
      the others are in the order of the first party's.
    - a matrix or a DataFrame, and in ``columns`` whose each column is; without, one party holds everything.
    """
    if isinstance(given, Mapping) and not hasattr(given, "shape"):  # some sparse matrices are mappings
        tables, names = list(given.values()), tuple(given)
    elif isinstance(given, Sequence) and not isinstance(given, str) and len(given) and _axes(given[0]) == 2:
        tables, names = list(given), tuple(range(len(given)))
    else:
        require(ids is None, "ids", "given", "must be None beside one table: its rows are aligned already")
        return _by_owner(given, columns)
    require(columns is None, "columns", "given", "must be None beside one table a party")
    require(len(tables) > 0, "parties", 0, "must be at least 1")
    return _joined(tables, names, ids, join or in_the_open)


def _axes(table: UserData) -> int:
    return int(table.ndim) if hasattr(table, "ndim") else np.ndim(table)


def _by_owner(table: UserData, columns: UserData) -> Aligned:
    if columns is None:
        return Aligned(table, None, (0,))
    width = np.shape(table)[1] if _axes(table) == 2 else 0
    require(len(columns) == width, "len(columns)", len(columns), f"must be one a column of X ({width})")
    parties = tuple(dict.fromkeys(columns))
    owners = np.array([parties.index(owner) for owner in columns], dtype=np.int64)
    return Aligned(table, owners, parties)


def _rows(table: UserData) -> int:
    return int(np.shape(table)[0])


def _joined(tables: list[UserData], names: tuple[Hashable, ...], ids: UserData, join: Join) -> Aligned:
    frames = all(is_frame(table) for table in tables)
    if ids is None:
        named = _same_rows(tables, names)
        orders = [np.arange(len(named))] * len(tables)
    else:
        tables, identifiers = _identified(tables, names, ids, frames)
        named, orders = common(identifiers, names, join)
    for table, name in zip(tables, names, strict=True):
        _require_numbers(table, name)
    lengths = [_rows(table) for table in tables]
    widths = [table.shape[1] for table in tables]
    if frames:
        import pandas as pd

        parts = [table.iloc[order].reset_index(drop=True) for table, order in zip(tables, orders, strict=True)]
        whole: UserData = pd.concat(parts, axis=1)
        twice = [str(column) for column in whole.columns[whole.columns.duplicated()]]
        require(not twice, "columns of two parties", twice[:5], "must have different names; rename them")
    else:
        whole = np.concatenate([np.asarray(table)[order] for table, order in zip(tables, orders, strict=True)], axis=1)
    return Aligned(
        whole, np.repeat(np.arange(len(tables)), widths), names, named, tuple(one - len(named) for one in lengths)
    )


def _require_numbers(table: UserData, name: Hashable) -> None:
    require(_axes(table) == 2, f"table of party {name!r}", np.shape(table), "must be (records, columns)")
    require(table.shape[1] > 0, f"columns of party {name!r}", 0, "must be at least one; leave that party out")
    values = table.to_numpy() if is_frame(table) else np.asarray(table)
    numeric = values.dtype.kind in "fiub"
    kinds = zip(table.columns, table.dtypes, strict=True) if is_frame(table) else ()
    texts = [str(column) for column, kind in kinds if kind.kind not in "fiub"]
    what = texts[:5] or str(values.dtype)
    require(numeric, f"columns of party {name!r} that hold no numbers", what, "must be encoded first, or left out")
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise InvalidInput(f"record {int(bad[0])} of party {name!r} has NaN or infinity; clean or drop that record")


def _same_rows(tables: list[UserData], names: tuple[Hashable, ...]) -> Ids:
    """What names the records of tables that are said to be in one order."""
    rows = [_rows(table) for table in tables]
    for name, count in zip(names, rows, strict=True):
        require(
            count == rows[0],
            f"records of party {name!r}",
            count,
            f"must be {rows[0]}, as party {names[0]!r} has; name them by ids= (for `coterie cluster` "
            "--id) to keep those that all have",
        )
    indexed = [(name, table.index) for name, table in zip(names, tables, strict=True) if is_frame(table)]
    for name, index in indexed:
        require(
            index.equals(indexed[0][1]),
            f"index of party {name!r}",
            index[:3].tolist(),
            f"must be that of party {indexed[0][0]!r} in the same order: records are misaligned; name them by ids=",
        )
    return indexed[0][1].to_numpy() if indexed else np.arange(rows[0])


def _identified(
    tables: list[UserData], names: tuple[Hashable, ...], ids: UserData, frames: bool
) -> tuple[list[UserData], list[Ids]]:
    """The tables without their identifiers, and the identifiers."""
    if isinstance(ids, str):
        require(frames, "ids", ids, "names a column, so every party must bring a DataFrame")
        for table, name in zip(tables, names, strict=True):
            require(
                ids in table.columns, "ids", ids, f"is no column of party {name!r}; it has {list(table.columns)[:8]}"
            )
        return [table.drop(columns=[ids]) for table in tables], [table[ids].to_numpy() for table in tables]
    require(len(ids) == len(tables), "len(ids)", len(ids), f"must be one list of identifiers a party ({len(tables)})")
    found = [np.asarray(own) for own in ids]
    for own, table, name in zip(found, tables, names, strict=True):
        require(len(own) == _rows(table), f"ids of party {name!r}", len(own), f"must be one a record ({_rows(table)})")
    return tables, found


def common(identifiers: Sequence[Ids], names: Sequence[Hashable], join: Join) -> tuple[Ids, Orders]:
    """The identifiers that all have, in the order of the first, and where each of them has these."""
    import pandas as pd

    for own, name in zip(identifiers, names, strict=True):
        index = pd.Index(own)
        missing = int(np.sum(index.isna()))
        require(missing == 0, f"records of party {name!r} without an id", missing, "must be none; drop them")
        twice = index[index.duplicated()]
        require(
            len(twice) == 0, f"ids of party {name!r} that come twice", twice[:3].tolist(), "must come once; merge them"
        )
    orders = join(identifiers)
    require(len(orders[0]) > 0, "ids that all parties have", 0, "must be at least one; are they written alike?")
    return identifiers[0][orders[0]], orders


def in_the_open(identifiers: Sequence[Ids]) -> Orders:
    """By whoever is shown all of them."""
    import pandas as pd

    indexes = [pd.Index(own) for own in identifiers]
    shared = indexes[0]
    for index in indexes[1:]:
        shared = shared[shared.isin(index)]
    return [index.get_indexer(shared).astype(np.int64) for index in indexes]
