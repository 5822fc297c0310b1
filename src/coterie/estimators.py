"""Federated clustering in the manner of scikit-learn: the constructor stores, ``fit`` checks and runs the ring.

``parts`` is one array of points a client (rows are points), or a ``Federation``. ``labels_`` and ``inertia_`` are about
the points that ``fit`` was given; they are computed where it runs and are no part of what is released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, NoisySums, plan_noise
from coterie.errors import InvalidInput, nearest, require
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters import lloyd
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.privacy.accounting import require_budget
from coterie.privacy.guarantee import Guarantee, Level, Trust
from coterie.protocols.clusterings import feddp_kmeans, federated_lloyd, kfed
from coterie.protocols.clusterings.base import Clusterer, Clusters
from coterie.rng import Rng
from coterie.wire.tape import Tape

Parts = Sequence[ArrayLike] | Federation
TRUSTS = (Trust.TRUSTED_AGGREGATOR, Trust.DISTRIBUTED_NOISE, Trust.LOCAL_NOISE)


def run_clustering(
    protocol: Clusterer, federation: Federation, rng: Rng, defence: Defence | None = None, tape: Tape | None = None
) -> Clusters:
    """The whole protocol on this machine, under a defence, and on a tape if one is given."""
    return Ring(protocol, federation, None, defence or Defence(), Roots.same(rng), tape, processes=0).run()


def federate(parts: Parts) -> Federation:
    """Clients from arrays of points; a client without points is kept and never asked."""
    if isinstance(parts, Federation):
        return parts
    require(len(parts) > 0, "parts", 0, "must hold at least one client's points")
    arrays = [_matrix(part, f"parts[{client}]") for client, part in enumerate(parts)]
    widths = {array.shape[1] for array in arrays if len(array)}
    require(
        len(widths) == 1, "features of the parts", sorted(widths), "must be the same for all, and at least one point"
    )
    x = torch.cat([array for array in arrays if len(array)])
    offsets = torch.tensor([0] + [len(array) for array in arrays]).cumsum(0)
    nothing = Shards(torch.empty(0, dtype=torch.int64), torch.zeros_like(offsets))
    examples = Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "parts")
    return Federation(examples, Shards(torch.arange(len(x)), offsets), nothing, torch.full((len(arrays),), -1))


def _matrix(values: ArrayLike, name: str) -> Tensor:
    """(points, features) float32; raw numbers beyond its range are named, not turned into infinity."""
    found = np.asarray(values.numpy() if isinstance(values, Tensor) else values)
    require(found.ndim == 2, f"{name}.shape", found.shape, "must be (points, features)")
    require(found.dtype.kind in "fiub", f"{name}.dtype", found.dtype, "must be numbers")
    if len(found):
        require(found.shape[1] > 0, f"{name}.shape", found.shape, "must have at least one feature")
        finite = np.isfinite(found)
        row = int(np.argmin(finite.all(1)))
        require(bool(finite.all()), f"{name}[{row}]", found[row].tolist()[:5], "has NaN or infinity; drop that point")
        largest = float(np.abs(found).max())
        require(largest < 1e15, f"largest value of {name}", largest, "overflows float32 when squared; rescale the data")
    return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32))


class _Clustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """What the three have in common."""

    n_clusters: int
    random_state: int | None
    cluster_centers_: NDArray[np.float32]

    def _fit(self, federation: Federation, protocol: Clusterer, defence: Defence | None, tape: Tape | None) -> None:
        rng = Rng.from_entropy() if self.random_state is None else Rng.seeded(self.random_state)
        state = run_clustering(protocol, federation, rng, defence, tape)
        centres, x = state.known["centres"][0], federation.examples.x.flatten(1)
        labels = lloyd.nearest(x, centres)
        self.cluster_centers_ = centres.numpy()
        self.labels_ = labels.numpy()
        self.inertia_ = float(lloyd.squared_distances(x, centres, labels).double().sum())
        self.n_features_in_ = x.shape[1]
        self.n_iter_ = len({name.split("/")[0] for name in state.released if name.startswith(("centres", "lloyd"))})

    def _enough(self, federation: Federation) -> None:
        points = int(federation.train.sizes.sum())
        require(
            1 <= self.n_clusters <= points,
            "n_clusters",
            self.n_clusters,
            f"must lie in 1..{points}, the points there are",
        )

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The nearest centre of each row."""
        check_is_fitted(self)
        x = _matrix(X, "X")
        require(x.shape[1] == self.n_features_in_, "features of X", x.shape[1], f"must be {self.n_features_in_}")
        found: NDArray[np.int64] = lloyd.nearest(x, torch.from_numpy(self.cluster_centers_)).numpy()
        return found


class KFed(_Clustering):
    """k-FED: one round, no privacy. ``local_clusters``: how many each client looks for (None: ``n_clusters``)."""

    def __init__(
        self, n_clusters: int = 10, *, local_clusters: int | None = None, random_state: int | None = None
    ) -> None:
        self.n_clusters = n_clusters
        self.local_clusters = local_clusters
        self.random_state = random_state

    def fit(self, parts: Parts, y: None = None, *, tape: Tape | None = None) -> KFed:
        federation = federate(parts)
        self._enough(federation)
        self._fit(federation, kfed.KFed(self.n_clusters, local_clusters=self.local_clusters), None, tape)
        return self


