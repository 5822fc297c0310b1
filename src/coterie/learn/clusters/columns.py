"""What a party that holds some columns of all records computes: how far each record is from each centre, and means."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from coterie.learn.clusters.points import chunk_rows
from coterie.learn.threads import each_in_one_thread
from coterie.wire.codec import register

Floats = NDArray[Any]  # in single or double precision

ROWS = 1 << 13  # looked at together by one thread
AT_ONCE = 8  # of these, in the same room to work in
FEW = 0.1  # of the records: if no more have changed their label, sums follow from those before
BLOCK = 1 << 10  # records added up in their own precision; the blocks' sums are added in doubles
PRODUCTS = 900_000  # of one matrix product: up to 10^6, OpenBLAS has a kernel for small ones, which is twice as fast


def squared_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of (x - c)^2. Sums over parties are squared Euclidean distances.

    One product a block: of (x - m, |x - m|^2, 1) with (-2 (c - m), 1, |c - m|^2), where m is the mean of the records,
    so that data far from the origin keep their digits.
    """
    mean, extended = _extended(x)
    shifted = (centres.double() - mean).numpy()
    lengths = np.square(shifted).sum(1, keepdims=True)
    factors = np.concatenate([-2 * shifted, np.ones_like(lengths), lengths], 1).T.astype(extended.dtype, order="C")
    size, plain = max(64, PRODUCTS // factors.size), out.numpy()
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        np.matmul(extended[rows], factors, out=plain[rows])
        if plain[rows].min() < 0:  # by rounding, which is rare: to look is faster than to write
            out[rows].clamp_min_(0)


_known: dict[int, tuple[weakref.ref[Tensor], int, tuple[Tensor, Floats]]] = {}


def _extended(x: Tensor) -> tuple[Tensor, Floats]:
    """The mean (columns,) in doubles, and (records, columns + 2): x about it, its squared length, and 1.

    It is the same in every step of a run, so it is kept for as long as these columns are, and made anew if they change.
    """
    kept = _known.get(id(x))
    if kept is not None and kept[0]() is x and kept[1] == x._version:
        return kept[2]
    mean = x.mean(0, dtype=torch.float64)
    found = np.empty((len(x), x.shape[1] + 2), dtype=x.numpy().dtype)
    about = found[:, :-2]
    np.subtract(x.numpy(), mean.numpy(), out=about, casting="same_kind")
    found[:, -2], found[:, -1] = np.einsum("ij,ij->i", about, about), 1
    key = id(x)
    _known[key] = (weakref.ref(x, lambda _: _known.pop(key, None)), x._version, (mean, found))
    return mean, found


def absolute_differences(x: Tensor, centres: Tensor, out: Tensor) -> None:
    """(records, centres): the sum over these columns of |x - c|, each column's own Euclidean distance."""
    size = chunk_rows(x.shape[1] * (len(centres) + 1))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        out[rows] = torch.cdist(x[rows], centres, p=1.0)


@register
@dataclass(frozen=True)
class Added:
    """Sums of a party's columns, (labels, columns) in doubles, and of which labels of the records they are."""

    labels: Tensor  # (records,)
    sums: Tensor


class Labelled:
    """Records by their labels, for whoever adds up columns of them: made once for all parties of a cohort."""

    def __init__(self, labels: Tensor, count: int) -> None:
        self.labels, self.count = labels, count
        self._changes: dict[int, tuple[Tensor, tuple[Tensor, csc_array] | None]] = {}

    @cached_property
    def heads(self) -> Tensor:
        """(labels, 1): how many records have each."""
        return torch.bincount(self.labels, minlength=self.count).unsqueeze(1)

    @cached_property
    def _one_hot(self) -> csc_array:
        """(blocks x labels, records): to which label of which block each record is added."""
        records = len(self.labels)
        blocks = -(-records // BLOCK)
        places = torch.arange(blocks, dtype=torch.int32).mul_(self.count).repeat_interleave(BLOCK)[:records]
        ends = np.arange(records + 1, dtype=np.int32)
        ones = np.ones(records, dtype=np.float32)
        return csc_array((ones, places.add_(self.labels).numpy(), ends), shape=(self.count * blocks, records))

    def prepare(self, before: Iterable[Added | None]) -> None:
        """All that labels alone decide, before several threads ask for it."""
        since = [None if one is None else self._since(one.labels) for one in before]
        _ = self.heads, self._one_hot if None in since else None

    def sums(self, x: Tensor) -> Tensor:
        """(labels, columns): in doubles, over sums of blocks in the precision of x. It walks the records in order."""
        return self._over_blocks(self._one_hot, x)

    def added(self, x: Tensor, before: Added | None) -> Added:
        """The sums with their labels, from those of earlier labels of the same records where few have changed."""
        moved = None if before is None or before.sums.shape != (self.count, x.shape[1]) else self._since(before.labels)
        if before is None or moved is None:
            return Added(self.labels, self.sums(x))
        rows, change = moved
        gone = torch.from_numpy(np.take(x.numpy(), rows.numpy(), axis=0))  # twice as fast as torch's
        return Added(self.labels, before.sums + self._over_blocks(change, gone) if len(rows) else before.sums)

    def means(self, x: Tensor, otherwise: Tensor) -> Tensor:
        """(labels, columns): the mean of the records of each label; of one that no record has, what it is otherwise."""
        return self.means_of(Added(self.labels, self.sums(x)), otherwise)

    def means_of(self, added: Added, otherwise: Tensor) -> Tensor:
        means = (added.sums / self.heads.clamp_min(1)).to(otherwise.dtype)
        return torch.where(self.heads > 0, means, otherwise)

    def _over_blocks(self, matrix: csc_array, x: Tensor) -> Tensor:
        found = torch.from_numpy(matrix @ x.numpy())
        return found.view(-1, self.count, x.shape[1]).sum(0, dtype=torch.float64)

    def _since(self, before: Tensor) -> tuple[Tensor, csc_array] | None:
        """Records whose label is another, and (blocks x labels, these): off the old one, on to the new one.

        None where they are so many that to start over is faster. Parties that were told the same ask for the same.
        """
        known = self._changes.get(id(before))
        if known is not None and known[0] is before:
            return known[1]
        found = None
        if before.shape == self.labels.shape:
            rows = torch.from_numpy(np.flatnonzero(before.numpy() != self.labels.numpy()))  # thrice as fast as torch's
            if len(rows) <= FEW * len(before):
                found = rows, self._moving(before[rows], self.labels[rows])
        self._changes[id(before)] = (before, found)
        return found

    def _moving(self, old: Tensor, new: Tensor) -> csc_array:
        count, blocks = len(old), -(-len(old) // BLOCK)
        first = torch.arange(blocks, dtype=torch.int32).mul_(self.count).repeat_interleave(BLOCK)[:count]
        places = torch.stack([first + old, first + new], 1).flatten().numpy()
        signs = np.tile(np.array([-1, 1], dtype=np.float32), count)
        ends = np.arange(0, 2 * count + 1, 2, dtype=np.int32)
        return csc_array((signs, places, ends), shape=(self.count * blocks, count))


def means_by_label(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(centres, columns): the mean of the records of each label. One that no record has keeps its centre."""
    return Labelled(labels, len(centres)).means(x, centres)


def small(count: int) -> torch.dtype:
    """Of labels that are so many."""
    return torch.uint8 if count <= 256 else torch.int32


def least_of_each(rows: Tensor) -> Tensor:
    """(rows,): the place of each row's least number, the first of equal ones; none may be NaN."""
    return least_of_blocks(rows.__getitem__, *rows.shape)


def least_of_blocks(block: Callable[[slice], Tensor], records: int, width: int) -> Tensor:
    """The same of rows that are had some at a time, so that all of them are never there at once.

    Column by column, how many come before the first that is the least: a search row by row takes twice as long, for
    nobody can foretell its branches.
    """
    found = torch.empty(records, dtype=small(width))
    places = found.numpy()
    kind = block(slice(0, 1)).numpy().dtype

    def look(part: range) -> None:
        across, above = np.empty((width, ROWS), kind), np.empty((width, ROWS), np.bool_)  # used again, in the cache
        for at in part:
            span = slice(at, min(at + ROWS, records))
            _first_least(block(span).numpy(), across, above, places[span])

    starts = range(0, records, ROWS)[::-1]  # from the end, which was written last and is in the cache yet
    each_in_one_thread(look, [starts[place : place + AT_ONCE] for place in range(0, len(starts), AT_ONCE)])
    return found


def _first_least(rows: Floats, across: Floats, above: NDArray[np.bool_], places: NDArray[Any]) -> None:
    """Into ``places``; ``across`` and ``above`` (numbers, rows or more) are room to work in."""
    across, above = across[:, : len(rows)], above[:, : len(rows)]
    across[...] = rows.T
    np.not_equal(across, across.min(0), out=above)
    before = above[0]
    places[:] = before
    for later in above[1:-1]:
        np.logical_and(before, later, out=before)
        np.add(places, before.view(np.uint8), out=places)
