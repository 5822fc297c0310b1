"""What users have: tables with names and groups, public units, weights, and data that nobody would wish for."""

from __future__ import annotations

import math
import pickle
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards
from coterie.data.provenance import Public
from coterie.errors import InvalidInput, NoiseDrowned
from coterie.estimators import FedDPKMeans, FederatedLloyd, KFed
from coterie.learn.clusters import lloyd
from coterie.protocols.clusterings.base import WEIGHT

Array = NDArray[np.floating]
CORNERS = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
NAMES = ["age", "hours", "pay"]


def points(count: int, seed: int = 0) -> Array:
    draws = np.random.default_rng(seed)
    return CORNERS[draws.integers(4, size=count)] + 0.5 * draws.standard_normal((count, 3))


def worst(centres: Array) -> float:
    return float(np.linalg.norm(CORNERS[:, None] - centres[None], axis=2).min(1).max())


def frame(count: int, clients: int, seed: int = 0) -> pd.DataFrame:
    found = pd.DataFrame(points(count, seed), columns=NAMES)
    return found.assign(clinic=[f"clinic {i % clients}" for i in range(count)])


ESTIMATORS = [KFed(4, random_state=0), FederatedLloyd(4, random_state=0), FedDPKMeans(4, epsilon=3.0, random_state=0)]
every = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)


@every
def test_a_frame_and_its_groups(estimator: Any) -> None:
    table = frame(4000, 40)
    named = clone(estimator).fit(table, groups="clinic")
    assert named.feature_names_in_.tolist() == NAMES
    assert named.n_features_in_ == 3
    by_series = clone(estimator).fit(table[NAMES], groups=table["clinic"])
    grouped = clone(estimator).fit(table.groupby("clinic", sort=False))
    for same in (by_series, grouped):
        np.testing.assert_array_equal(same.cluster_centers_, named.cluster_centers_)
    assert worst(named.cluster_centers_) < 0.5
    np.testing.assert_array_equal(named.predict(table[NAMES]), named.labels_)
    np.testing.assert_array_equal(named.predict(table), named.labels_)  # who holds a row is no feature here either
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        named.predict(table[NAMES[::-1]])
    with pytest.raises(ValueError, match="Feature names"):
        named.transform(table.rename(columns={"pay": "wage"}))
    with pytest.raises(ValueError, match=r"Feature names seen at fit time, yet now missing"):
        named.score(table[NAMES[:2]])
    prefix = type(named).__name__.lower()
    assert named.get_feature_names_out().tolist() == [f"{prefix}{i}" for i in range(4)]
    assert named.set_output(transform="pandas").transform(table).shape == (4000, 4)


def test_groups_are_what_is_hidden_at_client_level() -> None:
    x = points(6000)
    with pytest.raises(InvalidInput, match=r"groups=None leaves one client who holds everything"):
        FedDPKMeans(4, level="client").fit(x)
    each = FedDPKMeans(4, epsilon=3.0, level="client", random_state=0).fit(x, groups=range(6000))
    assert worst(each.cluster_centers_) < 0.5
    assert each.privacy_spent_.proven


def test_a_table_alone_is_clustered_as_one() -> None:
    """With one client, k-FED is k-means, and record level does not depend on who holds what."""
    x = points(4000)
    best = KMeans(4, n_init=3, random_state=0).fit(x)
    assert KFed(4, random_state=0).fit(x).inertia_ == pytest.approx(best.inertia_, rel=1e-3)
    assert FederatedLloyd(4, random_state=0).fit(x).inertia_ == pytest.approx(best.inertia_, rel=1e-4)
    one = FedDPKMeans(4, epsilon=1.0, random_state=0).fit(x)
    many = FedDPKMeans(4, epsilon=1.0, random_state=0).fit(np.array_split(x, 40))
    np.testing.assert_allclose(one.cluster_centers_, many.cluster_centers_, atol=1e-3)
    assert one.inertia_ < 1.05 * best.inertia_


