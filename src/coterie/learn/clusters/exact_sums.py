"""Lloyd's sums in whole numbers: the same bits in any order and chunking, and moved by one record by its own row alone.

The float kernels of ``lloyd`` are faster by a little and serve where nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from coterie.errors import require
from coterie.learn.clusters.points import CHUNK_FLOATS, Points, alike, chunk_rows, chunks_about
from coterie.learn.whole import lengths, radius, require_bound, tight_rows
from coterie.learn.whole_products import require_exact_products

RECORD_UNITS = 1 << 16
"""The largest norm of a record, in steps. 32,767 records then add up within 32 bits."""

OUTER_SIDE = 190
OUTER_ROWS = (1 << 24) // OUTER_SIDE**2
DIAGONAL, OFF_DIAGONAL = 29, 41
OUTER_UNITS = DIAGONAL * OUTER_SIDE**2
"""Just below 2^20, the steps that one unit may move a sum by (``coterie.learn.whole.UNITS``)."""

_MAGIC = 1.5 * 2.0**23
_MAGIC_BITS = np.float32(_MAGIC).view(np.uint32)
"""Added to a float of less than 2^22, this rounds it to a whole number, which is then the lower bits' difference."""


def exact_counts(points: Points, labels: Tensor, clusters: int, steps: int = 1) -> Tensor:
    """How many points of each client carry each label, (clients, clusters) int64, in so many steps a point.

    A point's weight, at most 1, is rounded down to whole steps.
    """
    slots, length = points.owners().long() * clusters + labels, points.clients * clusters
    if points.weights is None:
        return torch.bincount(slots, minlength=length).view(points.clients, clusters) * steps
    whole = points.weights.double().clamp(0, 1).mul_(steps).floor_()  # whole numbers: doubles add them exactly
    return torch.bincount(slots, whole, minlength=length).view(points.clients, clusters).long()


def exact_cluster_sums(
    points: Points,
    labels: Tensor,
    clusters: int,
    bound: float,
    units: int,
    anchors: Tensor | None,
    norms: NDArray[np.float64] | None = None,
) -> Tensor:
    """The sum of each client's points in each cluster, in steps, (clients, clusters, features) int64.

    Each record, about its anchor if there are any, is clipped to ``bound``, which is about ``units`` steps
    (``coterie.learn.whole.step_of``). One record more or less moves the sum by at most ``units`` in L2 norm, exactly.
    ``norms`` (points,) is filled with how long they were.
    """
    require(1 <= units <= RECORD_UNITS, "units", units, f"must lie in 1..{RECORD_UNITS}")
    require_bound(bound)
    inner = radius(units, points.features, torch.float32)
    totals = np.zeros((points.clients * clusters, points.features), dtype=np.int64)
    owners, buffer = points.owners(), None
    fewer = CHUNK_FLOATS * units >> 31  # keeps chunks so short that 32 bits hold their sums
    for rows, about in chunks_about(points.x, anchors, labels if anchors is not None else None, extra=fewer):
        mine = owners[rows]
        first, last = int(mine[0]) * clusters, (int(mine[-1]) + 1) * clusters
        slots = mine.mul(clusters).add_(labels[rows]).sub_(first)
        buffer = torch.empty_like(about) if buffer is None else buffer
        long = lengths(about)
        if norms is not None:
            norms[rows] = long
        factors = torch.from_numpy(inner / np.maximum(long, bound)).float()
        if points.weights is not None:
            factors *= points.weights[rows].clamp(0, 1)
        scaled = torch.mul(about, factors.unsqueeze(1), out=buffer[: len(about)])
        totals[first:last] += _added(scaled, slots.numpy(), last - first)
    return torch.from_numpy(totals).view(points.clients, clusters, points.features)


