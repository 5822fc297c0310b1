"""The estimators: scikit-learn's conventions, oracles, and inputs as users have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError

from coterie.errors import InvalidInput
from coterie.estimators import TRUSTS, FedDPKMeans, FederatedLloyd, KFed, federate
from coterie.privacy.guarantee import Level, Trust
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

Array = NDArray[np.float64]
CORNERS = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])


def mixture(sizes: list[int], seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> tuple[list[Array], Array]:
    """Four blobs at the corners, dealt to clients of these sizes, and a few public points of each."""
    draws = np.random.default_rng(seed)

    def points(count: int) -> Array:
        return scale * (CORNERS[draws.integers(4, size=count)] + 0.5 * draws.standard_normal((count, 3))) + shift

    return [points(size) for size in sizes], points(40)


def worst(estimator: Any, scale: float = 1.0, shift: float = 0.0) -> float:
    """How far the farthest true centre is from the nearest found one, in the mixture's own measure."""
    gaps = np.linalg.norm((CORNERS * scale + shift)[:, None] - estimator.cluster_centers_[None], axis=2)
    return float(gaps.min(1).max()) / scale


ESTIMATORS = [KFed(4), FederatedLloyd(4), FederatedLloyd(4, epsilon=3.0, max_iter=2), FedDPKMeans(4, epsilon=3.0)]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_conventions(estimator: Any) -> None:
    parts, server = mixture([200] * 10)
    fresh = clone(estimator).set_params(random_state=3)
    assert fresh.get_params() == {**estimator.get_params(), "random_state": 3}
    with pytest.raises(NotFittedError):
        fresh.predict(parts[0])
    arguments = {} if isinstance(fresh, KFed) else {"server_data": server}
    assert fresh.fit(parts, **arguments) is fresh
    everything = np.concatenate(parts)
    assert fresh.cluster_centers_.shape == (4, 3)
    assert fresh.n_features_in_ == 3
    np.testing.assert_array_equal(fresh.predict(everything), fresh.labels_)
    distances = ((everything - fresh.cluster_centers_[fresh.labels_]) ** 2).sum()
    assert fresh.inertia_ == pytest.approx(distances, rel=1e-4)
    assert worst(fresh) < 0.5
    again = clone(fresh).fit(parts, **arguments)
    np.testing.assert_array_equal(again.cluster_centers_, fresh.cluster_centers_)
    assert "random_state=3" in repr(fresh)


def test_noise_comes_from_the_operating_system_by_default() -> None:
    parts, server = mixture([100] * 10)
    found = [FedDPKMeans(4, epsilon=3.0).fit(parts, server_data=server).cluster_centers_ for _ in range(2)]
    assert not np.array_equal(found[0], found[1])


def test_federated_lloyd_is_lloyd() -> None:
    """scikit-learn's KMeans on all points together, from the same start."""
    parts, _ = mixture([50, 3, 120, 1, 80])
    everything = np.concatenate(parts)
    init = everything[:4]
    ours = FederatedLloyd(4, init=init, max_iter=50).fit(parts)
    theirs = KMeans(4, init=init, n_init=1, max_iter=50, tol=0, algorithm="lloyd").fit(everything)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-4)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-5)
    assert ours.n_iter_ <= theirs.n_iter_ + 1


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("level", ["record", "client"])
def test_privacy_spent(trust: Trust, level: str) -> None:
    parts, server = mixture([20] * 400)
    found = FedDPKMeans(4, epsilon=3.0, delta=1e-5, level=level, trust=trust, bound=3.0, random_state=0)
    found.fit(parts, server_data=server)
    spent = found.privacy_spent_
    assert spent.proven
    assert 2.99 < spent.epsilon <= 3.0
    assert (spent.delta, spent.level, spent.trust) == (1e-5, Level(level), trust)
    assert trust.value in str(spent)
    if trust is not Trust.LOCAL_NOISE:  # there, 400 times the variance drowns so few points
        assert worst(found) < 1.5


def test_infinite_epsilon_promises_nothing() -> None:
    parts, server = mixture([50] * 10)
    found = FedDPKMeans(4, epsilon=math.inf, random_state=0).fit(parts, server_data=server)
    assert not found.privacy_spent_.proven
    assert worst(found) < 0.2


