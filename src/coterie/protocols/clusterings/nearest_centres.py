"""What scikit-learn expects of a clustering by centres: how its input is read, and what is made of the centres."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from coterie.data.federation import Federation
from coterie.data.holdings import Holdings, UserData, holdings, is_frame
from coterie.data.units import Box, Scale, Units
from coterie.errors import InvalidInput, require
from coterie.learn.clusters import lloyd
from coterie.protocols.clusterings.base import WEIGHT
from coterie.rng import Rng

RandomState = int | np.random.RandomState | np.random.Generator | None


def random_root(random_state: RandomState) -> Rng:
    """None: the operating system's secrets. Everything else can be repeated by whoever has it."""
    match random_state:
        case None:
            return Rng.from_entropy()
        case np.random.RandomState():
            return Rng.seeded(int.from_bytes(random_state.bytes(16), "little"))
        case np.random.Generator():
            return Rng.seeded(int.from_bytes(random_state.bytes(16), "little"))
        case int() | np.integer():
            return Rng.seeded(int(random_state))
    raise InvalidInput(f"random_state={random_state!r} must be None, a whole number, a RandomState or a Generator")


def _weights(sample_weight: ArrayLike, x: NDArray[np.number]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    return found


class NearestCentreEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that has centres once it is fitted; scikit-learn is untyped.

    ``scale`` (features,) divides each column before distances are taken, and "box" divides by the box's width. ``box``
    (low, high), numbers or (features,), holds the centres. Neither is charged for, so numbers a column are wrapped as
    ``Public``, or there is no guarantee. Distances, ``transform``, ``inertia_`` and ``score`` are in scaled units;
    ``cluster_centers_`` is in those of X.
    """

    n_clusters: int
    random_state: RandomState
    scale: Scale
    box: Box | None
    cluster_centers_: NDArray[np.float32]
    n_features_in_: int
    _grouped_by: tuple[Hashable, ...]
    _units: Units

    # -- what fit is given ---------------------------------------------------------------------------------------

    def _federated(self, X: UserData, groups: UserData, sample_weight: ArrayLike | None) -> Federation:
        """Checks all that is given, keeps what predict must know, and scales."""
        if isinstance(X, Federation):
            plain = groups is None and sample_weight is None and self.scale is None
            require(plain, "groups, sample_weight or scale", "given", "must be None beside a Federation")
            self.n_features_in_ = X.examples.x[0].numel()
            self._grouped_by = ()
            self._units = Units.of(None, self.box, self.n_features_in_)
            return self._with_enough(X)
        held = holdings(X, groups)
        self._grouped_by = held.grouped_by
        x = validate_data(self, held.table, dtype=[np.float64, np.float32])
        self._units = Units.of(self.scale, self.box, self.n_features_in_)
        self._require_private(held, sample_weight)
        weights = None if sample_weight is None else _weights(sample_weight, x)
        return self._with_enough(held.federation(self._units.scaled(x), weights, WEIGHT))

    def _require_private(self, held: Holdings, sample_weight: ArrayLike | None) -> None:
        """What a private level asks for besides."""

    def _with_enough(self, federation: Federation) -> Federation:
        most, why = self._most_clusters(federation)
        whole = isinstance(self.n_clusters, int | np.integer) and 1 <= self.n_clusters <= most
        require(whole, "n_clusters", self.n_clusters, f"must lie in 1..{most}{why}")
        return federation

    def _most_clusters(self, federation: Federation) -> tuple[int, str]:
        """So many can be asked for, and why no more."""
        points = int(federation.train.sizes.sum())
        return points, f", the points there are (n_samples={points})"

    # -- what is made of the centres ----------------------------------------------------------------------------

    @property
    def _scaled_centres(self) -> Tensor:
        return self._units.scaled(self.cluster_centers_)

    def _points(self, X: UserData) -> Tensor:
        """Rows to be told apart, in any form that ``fit`` takes, scaled."""
        check_is_fitted(self)
        if isinstance(X, Federation):
            return X.examples.x.flatten(1)
        table = holdings(X).table
        if is_frame(table):  # who holds a row is no feature here either
            table = table.drop(columns=[name for name in self._grouped_by if name in table.columns])
        return self._units.scaled(validate_data(self, table, reset=False, dtype=[np.float64, np.float32]))

    def predict(self, X: UserData) -> NDArray[np.int64]:
        """The nearest centre of each row."""
        found: NDArray[np.int64] = lloyd.nearest(self._points(X), self._scaled_centres).numpy()
        return found

    def transform(self, X: UserData) -> NDArray[np.float64]:
        """The distance of each row to each centre, (rows, n_clusters)."""
        found: NDArray[np.float64] = torch.cdist(
            self._points(X).double(), self._scaled_centres.double(), compute_mode="donot_use_mm_for_euclid_dist"
        ).numpy()
        return found

    def fit_transform(self, X: UserData, y: None = None, **fit_params: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.fit(X, **fit_params).transform(X)
        return found

    def score(self, X: UserData, y: None = None, sample_weight: ArrayLike | None = None) -> float:
        """Minus the sum of squared distances to the nearest centres: the larger, the better."""
        x = self._points(X)
        distances = lloyd.squared_distances(x, self._scaled_centres, lloyd.nearest(x, self._scaled_centres)).double()
        weights = 1.0 if sample_weight is None else torch.from_numpy(_weights(sample_weight, x.numpy()))
        return -float((distances * weights).sum())
