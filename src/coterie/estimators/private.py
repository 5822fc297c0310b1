"""Estimators with a total budget of privacy: what they may be told, the noise that follows, and what was spent."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.data.federation import Federation
from coterie.data.holdings import Holdings, UserData
from coterie.data.units import of_unknown_origin
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, NoisySums
from coterie.errors import InvalidInput, NoiseDrowned, nearest, require
from coterie.estimators.clustering import Clustering
from coterie.privacy.accounting import require_budget
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Trust
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings.base import MOST_CLUSTERS
from coterie.protocols.clusterings.provenance import Given, composed
from coterie.protocols.clusterings.steps import DROWNED, Stepping
from coterie.rng import Rng
from coterie.wire.tape import Tape

TRUSTS: Mapping[Trust, type[NoisySums]] = {kind.trust: kind for kind in (CentralNoise, DistributedNoise, LocalNoise)}


class Private(Clustering):
    """A total budget, split over the releases by a stated rule (``shares`` sets it by hand).

    ``neighbours`` are the data sets that must look alike; None: what is usual for the trust model and level.
    ``colluders``, under distributed noise, may tell the server their shares of it; None: one. ``ledger`` composes over
    all fits that it is handed to, and refuses one that would spend more than it has left.
    """

    epsilon: float
    delta: float
    level: str | Level
    trust: str | Trust
    neighbours: str | Neighbours | None
    colluders: int | None
    bound: float | None
    shares: Mapping[str, float] | None
    ledger: Ledger | None

    @property
    def _stated_level(self) -> Level:
        levels = {level.value: level for level in SHARES}
        level = levels.get(self.level) if isinstance(self.level, str) else self.level
        if level not in SHARES:
            raise InvalidInput(f"level={self.level!r} {nearest(self.level, levels)}")
        assert level is not None
        return level

    @property
    def _stated_trust(self) -> Trust:
        trusts = {trust.name.lower(): trust for trust in TRUSTS}
        trust = trusts.get(self.trust) if isinstance(self.trust, str) else self.trust
        if trust not in TRUSTS:
            raise InvalidInput(f"trust={self.trust!r} {nearest(self.trust, trusts)}")
        assert trust is not None
        return trust

    @property
    def _level(self) -> Level | None:
        """The unit to protect; None where epsilon is infinite, for then nothing is bounded either."""
        return None if math.isinf(self.epsilon) else self._stated_level

    def _require_private(self, held: Holdings, sample_weight: ArrayLike | None) -> None:
        require(
            self._level is not Level.CLIENT or not held.together,
            "groups",
            None,
            "leaves one client who holds everything, and to hide that client is to hide all there is; say who holds "
            "each row (groups=range(len(X)): each row is a client of its own), or protect records, level='record'",
        )
        largest = 0.0 if sample_weight is None else float(np.max(np.asarray(sample_weight, dtype=float), initial=0.0))
        require(
            self._level is not Level.RECORD or largest <= 1,
            "largest sample_weight",
            "above 1",  # how large it is, is the data's
            "must be at most 1: noise hides a record that counts once; divide the weights by their public maximum",
        )

    def _most_clusters(self, federation: Federation) -> tuple[int, str]:
        """Whether a fit goes through must not hang on how many records there are: that is the data's."""
        return super()._most_clusters(federation) if self._level is None else (MOST_CLUSTERS, "")

    @property
    def _stated_neighbours(self) -> Neighbours | None:
        names = {near.name.lower(): near for near in Neighbours}
        near = names.get(self.neighbours) if isinstance(self.neighbours, str) else self.neighbours
        if self.neighbours is not None and near not in names.values():
            raise InvalidInput(f"neighbours={self.neighbours!r} {nearest(self.neighbours, names)}")
        return near

    def _defence(self, protocol: Stepping, federation: Federation) -> NoisySums | None:
        if protocol.level is None:
            return None
        kind = TRUSTS[self._stated_trust]
        settings = {"clients": federation.clients, "colluders": self.colluders} if kind is DistributedNoise else {}
        return kind.within(
            self.epsilon,
            self.delta,
            protocol.releases(),
            protocol.level,
            shares=self.shares,
            neighbours=self._stated_neighbours,
            **settings,
        )

    def _fit_privately(
        self, federation: Federation, protocol: Stepping, rng: Rng, given: Sequence[Given], tape: Tape | None
    ) -> None:
        """``given``: what the run starts from, and what is known of where it comes from."""
        require_budget(self.epsilon, self.delta)
        defence = self._defence(protocol, federation)
        planned = protocol if defence is None else replace(protocol, planned=defence.noise)
        own: list[Any] = []
        alone = Guarantee.none("epsilon=inf: no noise was added", self._stated_level, self._stated_trust)
        if defence is not None:
            facts = planned.facts(federation, self.delta)
            own, alone = list(defence.events(facts)), defence.guarantee(facts)
        unknown = of_unknown_origin(self.scale, self.box)
        claim = composed(alone, given, self.random_state is not None, unknown)
        with nullcontext(None) if self.ledger is None else self.ledger.reserve(claim, own) as ledger:
            state = self._fit(federation, planned, rng, defence, tape, ledger)
        self.privacy_spent_, self._claimed = claim, fingerprint(self.cluster_centers_)
        if DROWNED in state.known:
            warnings.warn(DROWNING, NoiseDrowned, stacklevel=3)

    def _public(self, given: UserData, name: str) -> Given:
        """Points (rows, features) that are said to be public, scaled."""
        points, doubt = Given.public(given, name, self.n_features_in_)
        return Given(name, self._units.scaled(points), doubt)


def fingerprint(centres: NDArray[np.floating]) -> str:
    """Of the centres that a claim is about: others in their place have no part in it."""
    return hashlib.blake2b(np.ascontiguousarray(centres).tobytes(), digest_size=16).hexdigest()


DROWNING = (
    "noise hides how long the data's vectors are, and a guess from what is public stands in for it; spend more "
    "epsilon, bring more records or clients, or set bound= by hand"
)
