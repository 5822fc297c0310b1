"""Clients that hold rows: the constructor stores, ``fit`` checks and runs the ring.

``fit`` takes a matrix or a DataFrame and ``groups``, which says who holds each row; or parts, one a client; or a
``Federation`` (``data.holdings`` has the list). A matrix alone is one client that holds everything, and cannot be
hidden as a client. ``labels_`` and ``inertia_`` are about the points that ``fit`` was given; they are computed where it
runs and are no part of what is released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from coterie.data.federation import Federation
from coterie.data.holdings import UserData
from coterie.data.units import Box, Scale
from coterie.defences.noisy_sums.plan import STEPS
from coterie.errors import InvalidInput, require
from coterie.estimators.clustering import Clustering, run_clustering
from coterie.estimators.private import Private, fingerprint
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Trust
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings import feddp_kmeans, federated_lloyd, kfed
from coterie.protocols.clusterings.nearest_centres import RandomState, random_root
from coterie.protocols.clusterings.provenance import Given
from coterie.rng import Rng
from coterie.wire.tape import Tape

NO_NOISE = "k-FED adds no noise: its server is sent the means of each client's own clusters"


class KFed(Clustering):
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


class FederatedLloyd(Private):
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
        if getattr(inner, "_claimed", "") != fingerprint(inner.cluster_centers_):
            return Given(name, points, f"{name} has other centres by now than those that its guarantee is about")
        return Given(name, points, spent=spent)


UNTIL_STILL = 20  # steps without noise, if no number is given


class FedDPKMeans(Private):
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
