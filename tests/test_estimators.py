"""The estimators: scikit-learn's conventions, oracles, and what they guarantee."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from coterie.data.provenance import Public
from coterie.errors import BudgetSpent, InvalidInput, NoiseDrowned
from coterie.estimators import TRUSTS, FedDPKMeans, FederatedLloyd, KFed, federate
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import SIMULATION, Level, Neighbours, Trust
from coterie.privacy.ledger import Ledger
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

Array = NDArray[np.float64]
CORNERS = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])


def mixture(sizes: list[int], seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> tuple[list[Array], Public]:
    """Four blobs at the corners, dealt to clients of these sizes, and a few public points of each."""
    draws = np.random.default_rng(seed)

    def points(count: int) -> Array:
        return scale * (CORNERS[draws.integers(4, size=count)] + 0.5 * draws.standard_normal((count, 3))) + shift

    return [points(size) for size in sizes], Public(points(40))


def worst(estimator: Any, scale: float = 1.0, shift: float = 0.0) -> float:
    """How far the farthest true centre is from the nearest found one, in the mixture's own measure."""
    gaps = np.linalg.norm((CORNERS * scale + shift)[:, None] - estimator.cluster_centers_[None], axis=2)
    return float(gaps.min(1).max()) / scale


# -- scikit-learn's conventions --------------------------------------------------------------------------------------

WEIGHTS = "weights enter sums, and starts are drawn from points: neither draws the same from repeated points"
ABOVE_1 = "weights above 1 are refused: noise hides a record that counts once"


def not_expected(estimator: Any) -> dict[str, str]:
    """The checks that fail, and why. scikit-learn's own KMeans fails the one on equivalence for the same reason."""
    found = {"check_sample_weight_equivalence_on_dense_data": WEIGHTS}
    if isinstance(estimator, FedDPKMeans):
        found |= dict.fromkeys(("check_sample_weights_list", "check_sample_weights_not_overwritten"), ABOVE_1)
    return found


@pytest.mark.filterwarnings("ignore::coterie.errors.NoiseDrowned")  # the checks have 10 to 50 points
@parametrize_with_checks([KFed(), FederatedLloyd(), FedDPKMeans()], expected_failed_checks=not_expected)  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


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
    np.testing.assert_array_equal(fresh.predict(parts), fresh.labels_)
    distances = ((everything - fresh.cluster_centers_[fresh.labels_]) ** 2).sum()
    assert fresh.inertia_ == pytest.approx(distances, rel=1e-4)
    assert fresh.score(everything) == pytest.approx(-distances, rel=1e-4)
    assert fresh.transform(everything).min(1) == pytest.approx(
        np.linalg.norm(everything - fresh.cluster_centers_[fresh.labels_], axis=1), rel=1e-3
    )
    assert worst(fresh) < 0.5
    again = clone(fresh)
    np.testing.assert_array_equal(again.fit_predict(parts, **arguments), fresh.labels_)
    np.testing.assert_array_equal(again.cluster_centers_, fresh.cluster_centers_)
    np.testing.assert_array_equal(clone(fresh).fit_transform(parts, **arguments), fresh.transform(parts))
    assert "random_state=3" in repr(fresh)


def test_noise_comes_from_the_operating_system_by_default() -> None:
    parts, server = mixture([100] * 10)
    found = [FedDPKMeans(4, epsilon=3.0).fit(parts, server_data=server) for _ in range(2)]
    assert not np.array_equal(found[0].cluster_centers_, found[1].cluster_centers_)
    assert SIMULATION not in str(found[0].privacy_spent_)


def test_every_kind_of_random_state() -> None:
    parts, server = mixture([100] * 10)

    def centres(state: Any) -> Array:
        found = FedDPKMeans(4, epsilon=3.0, random_state=state).fit(parts, server_data=server)
        assert str(found.privacy_spent_).endswith(SIMULATION)
        return np.asarray(found.cluster_centers_)

    makers: list[Any] = [
        lambda: 7,
        lambda: np.int64(7),
        lambda: np.random.RandomState(7),
        lambda: np.random.default_rng(7),
    ]
    for make in makers:
        np.testing.assert_array_equal(centres(make()), centres(make()))
    shared = np.random.default_rng(7)
    assert not np.array_equal(centres(shared), centres(shared))  # it goes on where it stopped
    with pytest.raises(InvalidInput, match="random_state='seven' must be None, a whole number"):
        FedDPKMeans(4, random_state="seven").fit(parts)  # type: ignore[arg-type]


