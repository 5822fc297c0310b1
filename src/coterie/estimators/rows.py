"""Clients that hold rows: the constructor stores, ``fit`` checks and runs the ring.

``fit`` takes a matrix or a DataFrame and ``groups``, which says who holds each row; or parts, one a client; or a
``Federation`` (``data.holdings`` has the list). A matrix alone is one client that holds everything, and cannot be
hidden as a client. ``labels_`` and ``inertia_`` are about the points that ``fit`` was given; they are computed where it
runs and are no part of what is released.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from coterie.data.federation import Federation
from coterie.data.holdings import Holdings, UserData, as_floats, holdings
from coterie.data.units import Box, Scale, of_unknown_origin
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, STEPS, NoisySums
from coterie.errors import InvalidInput, NoiseDrowned, nearest, require
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters import lloyd
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.privacy.accounting import require_budget
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Trust
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings import feddp_kmeans, federated_lloyd, kfed
from coterie.protocols.clusterings.base import WEIGHT, Clusterer, Clusters
from coterie.protocols.clusterings.nearest_centres import NearestCentreEstimator, RandomState, random_root
from coterie.protocols.clusterings.provenance import Given, composed
from coterie.protocols.clusterings.steps import DROWNED, Stepping
from coterie.rng import Rng, Secrets
from coterie.wire.tape import Tape

TRUSTS: Mapping[Trust, type[NoisySums]] = {kind.trust: kind for kind in (CentralNoise, DistributedNoise, LocalNoise)}


def run_clustering(
    protocol: Clusterer,
    federation: Federation,
    rng: Rng,
    defence: Defence | None = None,
    tape: Tape | None = None,
    secrets: Secrets | None = None,
    ledger: Ledger | None = None,
) -> Clusters:
    """The whole protocol on this machine, under a defence, and on a tape if one is given.

    Without ``secrets`` the noise follows from ``rng``, and hides nothing from whoever has that.
    """
    roots = Roots.same(rng) if secrets is None else Roots(rng, secrets)
    book = Ledger() if ledger is None else ledger
    return Ring(protocol, federation, None, defence or Defence(), roots, tape, processes=0, ledger=book).run()


def federate(parts: UserData) -> Federation:
    """Clients from arrays of points, or from anything else that says who holds what; an empty client is kept."""
    if isinstance(parts, Federation):
        return parts
    held = holdings(parts)
    return held.federation(as_floats(np.asarray(held.table)), None, WEIGHT)


class _Clustering(NearestCentreEstimator):
    """What the three have in common: they run the ring."""

    def _fit(
        self,
        federation: Federation,
        protocol: Clusterer,
        rng: Rng,
        defence: Defence | None,
        tape: Tape | None,
        ledger: Ledger | None = None,
    ) -> Clusters:
        secrets = Secrets.from_entropy() if self.random_state is None else None
        state = run_clustering(protocol, federation, rng, defence, tape, secrets, ledger)
        x, units = federation.examples.x.flatten(1), self._units
        self.cluster_centers_ = units.own(state.known["centres"][0].numpy())
        self._n_features_out = len(self.cluster_centers_)
        labels = lloyd.nearest(x, self._scaled_centres)
        distances = lloyd.squared_distances(x, self._scaled_centres, labels).double()
        self.labels_ = labels.numpy()
        self.inertia_ = float((distances * federation.examples.tags.get(WEIGHT, torch.ones(()))).sum())
        moves = {name.split("/")[0] for name in state.released if name.startswith(("centres", "lloyd"))}
        self.n_iter_ = max(1, len(moves))
        return state


NO_NOISE = "k-FED adds no noise: its server is sent the means of each client's own clusters"


class KFed(_Clustering):
    """k-FED: one round, no privacy. ``local_clusters``: how many each client looks for (None: ``n_clusters``)."""

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        local_clusters: int | None = None,
        scale: Scale = None,
        box: Box | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.local_clusters = local_clusters
        self.scale = scale
        self.box = box
        self.random_state = random_state

    def fit(
        self,
        X: UserData,
        y: None = None,
        *,
        groups: UserData = None,
        sample_weight: ArrayLike | None = None,
        tape: Tape | None = None,
    ) -> Self:
        federation = self._federated(X, groups, sample_weight)
        protocol = kfed.KFed(self.n_clusters, local_clusters=self.local_clusters)
        self._fit(federation, protocol, random_root(self.random_state), None, tape)
        self.privacy_spent_ = Guarantee.none(NO_NOISE, Level.RECORD, Trust.TRUSTED_AGGREGATOR)
        return self


class _Private(_Clustering):
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
            largest,
            "must be at most 1: noise hides a record that counts once; divide the weights by their public maximum",
        )

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
        self.privacy_spent_ = claim
        if DROWNED in state.known:
            warnings.warn(DROWNING, NoiseDrowned, stacklevel=3)

    def _public(self, given: UserData, name: str) -> Given:
        """Points (rows, features) that are said to be public, scaled."""
        points, doubt = Given.public(given, name, self.n_features_in_)
        return Given(name, self._units.scaled(points), doubt)


DROWNING = (
    "noise hides how long the data's vectors are, and a guess from what is public stands in for it; spend more "
    "epsilon, bring more records or clients, or set bound= by hand"
)


class FederatedLloyd(_Private):
    """Lloyd's algorithm with sums over clients, from ``init`` or k-means on ``server_data``.

    With a finite ``epsilon`` this is FedDP-Lloyds. ``init`` is ``Public(centres)``, or a fitted estimator, whose
    guarantee is then composed with this one; centres that are neither are used all the same, and there is no guarantee.
    Without noise, and without a start, it starts from k-FED. ``max_iter=None`` plans as many steps as are usual at the
    level.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        epsilon: float = math.inf,
        delta: float = 1e-6,
        level: str | Level = "record",
        trust: str | Trust = "trusted_aggregator",
        neighbours: str | Neighbours | None = None,
        colluders: int | None = None,
        max_iter: int | None = None,
        init: UserData = None,
        bound: float | None = None,
        shares: Mapping[str, float] | None = None,
        ledger: Ledger | None = None,
        scale: Scale = None,
        box: Box | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.level = level
        self.trust = trust
        self.neighbours = neighbours
        self.colluders = colluders
        self.max_iter = max_iter
        self.init = init
        self.bound = bound
        self.shares = shares
        self.ledger = ledger
        self.scale = scale
        self.box = box
        self.random_state = random_state

    def fit(
        self,
        X: UserData,
        y: None = None,
        *,
        groups: UserData = None,
        sample_weight: ArrayLike | None = None,
        server_data: UserData = None,
        tape: Tape | None = None,
    ) -> Self:
        federation, rng = self._federated(X, groups, sample_weight), random_root(self.random_state)
        start = self._start(federation, server_data, rng, tape)
        steps = UNTIL_STILL if self._level is None else STEPS[self._level]
        protocol = federated_lloyd.FederatedLloyd(
            self.n_clusters,
            self._level,
            steps=steps if self.max_iter is None else self.max_iter,
            bound=self.bound,
            box=self._units.box,
            centres=start.points,
        )
        self._fit_privately(federation, protocol, rng, [start], tape)
        return self

    def _start(self, federation: Federation, server_data: UserData, rng: Rng, tape: Tape | None) -> Given:
        if self.init is not None:
            found = self._given_init()
            shape = tuple(found.points.shape)
            require(shape == (self.n_clusters, self.n_features_in_), "init.shape", shape, "does not fit the data")
            return found
        if server_data is not None:
            known = self._public(server_data, "server_data")
            centres = weighted_kmeans(known.points, torch.ones(len(known.points)), self.n_clusters, rng.child("start"))
            return replace(known, points=centres.centres[0])
        if self._level is not None or tape is not None:
            raise InvalidInput(
                "init=None: pass init=Public(centres), a fitted private estimator such as FedDPKMeans, or server_data"
            )
        found_by_kfed = run_clustering(kfed.KFed(self.n_clusters), federation, rng.child("k-FED"))
        return Given("init", found_by_kfed.known["centres"][0])

    def _given_init(self) -> Given:
        inner = getattr(self.init, "estimator", self.init)  # FrozenEstimator, which survives clone(), wraps one
        if not isinstance(inner, BaseEstimator):
            return self._public(self.init, "init")
        name = f"init={type(inner).__name__}"
        check_is_fitted(inner, "cluster_centers_", msg=f"{name} is not fitted; clone() unfits it: use FrozenEstimator")
        spent = getattr(inner, "privacy_spent_", None)
        points = self._units.scaled(inner.cluster_centers_)
        if not isinstance(spent, Guarantee) or not spent.proven:
            why = spent.why_not if isinstance(spent, Guarantee) else "it adds no noise"
            return Given(name, points, f"{name} has no guarantee itself ({why})")
        return Given(name, points, spent=spent)


