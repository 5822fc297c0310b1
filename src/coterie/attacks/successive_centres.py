"""Exact records from the centres of successive steps: few records move, and what moves is a difference.

After Yang, Luo and Li (2025). Federated Lloyd tells sums and counts of every step. Where one cluster has one record
less, another one more, and their sums have changed by the same vector, that vector is the record.

In vertical k-means the server knows who is in which cluster in every step. Where centres are shown besides, every one
is a linear equation about known records; a record is decided exactly if no change of the others could make up for a
change of its own, which the leverage of its column in all equations says: 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import assignments
from coterie.attacks.reconstruction import RESULT, seen
from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted, require
from coterie.learn.clusters.clipping import Unclipped
from coterie.learn.clusters.statistics import ORIGIN, Unit
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

CURIOUS_SERVER = ThreatModel("curious server", server=True, knows="no record")
STEP = "lloyd "  # how the requests for a step's sums are called
SHOWN = "centres shown"  # the part of the auxiliary data with (steps x clusters) centres, one step after the other
SAME = 1e-3  # of their lengths: two changes that differ by less are one record's
DECIDED = 1 - 1e-6
EVERYBODY = -1


@dataclass(frozen=True)
class Exposed:
    """Records that were read exactly; whose they are: a client's (or everybody's), or the record's own number."""

    columns: Tensor  # (found, features)
    whose: Tensor  # (found,)


@dataclass(frozen=True)
class MovedRecords:
    """From federated Lloyd: of each client whose messages can be read, else of the published sums over all."""

    unit: Unit = Unclipped
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Exposed:
        kinds = [kind for kind in map(str, view.kinds()) if kind.startswith(STEP) and "/" not in kind]
        kinds.sort(key=view.first)
        if not kinds:
            raise NotPermitted(
                f"{view.threat.name} saw nothing of kind {STEP!r}; it saw {list(map(str, view.kinds()))}"
            )
        sent = view.sent(view.first(kinds[0]), kinds[0])
        found, whose = [], []
        for client in sent.ids.tolist() if sent.values else [EVERYBODY]:
            for record in self._moved(view, kinds, client):
                found.append(record)
                whose.append(client)
        width = view.received(view.last(RESULT), RESULT).values["centres"].shape[-1]
        columns = torch.stack(found) if found else torch.empty(0, width)
        return Exposed(columns, torch.tensor(whose, dtype=torch.int64))

    def _moved(self, view: View, kinds: list[str], client: int) -> Iterator[Tensor]:
        before: tuple[Tensor, Tensor] | None = None
        for kind in kinds:
            step = seen(view, kind, client, self.unit)
            counts = step.counts.double()
            about = 0.0 if ORIGIN in step.public else counts.unsqueeze(1) * step.public["centres"].double()
            sums = step.sums.double() + about
            if before is not None:
                yield from pairs(sums - before[0], counts - before[1])
            before = sums, counts


def pairs(moved: Tensor, heads: Tensor) -> Iterator[Tensor]:
    """Of changes of sums (clusters, features) and counts: the records that alone went from one cluster to another."""
    gained, lost = (torch.nonzero((heads - by).abs() < 0.5).flatten().tolist() for by in (1.0, -1.0))
    for to in gained:
        for since in lost:
            gap, length = float((moved[to] + moved[since]).norm()), float(moved[to].norm())
            if length > 0 and gap <= SAME * length:
                yield (moved[to] - moved[since]) / 2


@dataclass(frozen=True)
class ShownCentres:
    """From vertical k-means whose centres are shown: the auxiliary part ``SHOWN``, in the order of the assignments."""

    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Exposed:
        try:
            labels = assignments(view)
        except KeyError as error:
            raise NotPermitted(f"{view.threat.name} saw nothing of the assignments") from error
        centres = auxiliary.part(SHOWN).x.flatten(1).double()
        clusters, left = divmod(len(centres), len(labels))
        require(left == 0, "centres shown", len(centres), f"must be as many for each of {len(labels)} assignments")
        return decided(torch.stack(labels), centres.view(len(labels), clusters, -1))


def decided(labels: Tensor, centres: Tensor) -> Exposed:
    """Of assignments (steps, records) and the means (steps, clusters, columns) that follow from them."""
    members = (
        torch.nn.functional.one_hot(labels, centres.shape[1]).double().transpose(1, 2)
    )  # (steps, clusters, records)
    heads = members.sum(2, keepdim=True)
    filled = heads[:, :, 0].flatten() > 0
    equations, sums = members.flatten(0, 1)[filled], (centres * heads).flatten(0, 1)[filled]
    left, sizes, right = torch.linalg.svd(equations, full_matrices=False)
    real = sizes > 1e-9 * sizes.max()
    whose = torch.nonzero(right[real].square().sum(0) > DECIDED).flatten()
    solved = right[real][:, whose].T @ ((left[:, real].T @ sums) / sizes[real].unsqueeze(1))
    return Exposed(solved, whose)
