"""Which of two records is in a weighted grid, for a server that knows all the others (Li, Wang and Li 2023).

The server published the centres, so it knows where every record was counted. With each of the two in turn it computes
what parties would have told without noise, and takes the one that comes nearer to what they did tell. It is the
adversary of differential privacy, which replaces one record by another: a guarantee against it holds against any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted
from coterie.learn.clusters.columns import Labelled
from coterie.learn.clusters.lloyd import nearest
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

LOCAL = "local"
ALL_BUT_ONE = ThreatModel("server that knows all but one", server=True, knows="all records but one, and two candidates")


@dataclass(frozen=True)
class Explained:
    """How badly each candidate explains what was told."""

    misfits: Tensor  # (candidates,)


@dataclass(frozen=True)
class AllButOne:
    """``candidates`` (candidates, all columns), the first party's columns first, ``widths`` of them each.

    ``low`` and ``high`` are the protocol's, and public.
    """

    candidates: Tensor = field(repr=False)
    widths: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    threat: ThreatModel = field(default=ALL_BUT_ONE)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Explained:
        """``auxiliary`` are all other records."""
        view.first(LOCAL)  # says what was seen, if it was none of this
        known = auxiliary.whole().x.flatten(1).split(list(self.widths), 1)
        tried = self.candidates.split(list(self.widths), 1)
        misfits = torch.zeros(len(self.candidates), dtype=torch.float64)
        for round in view.rounds(LOCAL):
            for party, (own, extra) in enumerate(zip(known, tried, strict=True)):
                misfits += self._misfit(view, round, party, own, extra)
        return Explained(misfits)

    def _misfit(self, view: View, round: int, party: int, own: Tensor, extra: Tensor) -> Tensor:
        """(candidates,): squared, in units of the noise on sums. A count's noise is as much less as its weight says."""
        centres = view.received(round, LOCAL).values["centres"][0][party, :, : own.shape[1]]
        sent = view.sent(round, LOCAL)
        ids = sent.ids.tolist()
        if party not in ids:
            raise NotPermitted(f"{view.threat.name} sees nothing that party {party} sent; it sees {ids}")
        place = ids.index(party)
        sums, counts = self._told(own, centres)
        left = sent.values["sums"][place, 0, :, : own.shape[1]].double() - sums  # (clusters, columns)
        heads = sent.values["counts"][place, 0].double() - counts
        weight = (self.high - self.low) / 4 * math.sqrt(own.shape[1])
        found = []
        for one in extra.split(1):
            more, head = self._told(one, centres)
            found.append((left - more).square().sum() + weight**2 * (heads - head).square().sum())
        return torch.stack(found)

    def _told(self, x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
        """Sums about the middle and counts, as a party without noise would tell them."""
        labelled = Labelled(nearest(x.float(), centres), len(centres))
        within = x.double().clamp(self.low, self.high) - (self.low + self.high) / 2
        return labelled.sums(within), labelled.heads[:, 0].double()