def test_a_bound_that_is_estimated_is_charged_for() -> None:
    parts, server = mixture([50] * 100)
    tapes = {}
    for bound in (None, 2.0):
        tapes[bound] = Tape([ThreatModel("server", server=True)])
        found = FedDPKMeans(4, epsilon=1.0, bound=bound, random_state=0).fit(
            parts, server_data=server, tape=tapes[bound]
        )
        assert found.privacy_spent_.epsilon == pytest.approx(1.0)
    views = {bound: tape.view(tape.threats[0]) for bound, tape in tapes.items()}
    assert views[None].rounds("bound") == [2]
    assert views[2.0].rounds("bound") == []
    estimated = float(views[None].received(3, "centres").values["bound"][0])
    assert 0.5 < estimated < 4.0  # norms about the centres are 0.5 * sqrt(3) on average


@pytest.mark.parametrize(("scale", "shift"), [(1e-4, 0.0), (1e5, 0.0), (1.0, 1e4), (100.0, -1e5)])
@pytest.mark.parametrize("level", ["record", "client"])
def test_raw_numbers_need_no_scaling(scale: float, shift: float, level: str) -> None:
    parts, server = mixture([25] * 400, scale=scale, shift=shift)
    found = FedDPKMeans(4, epsilon=3.0, level=level, random_state=1).fit(parts, server_data=server)
    assert worst(found, scale, shift) < 1.0


def test_unbalanced_and_empty_clients() -> None:
    parts, server = mixture([5000, 1, 0, 300, 2, 1, 40])
    for estimator in (FedDPKMeans(4, epsilon=2.0, random_state=0), FederatedLloyd(4, random_state=0)):
        assert worst(estimator.fit(parts, server_data=server)) < 1.0
    parts = [part for part in parts if len(part)]
    assert len(KFed(4, random_state=0).fit(parts).labels_) == 5344


def test_client_level_on_unequal_sparse_columns() -> None:
    """One-hot columns and clients of 1 to 60 records, as in census data, where a bound set by hand fails."""
    draws = np.random.default_rng(0)
    codes = draws.integers(6, size=(12_000, 3))
    rows = np.concatenate([np.eye(6)[codes[:, column]] for column in range(3)], 1)
    cuts = np.sort(draws.choice(np.arange(1, 12_000), 599, replace=False))
    parts = np.split(rows, cuts)
    found = FedDPKMeans(6, epsilon=3.0, level="client", random_state=0).fit(parts, server_data=rows[:60])
    best = KMeans(6, n_init=3, random_state=0).fit(rows)
    assert found.inertia_ < 1.25 * best.inertia_
    assert found.privacy_spent_.level is Level.CLIENT


def wide(count: int, corners: Array, draws: np.random.Generator) -> Array:
    return corners[draws.integers(len(corners), size=count)] + 0.5 * draws.standard_normal((count, corners.shape[1]))


@pytest.mark.parametrize("seed", range(4))
def test_where_noise_drowns_everything_the_servers_own_points_are_left(seed: int) -> None:
    """60 clients and 40 features: at epsilon 0.05 nothing can be learnt from them, at 10 the result is better."""
    draws = np.random.default_rng(seed)
    corners = draws.uniform(-1, 1, (4, 40))
    parts, server = [wide(20, corners, draws) for _ in range(60)], wide(200, corners, draws)
    alone = KMeans(4, n_init=10, random_state=0).fit(server)
    cost = ((np.concatenate(parts)[:, None] - alone.cluster_centers_) ** 2).sum(2).min(1).sum()
    found = {
        epsilon: FedDPKMeans(4, epsilon=epsilon, level="client", bound=1.5, random_state=seed)
        .fit(parts, server_data=server)
        .inertia_
        for epsilon in (0.05, 1.0, 10.0)
    }
    assert found[0.05] < 1.01 * cost
    assert found[1.0] < 1.01 * cost
    assert found[10.0] < 0.99 * cost


def test_public_points_that_mislead_are_overruled_by_the_data() -> None:
    draws = np.random.default_rng(0)
    corners = draws.uniform(-1, 1, (4, 40))
    parts = [wide(500, corners, draws) for _ in range(60)]
    best = KMeans(4, n_init=3, random_state=0).fit(np.concatenate(parts))
    found = FedDPKMeans(4, epsilon=1.0, random_state=0).fit(parts, server_data=draws.uniform(-2, 2, (200, 40)))
    assert found.inertia_ < 1.01 * best.inertia_


