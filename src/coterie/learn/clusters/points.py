"""The points of several clients in one matrix, and how to walk over it in pieces.

The points of client i are rows ``offsets[i]:offsets[i + 1]`` of one matrix. Every kernel walks that matrix in chunks of
rows, so that memory beyond the inputs and the answer stays at a few megabytes. A chunk is read once; what is computed
from it stays in buffers that the next chunk uses again. The data are never copied as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from coterie.errors import InvalidInput, require

CHUNK_FLOATS = 1 << 20
"""Working memory of one chunk, in floats: 4 MiB stays in the cache, and is long enough for what each chunk costs."""


@dataclass(frozen=True)
class Points:
    """The points of several clients, one client after the other. The public door: checks once."""

    x: Tensor  # (points, features) float32
    offsets: Tensor  # (clients + 1,) int64
    finite: bool = False  # True: whoever made x has looked for NaN; ten million points need not be read once more
    weights: Tensor | None = None  # (points,) float32, at most 1 where one record is to be hidden; None: all 1

    def __post_init__(self) -> None:
        require(self.x.dim() == 2, "points", tuple(self.x.shape), "must be a matrix (points, features)")
        require(self.x.is_floating_point(), "points dtype", self.x.dtype, "must be floating; call .float() on it")
        sizes = self.offsets.diff()
        require(
            len(self.offsets) > 1 and int(self.offsets[0]) == 0 and int(self.offsets[-1]) == len(self.x),
            "offsets",
            (int(self.offsets[0]), int(self.offsets[-1])),
            f"must run from 0 to the number of points, {len(self.x)}, with at least one client",
        )
        require(bool((sizes >= 0).all()), "offsets", int(sizes.min()), "must not decrease")
        weights = None if self.weights is None else len(self.weights)
        require(weights in (None, len(self.x)), "len(weights)", weights, f"must be one a point ({len(self.x)})")
        # NaN and infinity survive a sum; large finite numbers may overflow it.
        if not self.finite and not math.isfinite(self.x.sum().item()):
            self._require_finite()

    def _require_finite(self) -> None:
        for rows, part in chunks(self.x, 0):
            if not bool(torch.isfinite(part).all()):
                row = rows.start + int((~torch.isfinite(part).all(1)).nonzero()[0])
                raise InvalidInput(f"points[{row}] has NaN or infinity; clean or drop that point")

    @staticmethod
    def of(parts: list[Tensor]) -> Points:
        require(len(parts) > 0, "parts", 0, "must hold at least one client")
        features = {part.shape[1:] for part in parts}
        require(len(features) == 1, "parts", [tuple(f) for f in features], "must have the same features")
        sizes = torch.tensor([0] + [len(part) for part in parts])
        return Points(torch.cat([part.float() for part in parts]), sizes.cumsum(0))

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def features(self) -> int:
        return self.x.shape[1]

    @property
    def sizes(self) -> Tensor:
        return self.offsets.diff()

    def owners(self) -> Tensor:
        """The client of each point, (points,) int32."""
        return torch.arange(self.clients, dtype=torch.int32).repeat_interleave(self.sizes)


def chunk_rows(floats: int) -> int:
    """How many rows a chunk has if each takes so many floats."""
    return max(1, CHUNK_FLOATS // (floats + 1))


def chunks(x: Tensor, extra: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows of x in pieces, with room for ``extra`` floats a row beside the row itself."""
    rows = chunk_rows(x.shape[1] + extra)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        yield slice(start, start + len(part)), part


def chunks_about(
    x: Tensor, anchor: Tensor | None, labels: Tensor | None = None, extra: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of x - anchor: no anchor, one for all (features,), or that of each point's label.

    All chunks are the same buffer: use one up before the next.
    """
    buffer = None
    for rows, part in chunks(x, extra + x.shape[1]):
        if anchor is None:
            yield rows, part
            continue
        buffer = torch.empty_like(part) if buffer is None else buffer
        about = buffer[: len(part)]
        if labels is None:
            torch.sub(part, anchor, out=about)
        else:
            torch.index_select(anchor, 0, labels[rows], out=about)
            torch.sub(part, about, out=about)
        yield rows, about


def own_chunks(offsets: Sequence[int], most_rows: int) -> Iterator[tuple[slice, slice]]:
    """Clients and their rows, whole clients together as long as they fit; a larger one alone, in pieces of its own."""
    client, last = 0, len(offsets) - 1
    while client < last:
        end = client + 1
        while end < last and offsets[end + 1] - offsets[client] <= most_rows:
            end += 1
        for start in range(offsets[client], max(offsets[end], offsets[client] + 1), most_rows):
            stop = min(start + most_rows, offsets[end])
            if stop > start:
                yield slice(client, end), slice(start, stop)
        client = end


def alike(sizes: Sequence[int], most_rows: int, most: int) -> Iterator[tuple[slice, int]]:
    """Runs of neighbours of one size, up to so many of them and of their rows; whoever has more rows is alone."""
    first = 0
    for size, run in groupby(sizes):
        end = first + len(list(run))
        step = max(1, min(most, most_rows // max(1, size)))
        for start in range(first, end, step):
            yield slice(start, min(start + step, end)), size
        first = end