def test_public_scales_and_boxes() -> None:
    """Pay in thousandths: unscaled, it decides alone. The centres are in the units of X, and in the box."""
    x = points(6000) * np.array([1.0, 1.0, 1000.0])
    scaled = FedDPKMeans(4, epsilon=1.0, scale=Public([1, 1, 1000]), random_state=0).fit(x)
    assert scaled.privacy_spent_.proven
    guessed = FedDPKMeans(4, epsilon=1.0, scale=x.std(0), random_state=0).fit(x)  # read off the data, unpaid
    assert (
        guessed.privacy_spent_.why_not
        == "scale may depend on the data; if it does not, say so with coterie.Public(scale)"
    )
    assert worst(scaled.cluster_centers_ / np.array([1.0, 1.0, 1000.0])) < 0.3
    np.testing.assert_array_equal(scaled.predict(x), scaled.labels_)
    assert scaled.inertia_ == pytest.approx(-scaled.score(x), rel=1e-4)
    assert scaled.inertia_ < 6000 * 3 * 0.3
    low, high = [-1.0, -1.0, -1000.0], [10.0, 10.0, 10_000.0]
    boxed = FedDPKMeans(4, epsilon=1.0, scale="box", box=Public((low, high)), random_state=0).fit(x)
    assert boxed.privacy_spent_.proven
    unsaid = FedDPKMeans(4, epsilon=1.0, box=(x.min(0), x.max(0)), random_state=0).fit(x)
    assert "coterie.Public(box)" in unsaid.privacy_spent_.why_not
    assert worst(boxed.cluster_centers_ / np.array([1.0, 1.0, 1000.0])) < 0.3
    with pytest.warns(NoiseDrowned):
        tight = FedDPKMeans(4, epsilon=0.05, box=(0.0, 8.0), random_state=0).fit(points(3000))
    assert tight.privacy_spent_.proven  # two numbers are a setting
    assert tight.cluster_centers_.min() >= 0
    assert tight.cluster_centers_.max() <= 8
    loose = FederatedLloyd(4, box=(0.0, 8.0), init=CORNERS).fit(points(400))
    assert loose.cluster_centers_.max() == 8


@pytest.mark.parametrize("level", ["record", "client"])
@pytest.mark.parametrize("trust", ["trusted_aggregator", "distributed_noise", "local_noise"])
def test_a_private_fit_does_not_stop_for_too_few_records(level: str, trust: str) -> None:
    """A fit of four clusters that went through with four records, and not with three, would tell of the fourth."""
    some = Public(points(30))
    for count in (3, 1):
        with pytest.warns(NoiseDrowned):
            fit = FedDPKMeans(4, epsilon=1.0, level=level, trust=trust, random_state=0).fit(
                points(count), groups=range(count), server_data=some
            )
        assert fit.cluster_centers_.shape == (4, 3)
    with pytest.raises(InvalidInput, match=r"n_clusters=4 must lie in 1..3, the points there are"):
        FedDPKMeans(4, epsilon=math.inf).fit(points(3), server_data=some)  # nothing is claimed here


def test_weights() -> None:
    """Whoever weighs 0 is not there; at record level nobody weighs more than 1."""
    x = np.concatenate([points(6000), points(6000, 1) + 50])
    weights = np.repeat([1.0, 0.0], 6000)
    for estimator in (KFed(4, random_state=0), FedDPKMeans(4, epsilon=3.0, random_state=0)):
        found = estimator.fit(x, sample_weight=weights, groups=np.arange(12_000) % 30)
        assert worst(found.cluster_centers_) < 0.5
        assert found.inertia_ == pytest.approx(-found.score(x, sample_weight=weights), rel=1e-4)
    with pytest.raises(InvalidInput, match=r"largest sample_weight='above 1' must be at most 1: noise hides a record"):
        FedDPKMeans(4).fit(x, sample_weight=2 * weights)
    with pytest.raises(ValueError, match="at least one non-zero"):
        KFed(4).fit(x, sample_weight=0 * weights)
    by_client = FedDPKMeans(4, epsilon=3.0, level="client", random_state=0)
    assert by_client.fit(x, sample_weight=9 * weights, groups=np.arange(12_000) % 2000).privacy_spent_.proven


# -- data that nobody would wish for ---------------------------------------------------------------------------------

SERVER = Public(points(40, 7))


@pytest.mark.parametrize("level", ["record", "client"])
@pytest.mark.parametrize("server", [None, SERVER], ids=["no server data", "server data"])
def test_one_record_of_ten_to_the_sixteenth(level: str, server: Public | None) -> None:
    x = points(20_000)
    x[77] = 1e16
    found = FedDPKMeans(4, epsilon=5.0, level=level, random_state=0)
    found.fit(x, groups=np.arange(20_000) % 2000, server_data=server)
    assert worst(found.cluster_centers_) < 0.5
    assert np.isfinite(found.inertia_)


@every
def test_nobody_else_stops_for_it(estimator: Any) -> None:
    x = points(2000)
    x[5] = -1e16
    found = clone(estimator).fit(x, groups=np.arange(2000) % 20)
    assert np.isfinite(found.cluster_centers_).all()
    assert np.isfinite(found.transform(x)).all()


