"""VerticalKMeans: scikit-learn's conventions, its own inputs, and what it says of privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from coterie.data.partition.features import Vertical
from coterie.data.provenance import Public
from coterie.defences.randomised_response.defence import PerturbOnce
from coterie.defences.randomised_response.mechanisms import piecewise
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.estimators import VerticalKMeans
from coterie.privacy.guarantee import SIMULATION, Guarantee
from coterie.rng import Rng


@parametrize_with_checks([VerticalKMeans()])  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_best_of_ten_starts_is_scikit_learns() -> None:
    x, _ = load_iris(return_X_y=True)
    owners = [0, 0, 1, 1]
    found = min(
        (VerticalKMeans(3, random_state=seed).fit(x, columns=owners) for seed in range(10)),
        key=lambda one: one.inertia_,
    )
    theirs = KMeans(3, n_init=10, random_state=0).fit(x)
    assert found.inertia_ == pytest.approx(theirs.inertia_, rel=1e-3)
    assert adjusted_rand_score(found.labels_, theirs.labels_) > 0.98
    np.testing.assert_array_equal(found.predict(x), found.labels_)


def test_tables_of_two_parties_joined_by_identifiers() -> None:
    x, _ = load_iris(return_X_y=True)
    left = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(key=np.arange(150))
    right = pd.DataFrame(x[:, 2:], columns=["c", "d"]).assign(key=np.arange(150)).sample(120, random_state=0)
    found = VerticalKMeans(3, random_state=0).fit({"left": left, "right": right}, ids="key")
    assert found.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert sorted(found.record_ids_) == sorted(right["key"])
    again = VerticalKMeans(3, random_state=0).fit(x[found.record_ids_], columns=[0, 0, 1, 1])
    np.testing.assert_array_equal(found.labels_, again.labels_)


def test_a_federation_and_a_defence() -> None:
    from coterie.data.sources.embedded import Digits

    examples = Digits().load()
    plain = Vertical(4).split(examples, Rng.seeded(0))
    open_, masked = (
        VerticalKMeans(10, max_iter=3, defence=one, random_state=0).fit(plain) for one in (None, SecureSums())
    )
    np.testing.assert_array_equal(open_.labels_, masked.labels_)
    assert "sent every party's distances as they are" in str(open_.privacy_spent_)
    assert not masked.privacy_spent_.proven


def test_what_undoes_a_guarantee_is_said_of_columns_too() -> None:
    """A seed gives the noise away, and scales that were read off the data are no part of what noise hides."""
    x = np.random.default_rng(0).random((60, 4))
    told = PerturbOnce(piecewise(4.0))

    def spent(**settings: Any) -> Guarantee:
        fitted = VerticalKMeans(3, max_iter=2, defence=told, **settings).fit(x, columns=[0, 0, 1, 1])
        found: Guarantee = fitted.privacy_spent_
        return found

    secret, seeded = spent(), spent(random_state=0)
    assert secret.proven
    assert not secret.simulated
    assert seeded.simulated
    assert SIMULATION in str(seeded)
    assert "coterie.Public(scale)" in spent(scale=x.max(0)).why_not
    assert spent(scale=Public(np.full(4, 2.0))).proven


def test_scaled_columns() -> None:
    x, _ = load_iris(return_X_y=True)
    scale = x.std(0)
    ours = VerticalKMeans(3, scale=scale, random_state=0).fit(x, columns=[0, 1, 1, 0])
    by_hand = VerticalKMeans(3, random_state=0).fit(x / scale, columns=[0, 1, 1, 0])
    np.testing.assert_array_equal(ours.labels_, by_hand.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, by_hand.cluster_centers_ * scale, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_clusters": 0}, "n_clusters=0 must lie in 1..150"),
        ({"n_clusters": 151}, "n_clusters=151 must lie in 1..150"),
        ({"init": "kmeans++"}, "init='kmeans\\+\\+' is unknown; did you mean 'k-means\\+\\+'"),
        ({"fusion": "cubes"}, "fusion='cubes' is unknown"),
        ({"max_iter": 0}, "steps=0 must be at least 1"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], message: str) -> None:
    x, _ = load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match=message):
        clone(VerticalKMeans(3)).set_params(**change).fit(x, columns=[0, 0, 1, 1])
