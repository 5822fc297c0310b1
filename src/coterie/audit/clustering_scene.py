"""Federated k-means on the subject's points, as the attacks on it need it: one Lloyd step from public centres."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coterie.audit.case import Subject
from coterie.audit.curves import as_png
from coterie.audit.family import Family
from coterie.audit.fitting import NOISY_SUMS
from coterie.audit.recorded import Recording
from coterie.audit.scene import held_back
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.data.federation import Examples, Federation, Shards
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, NoisySums, plan_noise
from coterie.errors import InvalidInput, nearest
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters import lloyd
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.measure.clustering import kmeans_cost
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import Clusters
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.rng import Rng
from coterie.wire.tape import Tape

PLACES = {"server": CentralNoise, "shared": DistributedNoise, "client": LocalNoise}
DELTA = 1e-6


class ClusteringFamily(Family):
    """A family that attacks federated k-means; its defences are noise, by who adds it."""

    def admits(self, subject: Subject) -> str:
        return "" if subject.data.kind not in ("yelp", "critics") else "needs points, and the data are texts"

    def admits_recording(self, recording: Recording) -> str:
        return "needs the records that were clustered, and a recording does not hold them"

    def protocol(self, subject: Subject) -> FederatedLloyd:
        return FederatedLloyd(2, centres=torch.zeros(2, 1), steps=1)  # of as many clusters and features as it may be

    def misfit(self, subject: Subject, choice: Choice) -> str:
        return "" if choice.kind == NOISY_SUMS else super().misfit(subject, choice)  # planned for these very sums

    def differs(self, subject: Subject) -> str:
        return "one Lloyd step of federated k-means on the same clients' points, from public centres"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [noise(place) for place in PLACES]

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        return [(noise("client", epsilon), 1 / epsilon) for epsilon in (10.0, 3.0, 1.0)]


def noise(added_by: str, epsilon: float = 1.0) -> Choice:
    return Choice.model_validate({"kind": NOISY_SUMS, "added_by": added_by, "epsilon": epsilon})


@dataclass(frozen=True)
class Scene:
    """The federation of points, and how it is clustered."""

    federation: Federation
    centres: Tensor  # (clusters, features), public
    bound: float  # the median distance of public points from their centres
    shape: tuple[int, ...]  # of an example as it was
    seconds: float = 0.0

    @staticmethod
    def of(subject: Subject, seed: int) -> Scene:
        rng = Rng.seeded(seed)
        auxiliary, examples = held_back(subject.examples(seed), rng)
        public = auxiliary.whole().x.flatten(1)
        found = weighted_kmeans(public, torch.ones(len(public)), examples.classes, rng.child("centres"))
        centres = found.centres[0]
        distances = lloyd.squared_distances(public, centres, lloyd.nearest(public, centres)).sqrt()
        flat = replace(examples, x=examples.x.flatten(1))
        return Scene(subject.partitioned(flat, seed), centres, float(distances.median()), tuple(examples.x.shape[1:]))

    @cached_property
    def points(self) -> Tensor:
        return self.federation.examples.x

    @property
    def clients(self) -> int:
        return int((self.federation.train.sizes > 0).sum())

    def protocol(self, choice: Choice) -> FederatedLloyd:
        """Noise needs what a record adds to be bounded; nothing else does."""
        level = Level.RECORD if choice.kind == NOISY_SUMS else None
        return FederatedLloyd(len(self.centres), level, centres=self.centres, steps=1, bound=self.bound)

    def defence(self, choice: Choice) -> Defence:
        if choice.kind != NOISY_SUMS:
            return registry.build_defence(choice)
        place, epsilon = choice.options.get("added_by", "server"), float(choice.options.get("epsilon", 1.0))
        if place not in PLACES:
            raise InvalidInput(f"added_by={place!r} {nearest(place, PLACES)}")
        planned = plan_noise(self.protocol(choice).releases(), epsilon, DELTA, SHARES[Level.RECORD])
        if place == "shared":
            return DistributedNoise(planned, clients=self.clients)
        kind: type[NoisySums] = PLACES[place]
        return kind(planned)

    def run(self, choice: Choice, rng: Rng, tape: Tape | None = None) -> tuple[Ring[Clusters], Clusters, float]:
        """The ring, its state at the end, and the seconds that it took."""
        started = time.monotonic()
        protocol, guards = self.protocol(choice), self.defence(choice)
        ring = Ring(protocol, self.federation, None, guards, Roots.same(rng), tape, processes=0)
        state = ring.run()
        return ring, state, time.monotonic() - started

    def cost(self, state: Clusters) -> float:
        return kmeans_cost(self.points[self.federation.train.rows], state.known["centres"][0])

    def pictures(self, vectors: Mapping[str, Sequence[Tensor]]) -> dict[str, list[str]]:
        """The vectors as pictures; none where the examples are not pictures of one channel or three."""
        if len(self.shape) != 3 or self.shape[0] not in (1, 3):
            return {}
        return {name: [as_png(vector.view(self.shape)) for vector in found] for name, found in vectors.items()}

    def without(self, client: int, position: int) -> Federation:
        """The same federation less one record of one client."""
        parts = [self.federation.train[number] for number in range(self.federation.clients)]
        keep = torch.arange(len(parts[client])) != position
        parts[client] = parts[client][keep]
        return replace(self.federation, train=Shards.of(parts))


def as_examples(x: Tensor) -> Examples:
    return Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "known")