def test_federated_lloyd_is_lloyd() -> None:
    """scikit-learn's KMeans on all points together, from the same start; and with weights."""
    parts, _ = mixture([50, 3, 120, 1, 80])
    everything = np.concatenate(parts)
    init = everything[:4]
    weights = np.random.default_rng(0).uniform(0, 3, len(everything))
    for weight in (None, weights):
        ours = FederatedLloyd(4, init=init, max_iter=50).fit(parts, sample_weight=weight)
        theirs = KMeans(4, init=init, n_init=1, max_iter=50, tol=0, algorithm="lloyd")
        theirs.fit(everything, sample_weight=weight)
        np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-4)
        assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-5)
        assert ours.n_iter_ <= theirs.n_iter_ + 1


# -- what is guaranteed ----------------------------------------------------------------------------------------------


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
    named = clone(found).set_params(trust=trust.name.lower()).fit(parts, server_data=server)
    np.testing.assert_array_equal(named.cluster_centers_, found.cluster_centers_)


def test_colluders_and_neighbours_can_be_chosen() -> None:
    parts, server = mixture([20] * 10)
    settings: dict[str, Any] = {"epsilon": 3.0, "bound": 3.0, "random_state": 0, "trust": "distributed_noise"}
    spent = {
        colluders: FedDPKMeans(4, colluders=colluders, **settings).fit(parts, server_data=server).privacy_spent_
        for colluders in (None, 0, 5)
    }
    public = {colluders: found.against[0].epsilon for colluders, found in spent.items()}
    assert public[0] > public[None] > public[5]  # the more may collude, the more noise there is for all others
    local = FedDPKMeans(4, epsilon=3.0, bound=3.0, trust="local_noise", random_state=0).fit(parts, server_data=server)
    assert local.privacy_spent_.neighbours is Neighbours.REPLACE
    added = clone(local).set_params(neighbours="add_or_remove").fit(parts, server_data=server)
    assert added.privacy_spent_.neighbours is Neighbours.ADD_OR_REMOVE
    with pytest.raises(InvalidInput, match="neighbours='cousins'"):
        clone(local).set_params(neighbours="cousins").fit(parts, server_data=server)


def test_a_ledger_composes_over_fits_and_clones_and_refuses() -> None:
    parts, server = mixture([20] * 10)
    book = Ledger(limit=1.4, delta=1e-6)  # twice epsilon 1 is 1.44
    first = FedDPKMeans(4, epsilon=1.0, bound=3.0, random_state=0, ledger=book).fit(parts, server_data=server)
    assert book.spent == pytest.approx(first.privacy_spent_.epsilon, rel=1e-3)
    with pytest.raises(BudgetSpent, match="would be spent in all"):
        clone(first).set_params(random_state=1).fit(parts, server_data=server)
    again = clone(first).set_params(random_state=1, epsilon=0.3).fit(parts, server_data=server)
    assert again.ledger is book
    assert 1.0 < book.spent <= 1.3
    with pytest.raises(BudgetSpent, match="without a guarantee"):
        FedDPKMeans(4, epsilon=math.inf, ledger=book).fit(parts, server_data=server)


def test_infinite_epsilon_promises_nothing() -> None:
    parts, server = mixture([50] * 10)
    found = FedDPKMeans(4, epsilon=math.inf, random_state=0).fit(parts, server_data=server)
    assert not found.privacy_spent_.proven
    assert worst(found) < 0.2
    assert "k-FED adds no noise" in str(KFed(4).fit(parts).privacy_spent_)


def test_a_start_of_unknown_origin_has_no_guarantee() -> None:
    """k-FED's centres of the same data, as an array, were once certified."""
    parts, server = mixture([100] * 20)
    start = KFed(4, random_state=0).fit(parts)
    private = FederatedLloyd(4, epsilon=1.0, random_state=0)
    for init, why in (
        (start.cluster_centers_, "coterie.Public(init)"),
        (FrozenEstimator(start), "k-FED adds no noise"),
    ):
        found = clone(private).set_params(init=init).fit(parts)
        assert not found.privacy_spent_.proven
        assert str(found.privacy_spent_).startswith("no formal guarantee: ")
        assert why in found.privacy_spent_.why_not
    assert clone(private).set_params(init=Public(CORNERS)).fit(parts).privacy_spent_.epsilon == pytest.approx(
        1.0, rel=5e-3
    )
    theirs = KMeans(4, n_init=1).fit(np.concatenate(parts))
    assert "KMeans has no guarantee" in str(clone(private).set_params(init=theirs).fit(parts).privacy_spent_)
    for estimator in (private, FedDPKMeans(4, random_state=0)):
        plain = clone(estimator).fit(parts, server_data=server.values)
        assert "coterie.Public(server_data)" in str(plain.privacy_spent_)
        assert clone(estimator).fit(parts, server_data=server).privacy_spent_.proven


