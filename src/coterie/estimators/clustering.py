"""A clustering protocol run on this machine, and the estimators that do so."""

from __future__ import annotations

import numpy as np

from coterie.data.federation import Federation
from coterie.data.holdings import UserData, as_floats, holdings
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters import lloyd
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings.base import WEIGHT, Clusterer, Clusters, weights_of
from coterie.protocols.clusterings.nearest_centres import NearestCentreEstimator
from coterie.rng import Rng, Secrets
from coterie.wire.tape import Tape


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


class Clustering(NearestCentreEstimator):
    """What the estimators for clients with rows have in common: they run the ring."""

    def _fit(
        self,
        federation: Federation,
        protocol: Clusterer,
        rng: Rng,
        defence: Defence | None,
        tape: Tape | None,
        ledger: Ledger | None = None,
    ) -> Clusters:
        for name in ("cluster_centers_", "privacy_spent_"):  # a fit that fails leaves no centres beside an older claim
            self.__dict__.pop(name, None)
        secrets = Secrets.from_entropy() if self.random_state is None else None
        state = run_clustering(protocol, federation, rng, defence, tape, secrets, ledger)
        x, units = federation.examples.x.flatten(1), self._units
        self.cluster_centers_ = units.own(state.known["centres"][0].numpy())
        self._n_features_out = len(self.cluster_centers_)
        labels = lloyd.nearest(x, self._scaled_centres)
        distances = lloyd.squared_distances(x, self._scaled_centres, labels).double()
        self.labels_ = labels.numpy()
        weights = weights_of(federation.examples)
        self.inertia_ = float((distances if weights is None else distances * weights).sum())
        moves = {name.split("/")[0] for name in state.released if name.startswith(("centres", "lloyd"))}
        self.n_iter_ = max(1, len(moves))
        return state
