"""What a client sends in private k-means, computed from its points and what is public: sums that add up.

Everything is scaled so that one unit (a record, or a client) moves the sum over clients by at most 1 in L2 norm, so the
noise multiplier *is* the noise's deviation, and a bound and a sensitivity that disagree cannot be stated. The scale
follows from what is public, and ``unscaled`` takes it back. A deployed client, the simulator and an adversary that
knows the algorithm all call these functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learn.clusters.clipping import ClientClip, RecordClip, Unclipped, client_norms, clip_clients
from coterie.learn.clusters.lloyd import (
    Points,
    cluster_sums,
    counts,
    nearest,
    packed_outer_products,
    project,
    record_norms,
)
from coterie.learn.clusters.quantile import NormBins
from coterie.learn.params import Params

Unit = type[RecordClip] | type[ClientClip] | type[Unclipped]
"""Whose share in a sum is bounded."""

TINY = 2.0**-40
"""A bound below every norm that occurs: clipped to it, a vector keeps its direction alone."""

BINS = NormBins(per_octave=8)

WATCH = "watch"
"""Published with a move: the answer is to say how long its vectors are, too."""


def statistics(kind: str, public: Params, points: Points, unit: Unit) -> dict[str, Tensor]:
    """One client's answer a row, leaves (clients, ...); ``public`` is what the server published, leaves (...).

    The requests are "outer", "weights", "bound", "centres" (step 3 of FedDP-Init) and "lloyd 1", "lloyd 2", ...; and
    "reach 1", "middle 1", ...: how far points lie from one centre, and a step of Lloyd with it.
    """
    match kind.split()[0]:
        case "outer":
            return {"outer": _outer(points, public["middle"], unit)}
        case "weights":
            return {"weights": _weights(points, public, unit)}
        case "bound":
            return {"norms": _norms(points, public, unit)}
        case "reach":
            return {"norms": _reaches(points, public["centres"][0], unit)}
        case _:
            return _moves(points, public, unit)


def unscaled(leaf: str, total: Tensor, public: Params, unit: Unit) -> Tensor:
    """A sum over clients in the data's own measure; weights and outer products are used up to a factor only."""
    return total * public["bound"] if leaf == "sums" and unit is not Unclipped else total


def _outer(points: Points, middle: Tensor, unit: Unit) -> Tensor:
    """Step 1. Only the subspace matters, so each unit gives its direction alone and no bound has to be found.

    Scott et al. clip instead. A record of norm 1 also keeps a few far-away ones from choosing the subspace.
    """
    if unit is Unclipped:
        return packed_outer_products(points, Unclipped(), middle).value
    clip = ClientClip(TINY) if unit is ClientClip else RecordClip(TINY)
    found = packed_outer_products(points, clip, middle)
    return found.value.div_(found.l2)


def _weights(points: Points, public: Params, unit: Unit) -> Tensor:
    """Step 2: how many points are nearest to each of the server's; a client's counts are scaled to norm 1."""
    seen = project(points.x, public["subspace"], public["middle"])
    found = counts(points, nearest(seen, public["known"]), len(public["known"]))
    return clip_clients(found, ClientClip(1.0)).value if unit is ClientClip else found


def labels_of(points: Points, public: Params) -> Tensor:
    """The cluster of each point.

    Step 3 of FedDP-Init labels points in the subspace. Its centres lie in it, so the part of a point that sticks out is
    equally far from all of them, and the nearest one in full is the same.
    """
    return nearest(points.x, public["centres"])


def _norms(points: Points, public: Params, unit: Unit) -> Tensor:
    """Which norm each unit would bring to the step that follows, as a histogram."""
    return _norms_about(points, labels_of(points, public), public, unit)


def _norms_about(points: Points, labels: Tensor, public: Params, unit: Unit) -> Tensor:
    if unit is ClientClip:
        norms, owners = client_norms(_client_moves(points, labels, public["centres"])[0]), torch.arange(points.clients)
    else:
        norms, owners = record_norms(points.x, public["centres"], labels), points.owners()
        return BINS.histogram(norms, owners, points.clients, points.weights).value
    return BINS.histogram(norms, owners, points.clients).value


def _reaches(points: Points, centre: Tensor, unit: Unit) -> Tensor:
    """How far each unit's points lie from a centre, as a histogram; a client's, in the root of the mean square."""
    norms, owners = record_norms(points.x, centre), points.owners()
    if unit is not ClientClip:
        return BINS.histogram(norms, owners, points.clients, points.weights).value
    totals = torch.zeros(points.clients, dtype=torch.float64).index_add_(0, owners.long(), norms.double().square())
    each = (totals / points.sizes.clamp_min(1)).sqrt()
    return BINS.histogram(each, torch.arange(points.clients), points.clients).value


def _client_moves(points: Points, labels: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's sums about the centres and its counts, (clients, clusters, ...), over the norm of its counts.

    So many points have no louder voice. Scott et al. send a client's means, and whether it has points in a cluster: the
    mean of one point is as long as that of a hundred is short, and it is the long ones that decide the noise.
    """
    each = counts(points, labels, len(centres))
    size = client_norms(each).clamp_min(torch.finfo(each.dtype).tiny).unsqueeze(1)
    sums = cluster_sums(points, labels, len(centres), Unclipped(), centres).value
    return sums.div_(size.unsqueeze(2)), each / size


def _moves(points: Points, public: Params, unit: Unit) -> dict[str, Tensor]:
    """Step 3 and Lloyd: sums about the centres, and counts; and norms, if the next step's bound is to follow them."""
    centres, labels = public["centres"], labels_of(points, public)
    clusters = len(centres)
    if unit is Unclipped:
        sums = cluster_sums(points, labels, clusters, Unclipped(), centres).value
        return {"sums": sums, "counts": counts(points, labels, clusters)}
    bound = float(public["bound"])
    norms = {"norms": _norms_about(points, labels, public, unit)} if WATCH in public else {}
    if unit is RecordClip:
        found = cluster_sums(points, labels, clusters, RecordClip(bound), centres)
        return {"sums": found.value.div_(found.l2), "counts": counts(points, labels, clusters), **norms}
    sums, shares = _client_moves(points, labels, centres)
    clipped = clip_clients(sums, ClientClip(bound), out=sums)
    return {"sums": clipped.value.div_(clipped.l2), "counts": shares, **norms}