UNTIL_STILL = 20  # steps without noise, if no number is given


class FedDPKMeans(_Private):
    """FedDP-KMeans: a start that spends a part of the budget, and ``lloyd_steps``, which share the rest.

    ``level`` is whose presence is hidden, "record" or "client". ``trust`` says where the noise is added and so who must
    be trusted; ``privacy_spent_`` repeats it beside the epsilon. ``bound`` is the clipping bound about the centres;
    None: estimated, and charged for. ``lloyd_steps=None`` plans as many as are usual at the level; steps that noise
    explains are averaged, so that none is lost. ``server_data`` (in ``fit``) is ``Public(points)``, or there is no
    guarantee; without any, points are drawn by the data's noisy mean and spread, which are charged for, too.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        level: str | Level = "record",
        trust: str | Trust = "trusted_aggregator",
        neighbours: str | Neighbours | None = None,
        colluders: int | None = None,
        lloyd_steps: int | None = None,
        bound: float | None = None,
        shares: Mapping[str, float] | None = None,
        ledger: Ledger | None = None,
        scale: Scale = None,
        box: Box | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.level = level
        self.trust = trust
        self.neighbours = neighbours
        self.colluders = colluders
        self.lloyd_steps = lloyd_steps
        self.bound = bound
        self.shares = shares
        self.ledger = ledger
        self.scale = scale
        self.box = box
        self.random_state = random_state

    def fit(
        self,
        X: UserData,
        y: None = None,
        *,
        groups: UserData = None,
        sample_weight: ArrayLike | None = None,
        server_data: UserData = None,
        tape: Tape | None = None,
    ) -> Self:
        federation, rng = self._federated(X, groups, sample_weight), random_root(self.random_state)
        given = [] if server_data is None else [self._public(server_data, "server_data")]
        steps = self.lloyd_steps if self.lloyd_steps is not None else STEPS[self._stated_level]
        protocol = feddp_kmeans.FedDPKMeans(
            self.n_clusters,
            self._level,
            steps=steps,
            bound=self.bound,
            box=self._units.box,
            server_data=given[0].points if given else None,
            middle=None if given else self._middle(),
        )
        self._fit_privately(federation, protocol, rng, given, tape)
        return self

    def _middle(self) -> Tensor:
        """A public point from which to look for the data: the middle of the box, or the origin."""
        box = self._units.box
        return torch.zeros(self.n_features_in_) if box is None else (box[0] + box[1]) / 2
