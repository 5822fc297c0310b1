"""Bounds on what one record, or one client, can change.

A statistic leaves its kernel together with its sensitivity, because the two must not be chosen apart: the
outer product of a record clipped to norm C has norm C squared, and noise scaled to C (as the public code of
FedDP-KMeans has it at record level) spends C times the epsilon it states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require


def _require_bound(bound: float) -> None:
    require(
        0 < bound < math.inf,
        "clipping bound",
        bound,
        "must be positive and finite; to switch clipping off, pass Unclipped()",
    )


@dataclass(frozen=True)
class RecordClip:
    """Each record is scaled down to this norm before anything is computed from it."""

    bound: float

    def __post_init__(self) -> None:
        _require_bound(self.bound)


@dataclass(frozen=True)
class ClientClip:
    """Each client's whole statistic is scaled down to this L2 norm."""

    bound: float

    def __post_init__(self) -> None:
        _require_bound(self.bound)


@dataclass(frozen=True)
class Unclipped:
    """Nothing is bounded, so nothing that is computed can carry a privacy claim."""


Clip = RecordClip | ClientClip | Unclipped


@dataclass(frozen=True)
class Bounded:
    """One statistic a client, and how far one protected unit can move the sum over clients.

    The unit (record or client) is the one that the clip bounds; a neighbour is the same data with one unit
    added or removed.
    """

    value: Tensor  # (clients, ...)
    l2: float
    l1: float

    def __post_init__(self) -> None:
        require(
            self.l2 >= 0 and self.l1 >= self.l2,
            "sensitivity (l2, l1)",
            (self.l2, self.l1),
            "needs 0 <= l2 <= l1",
        )


def norm_scales(norms: Tensor, bound: float) -> Tensor:
    """The factors that bring these norms down to the bound; 1 where they are within it."""
    return (bound / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)


def client_norms(value: Tensor) -> Tensor:
    """The L2 norm of each client's statistic, over all axes but the first."""
    norms: Tensor = torch.linalg.vector_norm(value.flatten(1), dim=1)
    return norms


def clip_clients(value: Tensor, clip: ClientClip, out: Tensor | None = None) -> Bounded:
    """Scale each client's statistic to the bound. One client added or removed moves the sum by at most it.

    ``out`` may be ``value``: outer products of thousands of clients are better not written twice.
    """
    scales = norm_scales(client_norms(value), clip.bound)
    entries = value[0].numel() if len(value) else 1
    clipped = torch.mul(value, scales.view(-1, *[1] * (value.dim() - 1)), out=out)
    return Bounded(clipped, l2=clip.bound, l1=clip.bound * math.sqrt(entries))


def bounded(value: Tensor, clip: Clip, per_record: Callable[[float], tuple[float, float]]) -> Bounded:
    """Attach the sensitivity to a statistic, which is clipped in place.

    ``per_record`` maps a record's norm bound to the (l2, l1) of the statistic.
    """
    match clip:
        case ClientClip():
            return clip_clients(value, clip, out=value)
        case RecordClip(bound):
            l2, l1 = per_record(bound)
            return Bounded(value, l2, l1)
        case Unclipped():
            return Bounded(value, math.inf, math.inf)
