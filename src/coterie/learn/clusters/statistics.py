"""What a client sends in private k-means, computed from its points and what is public: sums that add up.

Everything is scaled so that one unit (a record, or a client) moves the sum over clients by at most 1 in L2 norm, so the
noise multiplier *is* the noise's deviation, and a bound and a sensitivity that disagree cannot be stated. The scale
follows from what is public, and ``unscaled`` takes it back. A deployed client, the simulator and an adversary that
knows the algorithm all call these functions.

Where a unit is bounded, what is sent are whole numbers of steps (``coterie.learn.whole``), as doubles: sums of these
are exact in any order, and the bound holds after rounding. And what a record adds must be a function of that record:
labels and norms come from kernels whose rows do not depend on the rows around them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from coterie.learn.clusters.clipping import ClientClip, RecordClip, Unclipped
from coterie.learn.clusters.exact_sums import (
    DIAGONAL,
    OFF_DIAGONAL,
    OUTER_SIDE,
    RECORD_UNITS,
    client_outer_products,
    exact_cluster_sums,
    exact_counts,
    exact_outer_products,
)
from coterie.learn.clusters.lloyd import (
    cluster_sums,
    counts,
    nearest,
    own_counts,
    packed_outer_products,
    project,
    row_norms,
    sums_by_client,
)
from coterie.learn.clusters.points import Points, chunks
from coterie.learn.clusters.quantile import NormBins
from coterie.learn.params import Params
from coterie.learn.whole import STEP, UNITS, radius, tight_aim, whole_rows

Unit = type[RecordClip] | type[ClientClip] | type[Unclipped]
"""Whose share in a sum is bounded."""

TINY = 2.0**-40
"""A bound below every norm that occurs: clipped to it, a vector keeps its direction alone."""

FAR = 2.0**55
"""Above every clipping bound: a row with a larger entry is as good as one with this, which single precision squares."""

BINS = NormBins(per_octave=8)

WATCH = "watch"
"""Published with a move: the answer is to say how long its vectors are, too."""

ORIGIN = "origin"
"""Published with a move: sums are about the origin, not about the centres."""

CLIP = "clip"
"""Published with "outer": records are clipped to this norm and keep their length, in place of their direction alone."""


def statistics(kind: str, public: Params, points: Points, unit: Unit) -> dict[str, Tensor]:
    """One client's answer a row, leaves (clients, ...); ``public`` is what the server published, leaves (...).

    The requests are "outer", "weights", "bound", "centres" (step 3 of FedDP-Init) and "lloyd 1", "lloyd 2", ...; and
    "reach 1", "middle 1", ...: how far points lie from one centre, and a step of Lloyd with it.
    """
    match kind.split()[0]:
        case "outer":
            return {"outer": _outer(points, public, unit)}
        case "weights":
            return {"weights": _weights(points, public, unit)}
        case "bound":
            return {"norms": _norms(points, public, unit)}
        case "reach":
            return {"norms": _reaches(points, public["centres"][0], unit)}
        case _:
            return _moves(points, public, unit)


def unscaled(leaf: str, total: Tensor, public: Params, unit: Unit) -> Tensor:
    """A sum over clients (...) in the data's own measure; outer products are those of directions.

    Rows are scaled to a little less than the bound, so that rounding keeps them within it; that is taken back, too.
    """
    if unit is Unclipped:
        return total
    if leaf == "outer" and unit is RecordClip:
        return total * _outer_worth(public["middle"].shape[-1])
    return total * (sums_worth(public, unit) if leaf == "sums" else _rows_worth(total.numel(), unit))


def sums_worth(public: Params, unit: Unit) -> float:
    """What 1 in the scaled sums is worth in the data's own measure; their noise is worth it, too."""
    if unit is Unclipped:
        return 1.0
    clusters, features = public["centres"].shape
    bound = float(public["bound"])
    if unit is RecordClip:
        return bound * RECORD_UNITS / radius(RECORD_UNITS, features, torch.float32)
    return bound * _rows_worth(clusters * features, unit)


def _rows_worth(length: int, unit: Unit) -> float:
    """Of a client's whole row; records are counted in whole units."""
    return UNITS / radius(UNITS, length, _precision(length)) if unit is ClientClip else 1.0


def _precision(length: int) -> torch.dtype:
    """In which a client's row is put on the grid: single, as long as what that takes off a row is below a thousandth.

    Whole steps are below 2^20, and single precision holds them.
    """
    return torch.float32 if length < 1 << 14 else torch.float64


def _outer_worth(features: int) -> Tensor:
    """(packed,): to sums of outer products of unit vectors, off the diagonal times the root of 2."""
    rows, columns = torch.triu_indices(features, features)
    of_two = torch.where(rows == columns, 1.0, math.sqrt(2.0) * DIAGONAL / OFF_DIAGONAL).double()
    return of_two * (UNITS / (DIAGONAL * tight_aim(OUTER_SIDE, features) ** 2))


def _in_steps(rows: Tensor, bound: float) -> Tensor:
    """Each client's row (clients, ...) clipped to the bound, over the bound, in whole steps. The rows are used up.

    One that overflowed, of which not even a direction is left, is zeros: an error would tell of that client's data.
    """
    flat = rows.flatten(1)
    found = torch.empty(flat.shape, dtype=torch.float64)
    for some, part in chunks(flat, 3 * flat.shape[1]):
        largest = part.abs().amax(1, keepdim=True)
        part = (part * (FAR / largest.clamp_min(FAR))).to(_precision(flat.shape[1]))
        torch.mul(whole_rows(part, bound, UNITS, out=part, cleared=True), STEP, out=found[some])
    return found.view(rows.shape)


