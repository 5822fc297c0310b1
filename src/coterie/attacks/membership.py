"""Was this record (or this client) among the points that were clustered? Three tests, from weak to optimal.

Each scores one recorded run; many runs, with and without the target, make a curve (``measure.membership``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.data.auxiliary import Auxiliary
from coterie.errors import require
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.lloyd import nearest
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import Unit, statistics
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

RESULT = "result"
TARGET = "target"
"""The one question of these attacks."""

GIVEN_THE_RESULT = ThreatModel("whoever is given the result", clients=frozenset({0}))
"""A client, since clients are given it; whose own messages are of no use here."""


def published_centres(view: View) -> Tensor:
    """The centres that the run ended with, (clusters, features)."""
    rounds = view.rounds(RESULT)
    require(len(rounds) > 0, "result", None, "was not published in this view; record the run to its end")
    return view.received(rounds[-1], RESULT).values["centres"][0]


@dataclass(frozen=True)
class CostTest:
    """Section 5.3: a record that was in lies nearer to a centre. The paper compares two runs; one has a score."""

    record: Tensor = field(repr=False)  # (features,)
    threat: ThreatModel = field(default=GIVEN_THE_RESULT)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        centres = published_centres(view)
        return Suspicions({TARGET: -float((centres - self.record).square().sum(1).min())})


@dataclass(frozen=True)
class ShadowTest:
    """A likelihood ratio between shadow runs with the record and without it (Carlini et al. 2022, on centres).

    ``inside`` and ``outside`` (runs, clusters, features) are the centres of runs that the adversary made itself, on
    what it knows of the data. It looks at how far the centre nearest to the record has moved towards it; both kinds of
    run are taken to scatter normally, with one variance.
    """

    record: Tensor = field(repr=False)
    inside: Tensor = field(repr=False)
    outside: Tensor = field(repr=False)
    threat: ThreatModel = field(default=GIVEN_THE_RESULT)

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            runs = len(getattr(self, name))
            require(runs >= 2, f"{name} shadow runs", runs, "must be at least 2: a variance is taken of them")

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        usual = self._nearest(self.outside).mean(0)
        towards = self.record - usual
        towards = towards / towards.norm().clamp_min(torch.finfo(towards.dtype).tiny)
        inside, outside = (self._nearest(runs) @ towards for runs in (self.inside, self.outside))
        here = self._nearest(published_centres(view).unsqueeze(0)) @ towards
        variance = (inside.var() + outside.var()) / 2
        middle = (inside.mean() + outside.mean()) / 2
        ratio = (here - middle) * (inside.mean() - outside.mean()) / variance.clamp_min(torch.finfo(here.dtype).tiny)
        return Suspicions({TARGET: float(ratio)})

    def _nearest(self, runs: Tensor) -> Tensor:
        """(runs, features): in each run, the centre nearest to the record."""
        return torch.stack([centres[int(nearest(self.record.unsqueeze(0), centres))] for centres in runs])


@dataclass(frozen=True)
class SumsTest:
    """The optimal test on the released noisy sums, for an adversary that knows everything but whether the target is in.

    ``target`` (records, features) is one record, or a whole client; ``known`` are all others. The noise is Gaussian and
    its deviations in the sums are public, so the log-likelihood ratio is a sum of inner products (Neyman and Pearson).
    """

    target: Tensor = field(repr=False)
    known: Points = field(repr=False)
    noise: Mapping[str, float]  # "request/leaf": the deviation of the released sum
    unit: Unit = RecordClip
    threat: ThreatModel = field(default=GIVEN_THE_RESULT)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        published = view.received(view.last(RESULT), RESULT).values
        total = 0.0
        for kind in dict.fromkeys(name.split("/")[0] for name in self.noise if name in published):
            public = {name: leaf[0] for name, leaf in view.received(view.first(kind), kind).values.items()}
            outside = {name: leaf.sum(0) for name, leaf in statistics(kind, public, self.known, self.unit).items()}
            change = {name: leaf.sum(0) for name, leaf in self._alone(kind, public).items()}
            for leaf, moved in change.items():
                released = published[f"{kind}/{leaf}"]  # (1, ...)
                total += float(log_ratios(released, outside[leaf], moved, self.noise[f"{kind}/{leaf}"]))
        return Suspicions({TARGET: total})

    def _alone(self, kind: str, public: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return statistics(kind, public, Points.of([self.target]), self.unit)


def log_ratios(released: Tensor, outside: Tensor, change: Tensor, deviation: float) -> Tensor:
    """(releases,): of the target's being in to its being out, where the sum without it is ``outside``.

    ``released`` is (releases, ...); ``outside`` and ``change``, what the target adds, are (...).
    """
    require(deviation > 0, "deviation", deviation, "must be positive: without noise the sum itself tells")
    moved = change.double().flatten()
    middle = outside.double().flatten() + moved / 2
    return (released.double().flatten(1) - middle) @ moved / deviation**2