def exact_outer_products(points: Points, bound: float, anchor: Tensor | None) -> tuple[Tensor, float]:
    """Each client's sum of outer products of its clipped records, packed, (clients, features (features + 1) / 2) int64.

    A record has at most ``OUTER_SIDE`` steps, so a batch product over ``OUTER_ROWS`` records is exact in float32,
    where whole numbers reach 2^24. Entries on the diagonal are weighted by 29 and the others, each of which stands
    for two, by 41, which is just below 29 sqrt(2): one record moves the packed sum by at most ``OUTER_UNITS`` in L2
    norm. Also returns what one of these steps is worth; ``unpacked_products`` takes the weights off again. A record of
    weight w is shorter by its root.
    """
    features, step, buffer = points.features, 1.0, None
    upper = _upper(features)
    totals = torch.zeros(points.clients, len(upper), dtype=torch.int64)
    for clients, size in alike(points.sizes.tolist(), chunk_rows(2 * features), CHUNK_FLOATS // features**2):
        start, count = int(points.offsets[clients.start]), clients.stop - clients.start
        origin = points.x.new_zeros(()) if anchor is None else anchor
        for rows, about in chunks_about(points.x[start : start + count * size], origin):
            buffer = torch.empty_like(about) if buffer is None or len(buffer) < len(about) else buffer
            shares = None if points.weights is None else points.weights[start:][rows].clamp(0, 1).sqrt()
            steps, step = tight_rows(about, bound, OUTER_SIDE, buffer[: len(about)], shares)
            totals[clients] += _outer(steps.view(count, -1, features), upper)
    return totals.mul_(_pack_weights(features)), step**2 / DIAGONAL


FEW = 128
"""Records of a client, below which single precision has room for the products of eight bits each, or more."""


def client_outer_products(points: Points, anchor: Tensor) -> Tensor:
    """Each client's sum of outer products of its records about the anchor, packed, (clients, length), up to a factor.

    Packed as in ``lloyd.packed_outer_products``, but to the last bit a function of that client's records: a product
    of floats is rounded by where in memory a client's rows lie, and so by who came before. Here records are whole
    numbers, in as many bits of the client's largest entry as there is room for once all its products are added up.
    """
    require_exact_products()
    features, upper = points.features, _upper(points.features)
    packed = torch.empty(points.clients, len(upper))
    for clients, size in alike(points.sizes.tolist(), chunk_rows(2 * features), CHUNK_FLOATS // features**2):
        start, count = int(points.offsets[clients.start]), clients.stop - clients.start
        kind, room = (torch.float32, 24) if size < FEW else (torch.float64, 53)
        largest = torch.zeros(count)
        for some in _about(points, start, count * size, anchor):
            torch.maximum(largest, some.abs().view(count, -1).amax(1), out=largest)
        scales = 2.0 ** ((room - size.bit_length()) // 2) / largest.to(kind).clamp_min(2.0**-100).view(-1, 1, 1)
        total = torch.zeros(count, features, features, dtype=kind)
        for some in _about(points, start, count * size, anchor):
            whole = some.to(kind).view(count, -1, features).mul_(scales).round_()
            total.baddbmm_(whole.transpose(1, 2), whole)
        torch.index_select(total.float().flatten(1), 1, upper, out=packed[clients])
    return packed.mul_(torch.where(_pack_weights(features) == DIAGONAL, 1.0, math.sqrt(2.0)))


def _about(points: Points, start: int, count: int, anchor: Tensor) -> Iterator[Tensor]:
    """So many rows about the anchor, a chunk at a time, each times the root of its weight."""
    for rows, about in chunks_about(points.x[start : start + count], anchor):
        yield about if points.weights is None else about.mul_(points.weights[start:][rows].sqrt().unsqueeze(1))


def unpacked_products(packed: Tensor, features: int) -> Tensor:
    """The symmetric matrix of a packed sum (length,), in doubles."""
    matrix = torch.zeros(features * features, dtype=torch.float64)
    matrix[_upper(features)] = packed.double() * DIAGONAL / _pack_weights(features)
    square = matrix.view(features, features)
    return square + square.triu(1).transpose(0, 1)


def _upper(features: int) -> Tensor:
    """Where the upper triangle lies in the flat matrix."""
    rows, columns = torch.triu_indices(features, features)
    return torch.add(rows * features, columns)


def _pack_weights(features: int) -> Tensor:
    rows, columns = torch.triu_indices(features, features)
    return torch.where(rows == columns, DIAGONAL, OFF_DIAGONAL)


def _outer(steps: Tensor, upper: Tensor) -> Tensor:
    """The sum over rows of their outer products, (clients, packed) from (clients, rows, features)."""
    clients, rows, features = steps.shape
    blocks = rows // OUTER_ROWS
    rest = steps[:, blocks * OUTER_ROWS :]
    total = torch.bmm(rest.transpose(1, 2), rest).flatten(1).index_select(1, upper).long()
    if blocks:
        pieces = steps[:, : blocks * OUTER_ROWS].reshape(-1, OUTER_ROWS, features)
        products = torch.bmm(pieces.transpose(1, 2), pieces).view(clients, blocks, -1).sum(1, dtype=torch.float64)
        total += products.index_select(1, upper).long()
    return total


def _added(rows: Tensor, slots: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """The sums of the rounded rows in each slot; the rows are overwritten.

    The floats' bits are added as they are, modulo 2^32, and what the magic number put into them is taken off at the
    end.
    """
    bits = rows.add_(_MAGIC).numpy().view(np.uint32)
    ends, ones = np.arange(len(bits) + 1, dtype=np.int32), np.ones(len(bits), dtype=np.uint32)
    sums: NDArray[np.uint32] = csc_array((ones, slots, ends), shape=(count, len(bits))) @ bits
    sums -= np.bincount(slots, minlength=count).astype(np.uint32)[:, None] * _MAGIC_BITS
    return sums.view(np.int32)
