"""Lloyd's statistics of many clients in one pass: nearest centres, sums, counts, histograms, outer products.

The points and the chunks in which a kernel walks over them are those of ``points``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csc_array
from torch import Tensor
from torch.nn.functional import pad

from coterie.errors import require
from coterie.learn.clusters.clipping import Bounded, Clip, RecordClip, bounded, norm_scales
from coterie.learn.clusters.points import CHUNK_FLOATS, Points, alike, chunk_rows, chunks_about, own_chunks
from coterie.learn.clusters.shrinkage import followed
from coterie.learn.kernels import add_about, least_scores
from coterie.learn.whole import row_squares

NEAR = 8.0
"""Centres whose mean is within so many times their spread are near the origin: three bits are lost at most."""


class ExactProducts:
    """x @ vectors.T in doubles, (rows, vectors), each row a function of that row alone.

    A product of floats is rounded by its place in the matrix: one row less, and all rows after it may change in their
    last bits. Here whole numbers are multiplied whose sums stay below 2^53, so that nothing is rounded in any order:
    a row in 24 bits of its largest entry, and the vectors in two parts, high and low.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._bits = 52 - 24 - (vectors.shape[1] - 1).bit_length()
        require(self._bits >= 4, "features", vectors.shape[1], "must be at most 2^24")
        plain = vectors.double()
        self._finest = 2.0 ** (self._bits - math.frexp(float(plain.abs().max()))[1])
        high = (plain * self._finest).round_()
        low = ((plain * self._finest - high) * 2.0**self._bits).round_()
        self._both = torch.cat([high, low])  # one product of twice the width takes less than two

    def __call__(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(1).numpy()
        bits = np.minimum(24 - np.frexp(largest)[1], 127)  # 2^127 is the largest power that single precision has
        scale = torch.from_numpy(np.ldexp(np.float32(1.0), bits)).unsqueeze(1)
        whole = torch.mul(x, scale).round_().double()
        high, low = (self._both @ whole.T).chunk(2)  # this way round it takes little more than half the time
        return torch.add(high, low, alpha=2.0**-self._bits).T.div_(scale.double() * self._finest)


def nearest(x: Tensor, centres: Tensor, alone: bool = False) -> Tensor:
    """The index of the nearest centre of each point, (points,) int64; the first one on a tie.

    Distances are taken about the mean of the centres: |x|^2 - 2xc + |c|^2 in float32 loses everything on raw
    data that lie far from the origin. Near it, the points themselves need not be shifted, which saves a copy.
    ``alone``: a point's label does not depend on the points around it, not even on a tie.
    """
    require(len(centres) > 0, "centres", 0, "must hold at least one centre")
    require(centres.shape[1] == x.shape[1], "centres", tuple(centres.shape), f"must have {x.shape[1]} features")
    middle = centres.mean(0)
    shifted = centres - middle
    half = shifted.square().sum(1) / 2
    far = float(middle.norm()) > NEAR * float(shifted.norm(dim=1).max())
    if not far:
        half = half + shifted @ middle
    kinds = {x.dtype, centres.dtype}
    require(not alone or kinds == {torch.float32}, "dtypes of points and centres", kinds, "must be torch.float32")
    ties = _Ties(shifted, half) if alone else None
    spare = -len(centres) % 8  # products are fastest at multiples of 8; no point is nearest to a spare centre
    shifted, half = pad(shifted, (0, 0, 0, spare)), pad(half, (0, spare), value=math.inf)
    labels = torch.empty(len(x), dtype=torch.int64)
    scores = None
    for rows, part in chunks_about(x, middle if far else None, extra=len(half)):
        scores = part.new_empty(len(part), len(half)) if scores is None else scores
        torch.addmm(half, part, shifted.T, alpha=-1, out=scores[: len(part)])
        if ties is not None:
            ties.label(labels[rows], scores[: len(part)], part)
        else:
            np.argmin(scores[: len(part)].numpy(), axis=1, out=labels[rows].numpy())  # faster than torch's
    return labels


class _Ties:
    """Decides anew, by products that are exact, wherever rounding could have decided.

    A score is off by at most e = (features + 2) u (|half| + |x| |c|) (Higham 2002, section 3.1; twice that is taken).
    Where the least is ahead by more than 4e it is the least in truth, by more than 2e, and exact products find it, too.
    So which way a label was found does not matter: it is a function of the point.
    """

    def __init__(self, centres: Tensor, half: Tensor) -> None:
        self._products, self._half = ExactProducts(centres), half.double()
        self._longest, self._highest = float(centres.norm(dim=1).max()), float(half.abs().max())
        self._rows = chunk_rows(4 * (centres.shape[1] + len(half)))
        self._unit = (centres.shape[1] + 8) * torch.finfo(centres.dtype).eps

    @np.errstate(all="ignore")  # where something overflows, exact products decide
    def label(self, labels: Tensor, scores: Tensor, part: Tensor) -> None:
        """The least of each row of scores. Those of spare centres are infinity."""
        plain = part.numpy()
        error = np.sqrt(np.vecdot(plain, plain)) * np.float32(self._longest) + np.float32(self._highest)
        slack, close = error * np.float32(4 * self._unit), np.empty(len(part) + 1, dtype=np.int64)
        count = least_scores(scores.numpy(), slack, labels.numpy(), close)
        for some in torch.from_numpy(close[:count]).split(self._rows):
            labels[some] = (self._half - self._products(part[some])).argmin(1)


def squared_distances(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """The squared distance of each point to its own centre, (points,), by subtraction."""
    answer = torch.empty(len(x), dtype=x.dtype)
    for rows, about in chunks_about(x, centres, labels):
        torch.sum(about.square_(), dim=1, out=answer[rows])
    return answer


def row_norms(x: Tensor, anchor: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
    """The norm of each record about its anchor, in doubles: none, one for all (features,), or the one of its label.

    From a kernel that sees one row at a time. Squares may overflow in single precision.
    """
    answer = np.empty(len(x))
    for rows, about in chunks_about(x, anchor, labels):
        plain = about.numpy()
        answer[rows] = row_squares(plain)
        for row in np.flatnonzero(~np.isfinite(answer[rows])):
            answer[rows.start + row] = np.square(plain[row], dtype=np.float64).sum()
    return torch.from_numpy(np.sqrt(answer))


def sums_by_client(points: Points, labels: Tensor, clusters: int, anchors: Tensor) -> Tensor:
    """As ``cluster_sums`` without a clip, in doubles, (clients, clusters, features): each client's from its rows alone.

    No chunk holds part of one client and part of another, and rows are added in their order, so that who else is there
    decides nothing, not even the last bit. Within a chunk they are added as they come. In doubles no sum of what single
    precision holds overflows.
    """
    totals = np.zeros((points.clients * clusters, points.features))
    x, about = points.x.contiguous().numpy(), anchors.contiguous().numpy()
    for clients, rows in own_chunks(points.offsets.tolist(), chunk_rows(2 * points.features)):
        first, last = clients.start * clusters, clients.stop * clusters
        sizes = (
            points.offsets[1:][clients].clamp_max(rows.stop) - points.offsets[clients].clamp_min(rows.start)
        ).long()
        owners = torch.arange(len(sizes)).repeat_interleave(sizes)
        weights: Any = np.ones(len(owners)) if points.weights is None else points.weights[rows].double().numpy()
        sums = np.zeros((last - first, points.features))
        slots = owners * clusters + labels[rows]
        add_about(x[rows], about, labels[rows].numpy(), slots.numpy(), weights, sums)
        totals[first:last] += sums
    return torch.from_numpy(totals).view(points.clients, clusters, points.features)


def _record_scales(part: Tensor, clip: Clip, weights: Tensor | None = None) -> Tensor:
    """The factor that clips each record, (rows,), times its weight: a weight of at most 1 keeps the bound."""
    if isinstance(clip, RecordClip):
        scales = norm_scales(torch.linalg.vector_norm(part, dim=1), clip.bound)
        return scales if weights is None else scales * weights
    return part.new_ones(len(part)) if weights is None else weights


def counts(points: Points, labels: Tensor, clusters: int) -> Tensor:
    """How many points (or what weight of them) of each client carry each label, (clients, clusters) float32."""
    return own_counts(points, labels, clusters).float()


def own_counts(points: Points, labels: Tensor, clusters: int) -> Tensor:
    """``counts`` in doubles."""
    slots = points.owners().long() * clusters + labels
    found = torch.bincount(slots, _double(points.weights), minlength=points.clients * clusters)
    return found.view(points.clients, clusters).double()


def _double(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.double()


def _part(weights: Tensor | None, rows: slice) -> Tensor | None:
    return None if weights is None else weights[rows]


def cluster_sums(points: Points, labels: Tensor, clusters: int, clip: Clip, anchors: Tensor | None = None) -> Bounded:
    """The sum of each client's points in each cluster, (clients, clusters, features).

    With ``anchors`` (clusters, features), which must be public or already released, the sums are of x - anchor:
    these are shorter, so they need less noise, and an error in the count then scales a small remainder and not
    the whole centre. FedDP-KMeans has no anchors (that is, zeros).
    """
    totals = torch.zeros(points.clients * clusters, points.features)
    owners = points.owners()
    for rows, about in chunks_about(points.x, anchors, labels):
        mine = owners[rows]
        first, last = int(mine[0]) * clusters, (int(mine[-1]) + 1) * clusters
        slots = mine.mul(clusters).add_(labels[rows]).sub_(first)
        scales = _record_scales(about, clip, _part(points.weights, rows))
        totals[first:last] += added(about, slots, last - first, scales)
    sums = totals.view(points.clients, clusters, points.features)
    spread = math.sqrt(points.features)
    return bounded(sums, clip, lambda bound: (bound, bound * spread))


def added(rows: Tensor, slots: Tensor, count: int, scales: Tensor) -> Tensor:
    """The sum of scale times row in each slot, (count, features): a sparse product that walks the rows in order."""
    ends = np.arange(len(rows) + 1, dtype=np.int32)
    matrix = csc_array((scales.numpy(), slots.numpy(), ends), shape=(count, len(rows)))
    return torch.from_numpy(matrix @ rows.numpy())


def packed_outer_products(points: Points, clip: Clip, anchor: Tensor | None = None) -> Bounded:
    """Each client's sum of (x - anchor)(x - anchor)^T, packed as (clients, features (features + 1) / 2).

    Off-diagonal entries are scaled by sqrt(2), so that the packed vector has the matrix's Frobenius norm: equal
    noise on it is half the variance, off the diagonal, of the symmetric noise of FedDP-KMeans at equal epsilon.
    """
    upper = torch.triu_indices(points.features, points.features)
    flat = upper[0] * points.features + upper[1]
    packed = torch.empty(points.clients, upper.shape[1])
    for clients, products in _outer_products(points, clip, anchor):
        torch.index_select(products.flatten(1), 1, flat, out=packed[clients])
    packed *= torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    spread = math.sqrt(upper.shape[1])
    return bounded(packed, clip, lambda bound: (bound**2, bound**2 * spread))


def _outer_products(points: Points, clip: Clip, anchor: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Each client's matrix, (some clients, features, features): neighbours of one size are computed together."""
    features = points.features
    origin = points.x.new_zeros(()) if anchor is None else anchor  # with one, a chunk is a buffer that can be scaled
    for clients, size in alike(points.sizes.tolist(), chunk_rows(2 * features), CHUNK_FLOATS // features**2):
        start, count = int(points.offsets[clients.start]), clients.stop - clients.start
        total = torch.zeros(count, features, features)
        weights = _part(points.weights, slice(start, start + count * size))
        for rows, about in chunks_about(points.x[start : start + count * size], origin):
            about.mul_(_record_scales(about, clip)[:, None])
            batch = about.view(count, -1, features)
            share = _part(weights, rows)
            other = batch if share is None else (about * share[:, None]).view(count, -1, features)
            total.baddbmm_(other.transpose(1, 2), batch)
        yield clients, total


def unpack_symmetric(packed: Tensor, features: int) -> Tensor:
    """The symmetric matrix of a packed sum of outer products."""
    upper = torch.triu_indices(features, features)
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(packed.dtype)
    matrix = torch.zeros(features, features, dtype=packed.dtype)
    matrix[upper[0], upper[1]] = packed / weight
    return matrix + matrix.triu(1).T


def leading_subspace(matrix: Tensor, dimensions: int) -> Tensor:
    """Orthonormal rows that span the eigenvectors of the largest eigenvalues, (dimensions, features)."""
    require(0 < dimensions <= len(matrix), "dimensions", dimensions, f"must lie in 1..{len(matrix)}")
    vectors: Tensor = torch.linalg.eigh(matrix.double()).eigenvectors
    return vectors[:, -dimensions:].T.flip(0).to(matrix.dtype)


def project(x: Tensor, subspace: Tensor, anchor: Tensor | None = None, alone: bool = False) -> Tensor:
    """Coordinates of each point in the subspace, (points, dimensions); ``alone`` as in ``nearest``."""
    answer = torch.empty(len(x), len(subspace), dtype=x.dtype)
    products = ExactProducts(subspace) if alone else None
    for rows, about in chunks_about(x, anchor, extra=4 * x.shape[1] if alone else 0):
        if products is not None:
            answer[rows] = products(about).to(x.dtype)
        else:
            torch.mm(about, subspace.T, out=answer[rows])
    return answer


def moved_centres(centres: Tensor, sums: Tensor, counts: Tensor, least: float = 1.0, noise: float = 0.0) -> Tensor:
    """The new centres from sums about the old ones, (clusters, features), which are no measurements themselves."""
    return followed_centres(centres, sums, counts, least, noise, None)[0]


def followed_centres(
    centres: Tensor, sums: Tensor, counts: Tensor, least: float, noise: float, doubt: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The new centres from sums about the old ones, (clusters, features), and their variance by noise, (clusters,).

    ``noise`` is the deviation of the sums, and ``doubt`` the old centres' variance (None: they are no measurements). A
    step is followed as far as noise does not explain it, and averaged with those before where it does (``followed``). A
    cluster whose (noisy) count is below ``least`` keeps its centre: dividing by noise throws it far away.
    """
    filled, counts = counts >= least, counts.clamp_min(least)
    before = torch.zeros_like(counts) if doubt is None else doubt
    step = sums / counts.unsqueeze(-1)
    share, after = followed(step, noise / counts, before)
    moved = torch.where(filled.unsqueeze(-1), centres + share.unsqueeze(-1) * step, centres)
    return moved, torch.where(filled, after, before)