class _Private(_Clustering):
    """A total budget, split over the releases by a stated rule (``shares`` sets it by hand)."""

    epsilon: float
    delta: float
    level: str | Level
    trust: Trust
    bound: float | None
    shares: Mapping[str, float] | None

    @property
    def _level(self) -> Level | None:
        """The unit to protect; None where epsilon is infinite, for then nothing is bounded either."""
        levels = {level.value: level for level in SHARES}
        level = levels.get(self.level) if isinstance(self.level, str) else self.level
        if level not in SHARES:
            raise InvalidInput(f"level={self.level!r} {nearest(self.level, levels)}")
        return None if math.isinf(self.epsilon) else level

    def _defence(self, protocol: Clusterer, federation: Federation) -> NoisySums | None:
        require_budget(self.epsilon, self.delta)
        require(
            self.trust in TRUSTS, "trust", self.trust, f"must be one of {', '.join(str(trust) for trust in TRUSTS)}"
        )
        if protocol.level is None:
            return None
        shares = SHARES[protocol.level] if self.shares is None else self.shares
        noise = plan_noise(protocol.releases(), self.epsilon, self.delta, shares)
        match self.trust:
            case Trust.LOCAL_NOISE:
                return LocalNoise(noise)
            case Trust.DISTRIBUTED_NOISE:
                return DistributedNoise(noise, clients=int((federation.train.sizes > 0).sum()))
            case _:
                return CentralNoise(noise)

    def _fit_privately(self, federation: Federation, protocol: Clusterer, tape: Tape | None) -> None:
        defence = self._defence(protocol, federation)
        self._fit(federation, protocol, defence, tape)
        if defence is None:
            level = self.level if isinstance(self.level, Level) else Level(self.level)
            self.privacy_spent_ = Guarantee.none("epsilon=inf: no noise was added", level, self.trust)
        else:
            self.privacy_spent_ = defence.guarantee(protocol.facts(federation, self.delta))


class FederatedLloyd(_Private):
    """Lloyd's algorithm with sums over clients, from ``init`` (n_clusters, features) or k-means on ``server_data``.

    With a finite ``epsilon`` this is FedDP-Lloyds: each step's sums are noisy, so that a few steps are best.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        epsilon: float = math.inf,
        delta: float = 1e-6,
        level: str | Level = Level.RECORD,
        trust: Trust = Trust.TRUSTED_AGGREGATOR,
        max_iter: int = 20,
        init: ArrayLike | None = None,
        bound: float | None = None,
        shares: Mapping[str, float] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.level = level
        self.trust = trust
        self.max_iter = max_iter
        self.init = init
        self.bound = bound
        self.shares = shares
        self.random_state = random_state

    def fit(
        self, parts: Parts, y: None = None, *, server_data: ArrayLike | None = None, tape: Tape | None = None
    ) -> FederatedLloyd:
        federation = federate(parts)
        self._enough(federation)
        start = self._start(federation, server_data)
        protocol = federated_lloyd.FederatedLloyd(
            self.n_clusters, self._level, centres=start, steps=self.max_iter, bound=self.bound
        )
        self._fit_privately(federation, protocol, tape)
        return self

    def _start(self, federation: Federation, server_data: ArrayLike | None) -> Tensor:
        features = federation.examples.x[0].numel()
        if self.init is not None:
            start = _matrix(self.init, "init")
            require(
                start.shape == (self.n_clusters, features), "init.shape", tuple(start.shape), "does not fit the data"
            )
            return start
        if server_data is None:
            raise InvalidInput("init=None: pass init (from KFed, for instance) or server_data to start from")
        known = _matrix(server_data, "server_data")
        require(known.shape[1] == features, "features of server_data", known.shape[1], f"must be {features}")
        rng = Rng.seeded(self.random_state or 0).child("start")
        return weighted_kmeans(known, torch.ones(len(known)), self.n_clusters, rng).centres[0]


class FedDPKMeans(_Private):
    """FedDP-KMeans: a start that spends little of the budget, and ``lloyd_steps``, which share the rest.

    ``level`` is whose presence is hidden, "record" or "client". ``trust`` says where the noise is added and so who must
    be trusted; ``privacy_spent_`` repeats it beside the epsilon. ``bound`` is the clipping bound about the centres;
    None: estimated, and charged for.
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        level: str | Level = Level.RECORD,
        trust: Trust = Trust.TRUSTED_AGGREGATOR,
        lloyd_steps: int = 1,
        bound: float | None = None,
        shares: Mapping[str, float] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.level = level
        self.trust = trust
        self.lloyd_steps = lloyd_steps
        self.bound = bound
        self.shares = shares
        self.random_state = random_state

    def fit(
        self, parts: Parts, y: None = None, *, server_data: ArrayLike | None = None, tape: Tape | None = None
    ) -> FedDPKMeans:
        if server_data is None:
            raise InvalidInput("server_data=None: FedDP-KMeans starts from a few public points; without, use KFed")
        federation = federate(parts)
        self._enough(federation)
        known, features = _matrix(server_data, "server_data"), federation.examples.x[0].numel()
        require(known.shape[1] == features, "features of server_data", known.shape[1], f"must be {features}")
        self._fit_privately(federation, self.protocol(known), tape)
        return self

    def protocol(self, server_data: Tensor) -> feddp_kmeans.FedDPKMeans:
        """What ``fit`` runs."""
        return feddp_kmeans.FedDPKMeans(
            self.n_clusters, self._level, server_data=server_data, steps=self.lloyd_steps, bound=self.bound
        )
