"""Is a record in the span of what was sent? Membership without rehearsals, exact where few records stand behind it.

Whatever a dense network is trained on, and for however many steps, its first layer moves by a sum of outer products
with the inputs: every row of the change is a combination of the records that were trained on. (Petrov et al. 2024,
DAGER, read text out of a gradient so.) All rounds together span these records, and as long as there are fewer of them
than features, nobody else's record lies in that span. A client's own update has a client's records behind it, and a
cluster's model those of its clients: the smaller a cluster, the surer it is told who is in it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.shadows import Asked, Seat
from coterie.attacks.update_membership import moves, scaled
from coterie.data.auxiliary import Auxiliary
from coterie.errors import require
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.params import Params
from coterie.rng import Rng
from coterie.wire.messages import TRAIN
from coterie.wire.view import ThreatModel, View

FEATURES = 1536  # at most, drawn at random: dependence shows in any of them, as long as there are more than records
ROUNDING = 2.0**-22  # of a weight: a few times what float32 leaves open
FLOOR = 0.05  # of the directions are taken for noise, whatever noise there is


@dataclass(frozen=True)
class SpanMembership:
    """``seat`` is the server's (what each client sent) or a curious client's (what each cluster moved by)."""

    seat: Seat
    model: Model
    asked: Asked = field(repr=False)
    client: int = 0  # the curious client's number

    def __post_init__(self) -> None:
        require(self.seat is not Seat.FINAL, "seat", self.seat.value, "sees no updates")
        require(spans(self.model), "model", type(self.model).__name__, "must be dense from its input on")

    @property
    def threat(self) -> ThreatModel:
        return self.seat.threat(self.client)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        """One score a question; nothing about those of whom nothing can be read."""
        view.last(TRAIN)  # raises where nothing at all was seen
        examples, asked = auxiliary.whole(), self.asked
        records = torch.cat([examples.x[asked.rows].flatten(1), torch.ones(len(asked), 1)], 1).double()
        features = torch.randperm(records.shape[1], generator=rng.child("features").torch())[:FEATURES]
        records, spanned = records[:, features], defaultdict[int, Spanned](Spanned)
        for number, start, moved in moves(self.seat, view, lambda round: True):
            spanned[number].enter(_first(moved)[:, features], _first(start)[:, features])
        whose = asked.clients if self.seat is Seat.UPLOADS else asked.clusters
        scores = torch.full((len(asked),), torch.nan, dtype=torch.float64)
        for number, span in spanned.items():
            here = whose == number
            if bool(here.any()):
                outside = span.outside(records[here | asked.known])
                scores[here] = scaled(-outside.log(), asked.known[here | asked.known])[here[here | asked.known]]
        told = (~scores.isnan() & ~asked.known).nonzero().flatten().tolist()
        return Suspicions({number: float(scores[number]) for number in told})


def spans(model: Model) -> bool:
    """Whether its first layer multiplies the record itself."""
    return isinstance(model, Dense)


class Spanned:
    """The directions that one client's, or one cluster's, first layer moved in."""

    def __init__(self) -> None:
        self.squares: Tensor | float = 0.0  # (features, features)
        self.rounding = 0.0

    def enter(self, moved: Tensor, start: Tensor) -> None:
        """Both (units, features)."""
        self.squares = self.squares + moved.T @ moved
        self.rounding += float((start * ROUNDING).square().sum(0).mean())

    def outside(self, records: Tensor) -> Tensor:
        """(records,): the share of each that lies in no direction which stands out of the noise."""
        assert isinstance(self.squares, Tensor)
        strengths, directions = torch.linalg.eigh(self.squares)
        noise = max(self.rounding, float(strengths.quantile(FLOOR)), 1e-300)
        along = (records @ directions).square()
        left = along @ (noise / (strengths.clamp_min(0) + noise))
        share: Tensor = left / along.sum(1).clamp_min(1e-300)
        return share.clamp_min(1e-300)


def _first(params: Params) -> Tensor:
    """(units, features and one): the first layer, with its bias, whose input is always one."""
    return torch.cat([params["0.weight"], params["0.bias"].unsqueeze(1)], 1).double()
