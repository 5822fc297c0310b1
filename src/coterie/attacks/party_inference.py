"""What one party learns of another's columns from the clusters that it is told (vertical k-means, paper 003).

Every party is sent the assignments of every step, for its own centres follow from them. Beside its own columns they are
features of each record, and known records say how the other's columns depend on them. What its own columns give alone
is no leak, and stands beside it (``told=False``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.attacks.distance_geometry import RECORD, Recovered, assignments, one_hot
from coterie.attacks.regression import best_fitted
from coterie.data.auxiliary import Auxiliary
from coterie.errors import require
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

OWN = "own columns"
"""The part of the auxiliary data with the party's own columns of all records."""


def curious_party(party: int) -> ThreatModel:
    return ThreatModel(f"party {party}", clients=frozenset({party}), knows="its own columns, some records of another's")


@dataclass(frozen=True)
class PartyInference:
    """``told``: with the assignments, or (the baseline) by its own columns alone."""

    threat: ThreatModel
    told: bool = True

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Recovered:
        known, own = auxiliary.whole(), auxiliary.part(OWN).x.flatten(1).double()
        require(RECORD in known.tags, "tags of the known records", sorted(known.tags), f"must have {RECORD!r}")
        rows = known.tags[RECORD]
        require(len(rows) >= 2, "known records", len(rows), "must be at least 2: one alone aligns nothing")
        labels = one_hot(assignments(view), only_last=False)  # raises where it was told none
        spread = own.std(0).clamp_min(1e-12)
        features = torch.cat([own / spread, labels], 1) if self.told else own / spread
        guesses = best_fitted(features - features.mean(0), rows, known.x.flatten(1).double())
        return Recovered(guesses, rows, (features.shape[1],))
