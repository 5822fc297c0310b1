"""Lloyd's statistics of many clients in one pass: nearest centres, sums, counts, histograms, outer products.

The points of client i are rows ``offsets[i]:offsets[i + 1]`` of one matrix. Every kernel walks that matrix in
chunks of rows, so that memory beyond the inputs and the answer stays at a few megabytes whatever the number
of points. Records are clipped by a factor inside the pass; the data are never copied as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import InvalidInput, require
from coterie.learn.clipping import Bounded, Clip, RecordClip, bounded, norm_scales

CHUNK_FLOATS = 1 << 19
"""Working memory of one chunk, in floats: 2 MiB stays in the cache, where the matrix products are fastest."""

NEAR = 8.0
"""Centres whose mean is within so many times their spread are near the origin: three bits are lost at most."""


@dataclass(frozen=True)
class Points:
    """The points of several clients, one client after the other. The public door: checks once."""

    x: Tensor  # (points, features) float32
    offsets: Tensor  # (clients + 1,) int64

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
        if not math.isfinite(self.x.sum().item()):  # NaN and infinity survive a sum; so may large finite numbers
            self._require_finite()

    def _require_finite(self) -> None:
        for start, part in chunks(self.x, 0):
            if not bool(torch.isfinite(part).all()):
                row = start + int((~torch.isfinite(part).all(1)).nonzero()[0])
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


def chunks(x: Tensor, extra: int) -> Iterator[tuple[int, Tensor]]:
    """Rows of x in pieces, with room for ``extra`` floats a row beside the row itself."""
    rows = max(1, CHUNK_FLOATS // (x.shape[1] + extra + 1))
    for start in range(0, len(x), rows):
        yield start, x[start : start + rows]


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """The index of the nearest centre of each point, (points,) int64; the first one on a tie.

    Distances are taken about the mean of the centres: |x|^2 - 2xc + |c|^2 in float32 loses everything on raw
    data that lie far from the origin. Near it, the points themselves need not be shifted, which saves a copy.
    """
    require(len(centres) > 0, "centres", 0, "must hold at least one centre")
    require(centres.shape[1] == x.shape[1], "centres", tuple(centres.shape), f"must have {x.shape[1]} features")
    middle = centres.mean(0)
    shifted = centres - middle
    half = shifted.square().sum(1) / 2
    far = float(middle.norm()) > NEAR * float(shifted.norm(dim=1).max())
    if not far:
        half = half + shifted @ middle
    labels = torch.empty(len(x), dtype=torch.int64)
    for start, part in chunks(x, len(centres) + x.shape[1]):
        scores = torch.addmm(half, part - middle if far else part, shifted.T, alpha=-1)  # (rows, centres)
        torch.argmin(scores, dim=1, out=labels[start : start + len(part)])
    return labels


def squared_distances(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """The squared distance of each point to its own centre, (points,), by subtraction."""
    answer = torch.empty(len(x), dtype=x.dtype)
    for start, part in chunks(x, x.shape[1]):
        stop = start + len(part)
        torch.sum((part - centres[labels[start:stop]]).square_(), dim=1, out=answer[start:stop])
    return answer


def record_norms(x: Tensor, anchor: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
    """The norm of each record about its anchor: none, one for all (features,), or the one of its label."""
    answer = torch.empty(len(x), dtype=x.dtype)
    for start, part in chunks(x, x.shape[1]):
        stop = start + len(part)
        about = _about(part, anchor, None if labels is None else labels[start:stop])
        torch.linalg.vector_norm(about, dim=1, out=answer[start:stop])
    return answer


def _about(part: Tensor, anchor: Tensor | None, labels: Tensor | None) -> Tensor:
    if anchor is None:
        return part
    return part - (anchor if labels is None else anchor[labels])


def _clipped(part: Tensor, clip: Clip) -> Tensor:
    if not isinstance(clip, RecordClip):
        return part
    return part * norm_scales(torch.linalg.vector_norm(part, dim=1), clip.bound)[:, None]


def counts(points: Points, labels: Tensor, clusters: int) -> Tensor:
    """How many points of each client carry each label, (clients, clusters) float32."""
    slots = points.owners().long() * clusters + labels
    return torch.bincount(slots, minlength=points.clients * clusters).view(points.clients, clusters).float()


def cluster_counts(points: Points, labels: Tensor, clusters: int, clip: Clip) -> Bounded:
    """``counts`` with its sensitivity: one record is one count, however its norm is clipped."""
    return bounded(counts(points, labels, clusters), clip, lambda _: (1.0, 1.0))


def cluster_sums(points: Points, labels: Tensor, clusters: int, clip: Clip, anchors: Tensor | None = None) -> Bounded:
    """The sum of each client's points in each cluster, (clients, clusters, features).

    With ``anchors`` (clusters, features), which must be public or already released, the sums are of x - anchor:
    these are shorter, so they need less noise, and an error in the count then scales a small remainder and not
    the whole centre. FedDP-KMeans has no anchors (that is, zeros).
    """
    totals = torch.zeros(points.clients * clusters, points.features)
    owners = points.owners()
    for start, part in chunks(points.x, 3 * points.features):
        stop = start + len(part)
        slots = owners[start:stop].long() * clusters + labels[start:stop]
        totals.index_add_(0, slots, _clipped(_about(part, anchors, labels[start:stop]), clip))
    sums = totals.view(points.clients, clusters, points.features)
    spread = math.sqrt(points.features)
    return bounded(sums, clip, lambda bound: (bound, bound * spread))


def cluster_means(sums: Tensor, counts: Tensor) -> Tensor:
    """Sums over counts where there is something to count, zero elsewhere."""
    return sums / counts.clamp_min(1).unsqueeze(-1)


def packed_outer_products(points: Points, clip: Clip, anchor: Tensor | None = None) -> Bounded:
    """Each client's sum of (x - anchor)(x - anchor)^T, packed as (clients, features (features + 1) / 2).

    Off-diagonal entries are scaled by sqrt(2), so that the packed vector has the matrix's Frobenius norm: equal
    noise on it is half the variance, off the diagonal, of the symmetric noise of FedDP-KMeans at equal epsilon.
    """
    upper = torch.triu_indices(points.features, points.features)
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    packed = torch.empty(points.clients, upper.shape[1])
    bounds = points.offsets.tolist()
    flat = upper[0] * points.features + upper[1]
    total = torch.empty(points.features, points.features)
    for client in range(points.clients):
        total.zero_()
        for _, part in chunks(points.x[bounds[client] : bounds[client + 1]], 2 * points.features):
            rows = _clipped(_about(part, anchor, None), clip)
            total.addmm_(rows.T, rows)
        torch.index_select(total.view(-1), 0, flat, out=packed[client])
    packed *= weight
    spread = math.sqrt(upper.shape[1])
    return bounded(packed, clip, lambda bound: (bound**2, bound**2 * spread))


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


def project(x: Tensor, subspace: Tensor, anchor: Tensor | None = None) -> Tensor:
    """Coordinates of each point in the subspace, (points, dimensions)."""
    answer = torch.empty(len(x), len(subspace), dtype=x.dtype)
    for start, part in chunks(x, x.shape[1]):
        answer[start : start + len(part)] = _about(part, anchor, None) @ subspace.T
    return answer


def moved_centres(centres: Tensor, sums: Tensor, counts: Tensor, least: float = 1.0) -> Tensor:
    """The new centres from sums about the old ones, (clusters, features).

    A cluster whose (noisy) count is below ``least`` keeps its centre: dividing by noise throws it far away.
    """
    filled = counts >= least
    step = sums / counts.clamp_min(least).unsqueeze(-1)
    return torch.where(filled.unsqueeze(-1), centres + step, centres)
