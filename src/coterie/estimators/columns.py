"""Parties that hold columns of the same records: vertical k-means behind scikit-learn's door."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from coterie.data.alignment import Aligned, Ids, Orders, aligned
from coterie.data.federation import VerticalFederation
from coterie.data.holdings import UserData
from coterie.data.units import Box, Scale, Units, of_unknown_origin
from coterie.errors import InvalidInput, nearest, require
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters import lloyd
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.protocols.clusterings import vertical_kmeans
from coterie.protocols.clusterings.nearest_centres import NearestCentreEstimator, RandomState, random_root
from coterie.protocols.clusterings.provenance import composed
from coterie.protocols.clusterings.vertical_kmeans import CENTRES, LABELS, Fusion, Start
from coterie.rng import Secrets
from coterie.seal.intersection import intersection
from coterie.wire.codec import Memory
from coterie.wire.tape import Tape

Kind = TypeVar("Kind", Fusion, Start)
IN_THE_OPEN = "the server is sent every party's distances as they are; a defence adds noise or hides them"


class VerticalKMeans(NearestCentreEstimator):
    """k-means of records whose columns several parties hold.

    ``fit`` takes one table a party, or a matrix and ``columns``, which says whose each column is; or a
    ``VerticalFederation`` (``data.alignment`` has the list). ``ids`` joins tables whose rows are in different order;
    with ``private_ids`` by a private set intersection, in which nobody sees identifiers that not all have (0.1 ms for
    each identifier of each party, times the parties). ``defence`` stands between the parties and the server:
    ``RandomisedResponse``, ``PerturbOnce``, ``SecureSums``.

    ``labels_`` are of the records that all parties have, which ``record_ids_`` names. ``cluster_centers_`` joins what
    each party keeps to itself, and no party or server of a real federation would have it. ``predict`` and ``score``
    take joined rows, and go by Euclidean distances whatever ``fusion`` is. ``privacy_spent_`` is of one ``fit``: each
    tells everything anew, under fresh noise unless ``random_state`` is given, and what several cost adds up.
    ``inertia_`` is of the records themselves, computed where ``fit`` runs, and no part of what is released.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        max_iter: int = 100,
        init: str = "k-means++",
        fusion: str = "squares",
        defence: Defence | None = None,
        scale: Scale = None,
        box: Box | None = None,
        private_ids: bool = False,
        random_state: RandomState = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.init = init
        self.fusion = fusion
        self.defence = defence
        self.scale = scale
        self.box = box
        self.private_ids = private_ids
        self.random_state = random_state

    def fit(
        self, X: UserData, y: None = None, *, columns: UserData = None, ids: UserData = None, tape: Tape | None = None
    ) -> Self:
        federation, rng = self._split(X, columns, ids), random_root(self.random_state)
        protocol = vertical_kmeans.VerticalKMeans(
            self.n_clusters, self.max_iter, _named(self.fusion, Fusion, "fusion"), _named(self.init, Start, "init")
        )
        roots = Roots.same(rng) if self.random_state is not None else Roots(rng, Secrets.from_entropy())
        defence = self.defence or Defence()
        ring = Ring(protocol, federation, None, defence, roots, tape, processes=0)
        state = ring.run()
        self._keep(ring.memory, federation, ring.models(state)[LABELS][0].long())
        self.n_iter_ = max(1, state.round - protocol.seedings)
        said = defence.guarantee(protocol.facts(federation))
        alone = said or Guarantee.none(IN_THE_OPEN, Level.RECORD, Trust.TRUSTED_AGGREGATOR)
        unknown = of_unknown_origin(self.scale, self.box)
        self.privacy_spent_ = composed(alone, [], self.random_state is not None, unknown)
        return self

    def _keep(self, memory: Mapping[int, Memory], federation: VerticalFederation, labels: Tensor) -> None:
        centres = torch.empty(self.n_clusters, self.n_features_in_)
        for party, own in enumerate(federation.columns):
            centres[:, own] = memory[party][CENTRES]
        x = federation.examples.x.flatten(1)
        self.cluster_centers_ = self._units.own(centres.numpy())
        self._n_features_out = len(self.cluster_centers_)
        self.labels_ = labels.numpy()
        self.inertia_ = float(lloyd.squared_distances(x, centres, labels).double().sum())

    def _split(self, X: UserData, columns: UserData, ids: UserData) -> VerticalFederation:
        """Checks all that is given, keeps what predict must know, and scales."""
        self._grouped_by: tuple[Hashable, ...] = ()
        if isinstance(X, VerticalFederation):
            plain = columns is None and ids is None and self.scale is None
            require(plain, "columns, ids or scale", "given", "must be None beside a VerticalFederation")
            self.n_features_in_ = X.examples.x[0].numel()
            covered, all_of_them = sum(len(own) for own in X.columns), self.n_features_in_
            require(covered == all_of_them, "columns of all parties", covered, f"must be all {all_of_them}")
            self._units = Units.of(None, self.box, self.n_features_in_)
            federation, names = X, np.arange(len(X.examples))
        else:
            given: Aligned = aligned(X, columns, ids, in_private if self.private_ids else None)
            x = validate_data(self, given.table, dtype=[np.float64, np.float32])
            self._units = Units.of(self.scale, self.box, self.n_features_in_)
            federation = given.federation(self._units.scaled(x))
            names = np.arange(len(x)) if given.ids is None else given.ids
        records = len(federation.examples)
        whole = isinstance(self.n_clusters, int | np.integer) and 1 <= self.n_clusters <= records
        remedy = f"must lie in 1..{records}, the records there are (n_samples={records})"
        require(whole, "n_clusters", self.n_clusters, remedy)
        self.record_ids_: NDArray[np.generic] = names
        return federation


def in_private(identifiers: Sequence[Ids]) -> Orders:
    """Private set intersection (``seal.intersection``). Whole numbers are the same written as 7 and as 7.0."""
    found = intersection([[_written(one) for one in own.tolist()] for own in identifiers])
    return [np.array(own, dtype=np.int64) for own in found]


def _written(identifier: Hashable) -> bytes:
    whole = isinstance(identifier, float) and identifier.is_integer()
    kind = "number" if isinstance(identifier, int | float) else "name"
    return f"{kind} {int(identifier) if whole else identifier}".encode()  # type: ignore[call-overload]


def _named(name: str, kinds: type[Kind], what: str) -> Kind:
    known = {kind.value: kind for kind in kinds}
    if name not in known:
        raise InvalidInput(f"{what}={name!r} {nearest(name, known)}")
    return known[name]
