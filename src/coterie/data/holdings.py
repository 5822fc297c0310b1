"""Who holds which row: what users have (tables and groups, parts, dictionaries, groupbys) as one table with owners."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards
from coterie.errors import InvalidInput, require
from coterie.files import Array

LARGEST = 1e15
"""Larger numbers are cut to this: their squares still fit into float32. One record must not stop the others."""

UserData = Any
"""An array, a DataFrame, a groupby, a list of parts: whatever a user has."""


@dataclass(frozen=True)
class Holdings:
    """All rows in the order in which they were given, and the client that holds each."""

    table: UserData
    owners: NDArray[np.int64]  # (rows,): positions in ``clients``; not used if one client holds everything
    clients: tuple[Hashable, ...]
    grouped_by: tuple[Hashable, ...] = ()  # columns that say who holds a row, and are no features
    together: bool = False  # nobody said who holds what, so one client holds everything

    def federation(self, x: Tensor, weights: Array | None, weight: str) -> Federation:
        """``x`` (rows, features) is the table as numbers; ``weight`` names the tag of the weights.

        A client without rows is kept.
        """
        owners = np.zeros(len(x), dtype=np.int64) if self.together else self.owners
        rows = torch.from_numpy(np.argsort(owners, kind="stable"))
        sizes = np.bincount(owners, minlength=len(self.clients))
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
        nothing = Shards(torch.empty(0, dtype=torch.int64), torch.zeros_like(offsets))
        tags = {} if weights is None else {weight: torch.from_numpy(weights.clip(0, LARGEST).astype(np.float32))}
        examples = Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "parts", tags)
        return Federation(examples, Shards(rows, offsets), nothing, torch.full((len(self.clients),), -1))


def as_floats(values: Array) -> Tensor:
    """float32, cut to ``LARGEST``."""
    return torch.from_numpy(np.clip(values, -LARGEST, LARGEST).astype(np.float32, order="C"))


def holdings(given: UserData, groups: UserData = None) -> Holdings:
    """One table, and who holds each row.

    - a matrix or a DataFrame with ``groups``: one entry a row (array-like or a Series), or the name of a column; a
      categorical's categories are the roster, those without rows included;
    - a dictionary {client: rows}, a sequence of parts (one a client), an array (clients, rows, features);
    - ``frame.groupby(...)``, whose keys are no features if they are columns;
    - a matrix or a DataFrame alone: one client holds everything.
    """
    if hasattr(given, "ngroup"):
        _no_groups(groups, "a groupby")
        return _from_groupby(given)
    if isinstance(given, Mapping):
        _no_groups(groups, "a dictionary of clients")
        return _joined(list(given.values()), tuple(given), "X")
    if _is_parts(given):
        _no_groups(groups, "a list of parts")
        return _joined(list(given), tuple(range(len(given))), "parts")
    if groups is None:
        return Holdings(given, np.zeros(0, dtype=np.int64), (0,), together=True)
    if is_frame(given) and _names_a_column(groups, given):
        return _by_codes(given.drop(columns=[groups]), given[groups], (groups,))
    if isinstance(groups, str):
        raise InvalidInput(f"groups={groups!r} is no column of X; pass a DataFrame with it, or one entry a row")
    if hasattr(groups, "index") and is_frame(given) and not isinstance(groups, Sequence):
        same = groups.index.equals(given.index)
        require(same, "groups.index", "not X.index", "must be; pass groups.loc[X.index], or groups.to_numpy() by place")
    return _by_codes(given, groups, ())


def is_frame(given: UserData) -> bool:
    """pandas is not imported to ask: most callers have no use for it."""
    return hasattr(given, "columns") and hasattr(given, "iloc")


def _rows(table: UserData) -> int:
    shape = getattr(table, "shape", None)
    return int(shape[0]) if shape else len(table) if hasattr(table, "__len__") else 0


def _no_groups(groups: UserData, kind: str) -> None:
    require(groups is None, "groups", "given", f"must be None beside {kind}, which says itself who holds what")


def _names_a_column(groups: UserData, frame: UserData) -> bool:
    return isinstance(groups, Hashable) and groups in frame.columns


def _is_parts(given: UserData) -> bool:
    if isinstance(given, np.ndarray | Tensor):
        return given.ndim == 3
    if isinstance(given, str) or not isinstance(given, Sequence):
        return False
    return len(given) == 0 or _depth(given[0]) == 2


def _depth(part: UserData) -> int:
    """The number of axes, without reading what may be a large list."""
    if hasattr(part, "ndim"):
        return int(part.ndim)
    if isinstance(part, list | tuple):
        return 1 + (_depth(part[0]) if len(part) else 0)
    return 0


def _by_codes(table: UserData, groups: UserData, columns: tuple[Hashable, ...]) -> Holdings:
    import pandas as pd

    require(np.ndim(groups) == 1, "groups of shape", np.shape(groups), "must be one entry a row")
    labels, rows = pd.Series(groups), _rows(table)
    require(len(labels) == rows, "len(groups)", len(labels), f"must be one a row of X ({rows})")
    named = isinstance(labels.dtype, pd.CategoricalDtype)
    codes, found = (labels.cat.codes, labels.cat.categories) if named else pd.factorize(labels, use_na_sentinel=True)
    missing = int((codes < 0).sum())
    require(missing == 0, "groups without a client", missing, "must be none; drop those rows, or name their client")
    return Holdings(table, np.asarray(codes, dtype=np.int64), tuple(found), columns)


def _from_groupby(given: UserData) -> Holdings:
    frame, by = given.obj, given.keys
    keys = tuple(one for one in (by if isinstance(by, list) else [by]) if _names_a_column(one, frame))
    if len(keys) == 1 and hasattr(frame[keys[0]], "cat"):
        return _by_codes(frame.drop(columns=list(keys)), frame[keys[0]], keys)
    codes = given.ngroup()
    missing = int((codes < 0).sum() + codes.isna().sum())
    require(missing == 0, "rows without a group", missing, "must be none; drop those rows, or name their client")
    clients = tuple(key for key, _ in given)
    return Holdings(frame.drop(columns=list(keys)), codes.to_numpy(np.int64), clients, keys)


def _joined(parts: list[UserData], clients: tuple[Hashable, ...], name: str) -> Holdings:
    """Parts one after the other; frames must agree in their columns."""
    require(len(parts) > 0, name, 0, "must hold at least one client's points")
    named = [f"{name}[{client!r}]" for client in clients]
    frames = [part for part in parts if is_frame(part)]
    if len(frames) == len(parts):
        for part, called in zip(frames, named, strict=True):
            same = list(part.columns) == list(frames[0].columns)
            require(
                same, f"columns of {called}", list(part.columns)[:5], f"must be those of {named[0]}, in their order"
            )
        import pandas as pd

        table: UserData = pd.concat(frames, ignore_index=True)
        sizes = [len(part) for part in frames]
    else:
        arrays = [_matrix(part, called) for part, called in zip(parts, named, strict=True)]
        widths = {array.shape[1] for array in arrays if len(array)}
        require(
            len(widths) == 1,
            "features of the parts",
            sorted(widths),
            "must be the same for all, and at least one point",
        )
        table, sizes = np.concatenate([array for array in arrays if len(array)]), [len(array) for array in arrays]
    return Holdings(table, np.repeat(np.arange(len(parts)), sizes), clients)


def _matrix(values: UserData, name: str) -> Array:
    found = np.asarray(values.numpy() if isinstance(values, Tensor) else values)
    require(found.ndim == 2, f"{name}.shape", found.shape, "must be (points, features)")
    require(found.dtype.kind in "fiub", f"{name}.dtype", found.dtype, "must be numbers")
    if len(found):
        require(found.shape[1] > 0, f"{name}.shape", found.shape, "must have at least one feature")
        finite = np.isfinite(found)
        row = int(np.argmin(finite.all(1)))
        require(bool(finite.all()), f"{name}[{row}]", found[row].tolist()[:5], "has NaN or infinity; drop that point")
    return found