def test_a_private_start_is_composed() -> None:
    """Two Gaussian mechanisms of epsilon 1 each, at one delta for both together."""
    parts, server = mixture([200] * 20)
    start = FedDPKMeans(4, epsilon=1.0, lloyd_steps=0, random_state=0).fit(parts, server_data=server)
    found = FederatedLloyd(4, epsilon=1.0, init=FrozenEstimator(start), max_iter=2).fit(parts)
    spent = found.privacy_spent_
    assert spent.proven
    assert spent.simulated  # the start's noise came from a seed
    assert spent.epsilon == pytest.approx(epsilon_of(spent.events, 1e-6))
    assert len(spent.events) == len(start.privacy_spent_.events) + 7  # a bound, and three sums in each of two steps
    assert spent.ripple > start.privacy_spent_.ripple
    assert 1.35 < spent.epsilon < 2  # sqrt(2) and more, less than the sum
    public, participant, server_too = spent.against
    assert public.epsilon == participant.epsilon == pytest.approx(spent.epsilon, rel=1e-5)
    assert math.isinf(server_too.epsilon)
    assert clone(found).fit(parts).privacy_spent_.epsilon == pytest.approx(
        spent.epsilon
    )  # frozen, so that clone keeps it fitted
    again = FederatedLloyd(4, epsilon=1.0, init=found).fit(parts)
    assert again.privacy_spent_.epsilon > spent.epsilon
    other = FederatedLloyd(4, epsilon=1.0, level="client", bound=1.0, init=start).fit(parts)
    assert "another level" in other.privacy_spent_.why_not
    with pytest.raises(NotFittedError, match=r"clone\(\) unfits it: use FrozenEstimator"):
        clone(FederatedLloyd(4, epsilon=1.0, init=start)).fit(parts)


def test_a_bound_that_is_estimated_is_charged_for() -> None:
    parts, server = mixture([50] * 100)
    tapes = {}
    for bound in (None, 2.0):
        tapes[bound] = Tape([ThreatModel("server", server=True)])
        found = FedDPKMeans(4, epsilon=1.0, bound=bound).fit(parts, server_data=server, tape=tapes[bound])
        assert found.privacy_spent_.epsilon == pytest.approx(1.0, rel=5e-3)
    views = {bound: tape.view(tape.threats[0]) for bound, tape in tapes.items()}
    assert views[None].rounds("bound") == [2]
    assert views[2.0].rounds("bound") == []
    for number in range(1, 9):  # norms about the centres are 0.5 * sqrt(3) on average, and every step looks again
        message = views[None].received(3 + number, f"lloyd {number}").values
        assert 0.5 < float(message["bound"][0]) < 4.0
        assert "watch" in message


# -- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "shift"), [(1e-4, 0.0), (1e5, 0.0), (1.0, 1e4), (100.0, -1e5)])
@pytest.mark.parametrize("level", ["record", "client"])
def test_raw_numbers_need_no_scaling(scale: float, shift: float, level: str) -> None:
    parts, server = mixture([25] * 400, scale=scale, shift=shift)
    found = FedDPKMeans(4, epsilon=3.0, level=level, random_state=1).fit(parts, server_data=server)
    assert worst(found, scale, shift) < 1.0


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-3, 0.0), (1e5, 0.0), (1.0, 100.0)])
def test_a_server_without_data(scale: float, shift: float) -> None:
    """Where the data lie, and how far they reach, is found first, and paid for."""
    parts, _ = mixture([100] * 200, scale=scale, shift=shift)
    found = FedDPKMeans(4, epsilon=1.0, random_state=0).fit(parts)
    assert worst(found, scale, shift) < 0.3
    assert found.privacy_spent_.epsilon == pytest.approx(1.0, rel=5e-3)
    by_client = FedDPKMeans(4, epsilon=10.0, level="client", random_state=0).fit([part[:10] for part in parts * 10])
    assert worst(by_client, scale, shift) < 1.5


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


@pytest.mark.parametrize("seed", range(3))
def test_long_tails_are_not_cut_off(seed: int) -> None:
    """Skewed clusters: a bound at the median norm, whatever the epsilon, costs 1 % and more."""
    draws = np.random.default_rng(seed)
    corners, spread = draws.uniform(0, 20, (5, 5)), draws.uniform(0.5, 1.2, 5)

    def points(count: int) -> Array:
        which = draws.integers(5, size=count)
        return corners[which] + np.exp(spread[which, None] * draws.standard_normal((count, 5)))

    x, server = points(50_000), Public(points(200))
    best = KMeans(5, n_init=10, random_state=seed).fit(x)
    found = FedDPKMeans(5, epsilon=1.0, random_state=seed).fit(x, server_data=server)
    assert found.inertia_ < 1.0015 * best.inertia_