@pytest.mark.parametrize(("weight", "record"), [(1e25, 1e15), (1e39, 0.0), (1e300, -1e16), (1e-300, 1.0)])
def test_no_weight_of_a_client_stops_the_others(weight: float, record: float) -> None:
    """At client level any weight may be given; sums of products with it overflowed, and the error told of it."""
    x, weights = points(2000), np.ones(2000)
    x[0], weights[0] = record, weight
    for server in (None, SERVER):
        estimator = FedDPKMeans(4, epsilon=10.0, level="client", random_state=0)
        found = estimator.fit(x, groups=np.arange(2000) % 200, sample_weight=weights, server_data=server)
        assert np.isfinite(found.cluster_centers_).all()
        assert worst(found.cluster_centers_) < 1.0
    with pytest.raises(ValueError, match="sample_weight contains NaN"):
        estimator.fit(x, groups=np.arange(2000) % 200, sample_weight=weights * np.nan)


def tagged(x: Array, weights: Tensor | None) -> Federation:
    offsets, kept = torch.arange(0, len(x) + 1, 10), torch.from_numpy(x).float()
    tags = {} if weights is None else {WEIGHT: weights}
    examples = Examples(kept, torch.zeros(len(x), dtype=torch.int64), 1, "points", tags)
    nothing = Shards(torch.empty(0, dtype=torch.int64), torch.zeros_like(offsets))
    return Federation(examples, Shards(torch.arange(len(x)), offsets), nothing, torch.full((len(offsets) - 1,), -1))


@pytest.mark.parametrize("level", ["record", "client"])
@pytest.mark.parametrize(
    ("bad", "counts"), [(math.nan, 0.0), (-math.inf, 0.0), (-3.0, 0.0), (math.inf, 1e15), (1e300, 1e15)]
)
def test_weights_of_a_federation_follow_a_rule(level: str, bad: float, counts: float) -> None:
    found = []
    for weight in (bad, counts):
        weights = torch.ones(2000, dtype=torch.float64)
        weights[0] = weight
        estimator = FedDPKMeans(4, epsilon=10.0, level=level, random_state=0)
        found.append(estimator.fit(tagged(points(2000), weights), server_data=SERVER))
    np.testing.assert_array_equal(found[0].cluster_centers_, found[1].cluster_centers_)
    assert found[0].inertia_ == found[1].inertia_ < math.inf


@pytest.mark.parametrize("level", ["record", "client"])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1)])
def test_records_of_a_federation_whose_sums_overflow_stop_nobody(level: str, signs: tuple[int, int]) -> None:
    x = points(2000)
    x[:2] = 3.4e38 * np.array(signs)[:, None]
    for server in (None, SERVER):
        found = FedDPKMeans(4, epsilon=10.0, level=level, random_state=0).fit(tagged(x, None), server_data=server)
        assert worst(found.cluster_centers_) < 1.0


@pytest.mark.parametrize("server", [None, SERVER], ids=["no server data", "server data"])
def test_one_client_with_nearly_all_records_is_one_client(server: Public | None) -> None:
    """At client level it has the voice of one, so that its records, which lie elsewhere, do not decide."""
    groups = np.concatenate([np.arange(20_000) % 1999, np.full(300_000, 1999)])
    x = np.concatenate([points(20_000), 30 + points(300_000, 1)])
    found = FedDPKMeans(4, epsilon=5.0, level="client", random_state=0).fit(x, groups=groups, server_data=server)
    assert worst(found.cluster_centers_) < 0.7
    assert found.privacy_spent_.proven


@every
def test_empty_clients_and_duplicates(estimator: Any) -> None:
    nothing, twin = np.zeros((0, 3)), points(300, 3)
    parts = [nothing, *[points(200, seed) for seed in range(10)], nothing, *[twin] * 10, points(1, 9)]
    found = clone(estimator).fit(parts)
    assert len(found.labels_) == 5001
    assert worst(found.cluster_centers_) < 0.7
    same = clone(estimator).fit([np.ones((200, 3))] * 20)
    np.testing.assert_allclose(same.cluster_centers_, 1.0, atol=1.0)


def test_a_claim_is_about_the_centres_of_its_own_fit() -> None:
    """Neither centres that were put in their place, nor those of a fit that failed, are certified by an older claim."""
    parts, server = [points(200, seed) for seed in range(20)], Public(points(40, 20))
    start = FedDPKMeans(4, epsilon=1.0, lloyd_steps=0).fit(parts, server_data=server)
    kept = pickle.loads(pickle.dumps(start))
    assert FederatedLloyd(4, epsilon=1.0, init=kept, max_iter=1).fit(parts).privacy_spent_.proven
    kept.cluster_centers_ = parts[0][:4].copy()
    found = FederatedLloyd(4, epsilon=1.0, init=kept, max_iter=1).fit(parts).privacy_spent_
    assert not found.proven
    assert "other centres by now" in found.why_not
    with (
        pytest.raises(KeyboardInterrupt),
        patch.object(lloyd, "squared_distances", side_effect=KeyboardInterrupt),  # once the new centres are there
    ):
        start.set_params(epsilon=math.inf).fit(parts, server_data=server)
    assert not hasattr(start, "privacy_spent_")