def test_tiny_inputs_are_answered_or_explained() -> None:
    one = [np.array([[1.0, 2.0]])]
    np.testing.assert_allclose(KFed(1, random_state=0).fit(one).cluster_centers_, one[0])
    np.testing.assert_allclose(FederatedLloyd(1).fit(one, server_data=one[0] + 1).cluster_centers_, one[0])
    with pytest.raises(InvalidInput, match=r"too few for a bound; .* or set the clipping bound by hand"):
        FedDPKMeans(1, epsilon=1.0, random_state=0).fit(one, server_data=one[0])
    found = FedDPKMeans(1, epsilon=1.0, bound=1.0, random_state=0).fit(one, server_data=one[0] + 1)
    assert np.isfinite(found.cluster_centers_).all()
    same = [np.ones((30, 2))] * 3  # no spread, no subspace
    flat = FedDPKMeans(2, epsilon=math.inf, random_state=0).fit(same, server_data=np.array([[1.0, 1.0], [5.0, 5.0]]))
    assert flat.inertia_ == pytest.approx(0, abs=1e-6)


PARTS, SERVER = mixture([30] * 5)
BAD: list[tuple[Any, str]] = [
    (lambda: FedDPKMeans(4, epsilon=-1.0).fit(PARTS, server_data=SERVER), r"epsilon=-1.0 must be positive; to switch"),
    (lambda: FedDPKMeans(4, delta=0.0).fit(PARTS, server_data=SERVER), r"delta=0.0 must lie in \(0, 1\)"),
    (lambda: FedDPKMeans(4, level="clients").fit(PARTS, server_data=SERVER), "level='clients' .*did you mean 'client'"),
    (lambda: FedDPKMeans(4, trust=Trust.SECURE_SUMS).fit(PARTS, server_data=SERVER), "trust=.* must be one of"),
    (lambda: FedDPKMeans(4).fit(PARTS), "server_data=None: FedDP-KMeans starts from a few public points"),
    (lambda: FedDPKMeans(4).fit(PARTS, server_data=SERVER[:3]), "with at least 4 points, one a cluster"),
    (lambda: FedDPKMeans(4).fit(PARTS, server_data=SERVER[:, :2]), "features of server_data=2 must be 3"),
    (lambda: FedDPKMeans(4, bound=0.0).fit(PARTS, server_data=SERVER), "bound=0.0 must be positive, or None"),
    (lambda: FedDPKMeans(0).fit(PARTS, server_data=SERVER), r"n_clusters=0 must lie in 1..150"),
    (lambda: KFed(151).fit(PARTS), r"n_clusters=151 must lie in 1..150, the points there are"),
    (lambda: KFed(4, local_clusters=5).fit(PARTS), r"local_clusters=5 must lie in 1..4"),
    (lambda: FederatedLloyd(4).fit(PARTS), "init=None: pass init"),
    (lambda: FederatedLloyd(4, init=SERVER[:3]).fit(PARTS), r"init.shape=\(3, 3\) does not fit"),
    (lambda: KFed(2).fit([]), "parts=0 must hold at least one client's points"),
    (lambda: KFed(2).fit([np.zeros((0, 3))]), "features of the parts"),
    (lambda: KFed(2).fit([np.zeros((4, 3)), np.zeros((4, 2))]), r"features of the parts=\[2, 3\] must be the same"),
    (lambda: KFed(2).fit([np.zeros(4)]), r"parts\[0\].shape=\(4,\) must be \(points, features\)"),
    (lambda: KFed(2).fit([np.array([["a", "b"]])]), r"parts\[0\].dtype=.* must be numbers"),
    (lambda: KFed(2).fit([PARTS[0], np.array([[1.0, math.nan, 2.0]])]), r"parts\[1\]\[0\]=.* has NaN or infinity"),
    (lambda: KFed(2).fit([1e20 * PARTS[0]]), "overflows float32 when squared; rescale"),
    (lambda: KFed(2, random_state=0).fit(PARTS).predict(SERVER[:, :2]), "features of X=2 must be 3"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_federation_is_taken_as_it_is() -> None:
    federation = federate(PARTS)
    assert federate(federation) is federation
    assert federation.train.sizes.tolist() == [30] * 5