def test_tiny_inputs_are_answered_or_explained() -> None:
    one = [np.array([[1.0, 2.0]])]
    np.testing.assert_allclose(KFed(1, random_state=0).fit(one).cluster_centers_, one[0])
    np.testing.assert_allclose(FederatedLloyd(1).fit(one, server_data=one[0] + 1).cluster_centers_, one[0])
    with pytest.warns(NoiseDrowned, match=r"noise hides .* or set bound= by hand"):
        drowned = FedDPKMeans(1, epsilon=1.0, random_state=0).fit(one, server_data=Public(one[0]))
    assert np.isfinite(drowned.cluster_centers_).all()
    with pytest.warns(NoiseDrowned):
        FedDPKMeans(1, epsilon=1.0, random_state=0).fit(one)
    found = FedDPKMeans(1, epsilon=1.0, bound=1.0, random_state=0).fit(one, server_data=one[0] + 1)
    assert np.isfinite(found.cluster_centers_).all()
    same = [np.ones((30, 2))] * 3  # no spread, no subspace
    flat = FedDPKMeans(2, epsilon=math.inf, random_state=0).fit(same, server_data=np.array([[1.0, 1.0], [5.0, 5.0]]))
    assert flat.inertia_ == pytest.approx(0, abs=1e-6)


PARTS, SERVER = mixture([30] * 5)
POINTS = np.asarray(SERVER.values)
BAD: list[tuple[Any, str]] = [
    (lambda: FedDPKMeans(4, epsilon=-1.0).fit(PARTS, server_data=SERVER), r"epsilon=-1.0 must be positive; to switch"),
    (lambda: FedDPKMeans(4, delta=0.0).fit(PARTS, server_data=SERVER), r"delta=0.0 must lie in \(0, 1\)"),
    (lambda: FedDPKMeans(4, level="clients").fit(PARTS, server_data=SERVER), "level='clients' .*did you mean 'client'"),
    (lambda: FedDPKMeans(4, trust=Trust.SECURE_SUMS).fit(PARTS, server_data=SERVER), "trust=.* Known: distributed"),
    (lambda: FedDPKMeans(4).fit(PARTS, server_data=POINTS[:3]), "with at least 4 points, one a cluster"),
    (lambda: FedDPKMeans(4).fit(PARTS, server_data=POINTS[:, :2]), "features of server_data=2 must be 3"),
    (lambda: FedDPKMeans(4).fit(PARTS, server_data=Public(np.full((9, 3), np.nan))), "server_data='NaN or infinity'"),
    (lambda: FedDPKMeans(4, bound=0.0).fit(PARTS, server_data=SERVER), "bound=0.0 must be positive, or None"),
    (lambda: FedDPKMeans(0).fit(PARTS, server_data=SERVER), r"n_clusters=0 must lie in 1..100000$"),
    (lambda: KFed(151).fit(PARTS), r"n_clusters=151 must lie in 1..150, the points there are"),
    (lambda: KFed(4, local_clusters=5).fit(PARTS), r"local_clusters=5 must lie in 1..4"),
    (lambda: KFed(6, local_clusters=1).fit(PARTS), r"clusters=6 must lie in 1..5, the local centres there are"),
    (lambda: FederatedLloyd(4, epsilon=1.0).fit(PARTS), r"init=None: pass init=Public\(centres\), a fitted private"),
    (lambda: FederatedLloyd(4, init=POINTS[:3]).fit(PARTS), r"init.shape=\(3, 3\) does not fit"),
    (lambda: FederatedLloyd(4, init=POINTS[:4, 0]).fit(PARTS), r"init.shape=\(4,\) must be \(points, features\)"),
    (lambda: Public(SERVER), "must wrap an array, and be used once"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_federation_is_taken_as_it_is() -> None:
    federation = federate(PARTS)
    assert federate(federation) is federation
    assert federation.train.sizes.tolist() == [30] * 5
    found = FedDPKMeans(4, epsilon=30.0, random_state=0).fit(federation, server_data=SERVER)
    np.testing.assert_array_equal(found.predict(federation), found.labels_)
    with pytest.raises(InvalidInput, match="must be None beside a Federation"):
        KFed(4).fit(federation, groups=[1])