def _outer(points: Points, public: Params, unit: Unit) -> Tensor:
    """Step 1. Only the subspace matters, so each unit gives its direction alone and no bound has to be found.

    Scott et al. clip instead (``CLIP``). A record of norm 1 also keeps a few far-away ones from choosing the subspace.
    """
    middle = public["middle"]
    if unit is RecordClip:
        bound = float(public[CLIP]) if CLIP in public else TINY
        return exact_outer_products(points, bound, middle)[0].double().mul_(STEP)
    if unit is Unclipped:
        return packed_outer_products(points, Unclipped(), middle).value
    return _in_steps(client_outer_products(points, middle), TINY)


def _weights(points: Points, public: Params, unit: Unit) -> Tensor:
    """Step 2: how many points are nearest to each of the server's; a client's counts are scaled to norm 1."""
    known, alone = public["known"], unit is not Unclipped
    seen = project(points.x, public["subspace"], public["middle"], alone=alone)
    found = _counted(points, nearest(seen, known, alone=alone), len(known), unit)
    return _in_steps(found, 1.0) if unit is ClientClip else found


def _counted(points: Points, labels: Tensor, clusters: int, unit: Unit) -> Tensor:
    """Of weighted points the weight, which at record level is rounded down to whole steps."""
    if unit is RecordClip:
        return exact_counts(points, labels, clusters, UNITS).double().mul_(STEP)
    return counts(points, labels, clusters)


def labels_of(points: Points, public: Params) -> Tensor:
    """The cluster of each point.

    Step 3 of FedDP-Init labels points in the subspace. Its centres lie in it, so the part of a point that sticks out is
    equally far from all of them, and the nearest one in full is the same.
    """
    return nearest(points.x, public["centres"], alone=True)


def _norms(points: Points, public: Params, unit: Unit) -> Tensor:
    """Which norm each unit would bring to the step that follows, as a histogram."""
    return _norms_about(points, labels_of(points, public), public, unit)


def _norms_about(points: Points, labels: Tensor, public: Params, unit: Unit) -> Tensor:
    if unit is not ClientClip:
        norms = row_norms(points.x, public["centres"], labels)
        return BINS.histogram(norms, points.owners(), points.clients, points.weights).value
    norms = row_norms(_client_moves(points, labels, public["centres"])[0].flatten(1))
    return _one_each(norms, points)


def _reaches(points: Points, centre: Tensor, unit: Unit) -> Tensor:
    """How far each unit's points lie from a centre, as a histogram; a client's, in the root of the mean square."""
    norms, owners = row_norms(points.x, centre), points.owners()
    if unit is not ClientClip:
        return BINS.histogram(norms, owners, points.clients, points.weights).value
    totals = torch.zeros(points.clients, dtype=torch.float64).index_add_(0, owners.long(), norms.double().square())
    return _one_each((totals / points.sizes.clamp_min(1)).sqrt(), points)


def _one_each(norms: Tensor, points: Points) -> Tensor:
    """A histogram for each client with its one norm (clients,) in it; nothing for a client that has no points."""
    found = BINS.histogram(norms, torch.arange(points.clients), points.clients).value
    return found * (points.sizes > 0).unsqueeze(1)


def _client_moves(points: Points, labels: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's sums about the centres and its counts, (clients, clusters, ...), over the norm of its counts.

    So many points have no louder voice. Scott et al. send a client's means, and whether it has points in a cluster: the
    mean of one point is as long as that of a hundred is short, and it is the long ones that decide the noise.
    """
    each = own_counts(points, labels, len(centres))
    size = row_norms(each).clamp_min(torch.finfo(each.dtype).tiny).unsqueeze(1)
    return sums_by_client(points, labels, len(centres), centres).div_(size.unsqueeze(2)), each / size


def _moves(points: Points, public: Params, unit: Unit) -> dict[str, Tensor]:
    """Step 3 and Lloyd: sums about the centres, and counts; and norms, if the next step's bound is to follow them."""
    centres, clusters = public["centres"], len(public["centres"])
    labels = nearest(points.x, centres, alone=unit is not Unclipped)
    if unit is Unclipped:
        sums = cluster_sums(points, labels, clusters, Unclipped(), centres).value
        return {"sums": sums, "counts": counts(points, labels, clusters)}
    bound = float(public["bound"])
    if unit is RecordClip:
        return _record_moves(points, labels, public, bound)
    norms = {"norms": _norms_about(points, labels, public, unit)} if WATCH in public else {}
    sums, shares = _client_moves(points, labels, centres)
    return {"sums": _in_steps(sums, bound), "counts": _in_steps(shares, 1.0), **norms}


def _record_moves(points: Points, labels: Tensor, public: Params, bound: float) -> dict[str, Tensor]:
    """Sums and norms in one pass over the points."""
    clusters, anchors = len(public["centres"]), None if ORIGIN in public else public["centres"]
    long = np.empty(len(points.x)) if WATCH in public else None
    sums = exact_cluster_sums(points, labels, clusters, bound, RECORD_UNITS, anchors, long)
    found = {
        "sums": sums.double().div_(RECORD_UNITS),
        "counts": _counted(points, labels, clusters, RecordClip),
    }
    if long is None:
        return found
    histogram = BINS.histogram(torch.from_numpy(long), points.owners(), points.clients, points.weights)
    return {**found, "norms": histogram.value}
