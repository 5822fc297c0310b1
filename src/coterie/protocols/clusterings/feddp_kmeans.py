"""FedDP-KMeans (Scott, Lampert and Saulpic 2025): a start from a little server data, and some steps of Lloyd."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.protocol import Running, Server
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import leading_subspace, nearest, project, squared_distances, unpack_symmetric
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.quantile import rms, standing_out
from coterie.learn.clusters.shrinkage import shrunk
from coterie.learn.clusters.statistics import BINS, statistics, unscaled
from coterie.protocols.clusterings.base import Clusters, Steps
from coterie.protocols.clusterings.steps import Stepping
from coterie.rng import Rng

RESTARTS, CELL_RESTARTS = 100, 20
"""Of the server's k-means: which optimum is found depends on it. Cells are many, and merged later, so fewer will do."""

MOST_CELLS = 30
"""So many cells a cluster, at most, are averaged before they are merged. The finer they are, the nearer is the best
clustering of their means to the best one of the points."""

CLEAR = 0.1
"""Noise may be this part of the vectors' own length in a cell's mean; more cells than that would be noise."""

LOOKS = ("reach 1", "middle 1", "reach 2", "middle 2", "reach 3")

DRAWN = 100
"""So many points a cluster stand in for the server's data, if it has none."""


@dataclass(frozen=True, eq=False)
class FedDPKMeans(Stepping):
    """FedDP-Init's three steps (Algorithm 1), then ``steps`` of FedDP-Lloyds (Algorithm 2).

    ``server_data`` (points, features) is public. Without, ``middle`` (features,) is a public point to look about from,
    and the clients' mean, spread and directions, which are released first, give a Gaussian to draw points from.

    Where we differ from the paper. Vectors are measured from what is already public (the mean of the server's data,
    then the centres released so far), so they are shorter and need less noise. Outer products and, at client level,
    histograms are scaled to norm 1, so only one bound is left to find. All noise is Gaussian, which composes without
    loss. Server points whose noisy weight is below ``least`` deviations are dropped (the original: below 5), if the
    others are most of the weight. What is released is shrunk towards what the server knew before, by as much as noise
    explains (``shrunk``): where noise drowns all, the result is a clustering of the server's own points. Where the
    signal allows, step 3 averages several cells a cluster, and the server merges their means: of all clusterings of so
    many means it can find the best one, and no choice between two clusterings hangs on where a few points of its own
    happen to lie. Where there are no more features than clusters, there is no subspace to find.
    """

    steps: int = 1
    server_data: Tensor | None = None
    middle: Tensor | None = None
    least: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.server_data is None) != (self.middle is None),
            "server_data",
            None if self.server_data is None else "given beside a middle",
            "must be given: FedDP-Init starts from it; or else a public middle of the data, from which to look",
        )
        require(self.least >= 0, "least", self.least, "must not be negative")
        given = self.server_data if self.middle is None else self.middle.unsqueeze(0)
        assert given is not None
        finite = given.dim() == 2 and bool(torch.isfinite(given).all())
        require(finite, "server_data or middle", "NaN or infinity", "must be finite; drop those points")
        require(
            self.server_data is None or len(self.server_data) >= self.clusters,
            "server_data of shape",
            tuple(given.shape),
            f"must be (points, features) with at least {self.clusters} points, one a cluster",
        )

    @property
    def features(self) -> int:
        given = self.server_data if self.middle is None else self.middle
        assert given is not None
        return given.shape[-1]

    @property
    def glances(self) -> tuple[str, ...]:
        """Requests before FedDP-Init, if the server has no data: where the clients' lie, and how far they reach."""
        return () if self.middle is None else LOOKS

    @property
    def projects(self) -> bool:
        return self.middle is not None or self.features > self.clusters

    def releases(self) -> tuple[str, ...]:
        found = [name for kind in self.glances for name in _looked(kind)]
        found += ["outer/outer"] if self.projects else []
        found += ["weights/weights", "bound/norms"] if self.estimates else ["weights/weights"]
        return (*found, *self.moved(["centres", *self.moves]))

    def start(self, server: Server) -> Clusters:
        if self.server_data is not None:
            return Clusters(0, {"middle": self.server_data.float().mean(0, keepdim=True), **self.bounds()})
        assert self.middle is not None
        middle = self.middle.float().unsqueeze(0)
        return Clusters(0, {"middle": middle, "centres": middle.unsqueeze(1), **self.bounds()})

    def run(self, state: Clusters, server: Server) -> Running[Clusters]:
        first = len(self.glances)
        while state.round < first:  # step 0, if the server has no data: where the clients' lie
            state = yield from self._look(self.glances[state.round], state, server)
        if state.round == first:  # step 1: the subspace in which the points differ most
            state = yield from self._project(state, server)
        if state.round == first + 1:  # step 2: the server's points, weighed by how many points they stand for
            sums = yield from self.ask("weights", ["middle", "subspace", "known"], state, server)
            centres = self._cells(state, sums.values["weights"][0], sums.noise.get("weights", 0.0), server.rng)
            state = state.after("weights", sums, {"centres": centres})
        if state.round == first + 2:  # how long the vectors of the next step are
            bound = self.find_bound("bound", "centres", self._typical(state), state, server)
            state = (yield from bound) if self.estimates else state.at(first + 3)
        if state.round == first + 3:  # step 3: back to the full space
            following = self.moves[0] if self.steps else None
            state = yield from self.move("centres", self.facts_of_a_move(), state, server, following)
            state = self._merged(state, server.rng)
        state = yield from self.descend(first + 4, state, server)
        return (yield from self.publish(state, server))

    def _look(self, kind: str, state: Clusters, server: Server) -> Steps[Clusters]:
        """Twice how far the points reach and where their mean is, for at first nobody knows where to look; then again.

        "middle" is a step of Lloyd with one centre, and "reach" the histogram that bounds it.
        """
        if kind.startswith("middle"):
            state = yield from self.move(kind, ["centres", "bound"], state, server)
            state = state.learning({"middle": state.known["centres"][0, 0]})
            return state.learning({"bound": torch.tensor(self.bound)}) if self.bound is not None else state
        sums = yield from self.ask(kind, ["centres"], state, server)
        learnt = self._bound_from(sums, kind, kind.replace("reach", "middle"), 1, self._reach(state))
        found = standing_out(sums.values["norms"][0], BINS, sums.noise.get("norms", 0.0))
        spread = learnt["bound"] if found is None else torch.tensor(rms(*found))
        if kind == LOOKS[-1] and self.bound is not None:
            del learnt["bound"]
        return state.after(kind, sums, {**learnt, "spread": spread})

    def _reach(self, state: Clusters) -> float:
        """If noise hides how far the points reach: as far as seen before, as the box does, or as standard data do."""
        if "spread" in state.known:
            return float(state.known["spread"])
        return math.sqrt(self.features) if self.box is None else float((self.box[1] - self.box[0]).norm()) / 2

    # -- steps 1 to 3 --------------------------------------------------------------------------------------------

    def _project(self, state: Clusters, server: Server) -> Steps[Clusters]:
        """What is known of the points in the subspace: all of it, where it is no smaller than the whole space."""
        if not self.projects:
            assert self.server_data is not None
            whole = {"subspace": torch.eye(self.features), "known": self.server_data.float() - state.known["middle"][0]}
            return state.learning(whole).at(state.round + 1)
        sums = yield from self.ask("outer", ["middle"], state, server)
        noise, public = sums.noise.get("outer", 0.0), state.get("middle")
        packed = unscaled("outer", sums.values["outer"][0].double(), public, self.unit)
        return state.after("outer", sums, self._subspace(state, packed, noise, server.rng))

    def _subspace(self, state: Clusters, packed: Tensor, noise: float, rng: Rng) -> dict[str, Tensor]:
        """The leading directions of the noisy sum, shrunk towards that of the server's own points at its best scale.

        That is at least what noise can hide, for a guess of nothing has no directions.
        """
        own = self._own_directions(state)
        direction = own / own.norm().clamp_min(torch.finfo(own.dtype).tiny)
        guess = direction * (packed @ direction).clamp_min(noise)
        matrix = unpack_symmetric(shrunk(packed, guess, noise), self.features)
        subspace = leading_subspace(matrix, min(self.clusters, self.features))
        if self.server_data is not None:
            known = project(self.server_data.float(), subspace.float(), state.known["middle"][0])
            return {"subspace": subspace.float(), "known": known}
        spread = float(state.known["spread"]) ** 2 * ((subspace @ matrix) * subspace).sum(1) / matrix.trace()
        draws = torch.randn(DRAWN * self.clusters, len(subspace), generator=rng.child("server points").torch())
        return {"subspace": subspace.float(), "known": draws * spread.clamp_min(0).sqrt().float()}

    def _own_directions(self, state: Clusters) -> Tensor:
        """Packed like the sum; all directions alike, if the server has no data."""
        if self.server_data is None:
            upper = torch.triu_indices(self.features, self.features)
            return (upper[0] == upper[1]).double()
        points = Points.of([self.server_data])
        found = statistics("outer", state.get("middle"), points, RecordClip)["outer"][0]
        return unscaled("outer", found, state.get("middle"), RecordClip)

    def _cells(self, state: Clusters, weights: Tensor, noise: float, rng: Rng) -> Tensor:
        """Centres in the subspace, as they lie in full: one a cluster, or more, if noise lets their means be seen.

        Clients label their points by them without projecting: what sticks out of the subspace decides nothing.
        """
        public, kept = state.get("middle", "subspace", "known"), self._cleaned(weights, noise).float()
        deviation = self.expected("centres/sums", "weights/weights", noise)
        clear = CLEAR * float(weights.sum()) / max(deviation * math.sqrt(self.features), 1e-9)
        cells = min(int(min(clear, MOST_CELLS * self.clusters)), int((kept > 0).sum()) // 2)
        cells = cells if cells >= 2 * self.clusters else self.clusters
        restarts = RESTARTS if cells == self.clusters else CELL_RESTARTS
        found = weighted_kmeans(public["known"], kept, cells, rng.child("server k-means"), restarts=restarts)
        return public["middle"] + found.centres[0] @ public["subspace"]

    def _merged(self, state: Clusters, rng: Rng) -> Clusters:
        """The clusters that the means of the cells form; a cell that noise alone may have filled forms none."""
        centres, heads = state.known["centres"][0], state.known["heads"][0]
        if len(centres) == self.clusters or int((heads > 0).sum()) < self.clusters:
            return state.learning({"centres": centres[: self.clusters]})
        found = weighted_kmeans(centres, heads, self.clusters, rng.child("merging"), restarts=RESTARTS)
        return state.learning({"centres": found.centres[0]})

    def _cleaned(self, weights: Tensor, noise: float) -> Tensor:
        """Only weights that stand out of the noise, if these are most of it; else all, shrunk towards their mean."""
        kept = torch.where(weights >= self.least * noise, weights, 0.0)
        if float(kept.sum()) < float(weights.sum()) / 2:
            kept = shrunk(weights, weights.mean(), noise)
        kept = kept.clamp_min(0)
        return kept if int((kept > 0).sum()) >= self.clusters else torch.ones_like(kept)

    def _typical(self, state: Clusters) -> float:
        """The median distance of public points from the centres, for a bound if noise hides the clients'."""
        public = state.get("middle", "subspace", "known", "centres")
        points = self.server_data
        if points is None:
            points = public["middle"] + public["known"] @ public["subspace"]
        distances = squared_distances(points.float(), public["centres"], nearest(points.float(), public["centres"]))
        found = float(distances.median().sqrt())
        return found if found > 0 else 1.0


def _looked(kind: str) -> list[str]:
    return [f"{kind}/norms"] if kind.startswith("reach") else [f"{kind}/sums", f"{kind}/counts"]
