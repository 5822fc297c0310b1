"""Placing clients by all that is known of their clusters: the strongest A1 that we have.

Six things tell of a client's true cluster. Its identity set holds it. Where sets are drawn for each true cluster,
two different sets stand for two different clusters, so that a client which moves is found by *distinct
representatives*. Clients that move tend to leave the same cluster for the same other one, so that their sets together
say which (*moves*). A large cluster is in more sets than its decoys account for, so that sets together say how large
clusters are where they differ (*frequencies*). Whoever knows it besides knows which members of the sets are too many
(*sizes*). And whoever can open sums knows how many of a round's clients are truly in each cluster, while everybody
knows who took part: counts over rounds are linear equations in whole numbers, solved here as an *integer program*. A
client that joins, leaves or is left out changes a count, and is placed by it. Nothing here looks at a clock: what an
adversary finds must not depend on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.stats import chi2

from coterie.attacks.base import Attributions
from coterie.attacks.profiling import CURIOUS_SERVER, identity_sets, published_sizes
from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted, require
from coterie.rng import Rng
from coterie.wire.messages import TRAIN, Kind
from coterie.wire.view import ThreatModel, View

Beliefs = dict[int, dict[int, float]]
"""For each client, how likely each cluster is its own."""

STEPS = 100  # of an estimate that goes over itself
SURE = 0.95  # that clusters are of different sizes, before it is made use of
LEAST = 3  # members without whom a cluster is left out of a round, and its size is an earlier round's
WHOLE = 240  # pairs of client and cluster up to which whole numbers are asked for; beyond, shares of them
NODES = 100  # of the search for them, at most
COUNTED = Kind(TRAIN.name, part="tally")  # who was counted, where clients count themselves


@dataclass(frozen=True)
class Placing:
    """A1 at its strongest. ``preferences`` is what each cluster stands for, which a server that set the task up knows.

    ``draws`` solutions of the integer program vote, each the best for other random weights; a client that all
    solutions place alike is placed for certain. Clients that change their cluster make equations wrong; the program
    breaks as few of them as it can. ``sizes`` is how many clients each cluster has, where the server knows
    or assumes it.
    """

    preferences: Mapping[int, int]
    threat: ThreatModel = CURIOUS_SERVER
    upto: int | None = None  # the last round that is looked at; None: all
    draws: int = 5
    sizes: Mapping[int, float] | None = None

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Attributions:
        labels: dict[Hashable, int] = {}
        for client, chances in self.beliefs(view, rng).items():
            most = max(chances.values())
            likeliest = sorted(cluster for cluster, chance in chances.items() if chance > most - 1e-9)
            choice = rng.child("client", client, "guess").numpy().integers(len(likeliest))
            labels[client] = self.preferences[likeliest[choice]]
        return Attributions(labels)

    def beliefs(self, view: View, rng: Rng) -> Beliefs:
        upto = max(view.rounds(), default=0) if self.upto is None else self.upto
        rounds = [round for round in view.rounds() if round <= upto and view.has_sent(round)]
        require(len(rounds) > 0, "rounds", 0, f"were seen up to round {self.upto}; run at least one")
        shown: dict[int, list[frozenset[int]]] = {}  # each client's sets, in order
        for round in rounds:
            for client, clusters in identity_sets(view, round):
                shown.setdefault(client, []).append(clusters)
        beliefs = after_moves({client: representatives(sets) for client, sets in shown.items()}, shown)
        counts = [count for round in rounds for count in counted(view, round)]
        if counts:
            return self._solved(beliefs, counts, rng)
        return by_frequency(beliefs) if self.sizes is None else of_sizes(beliefs, self.sizes)

    def _solved(self, beliefs: Beliefs, counts: Sequence[Count], rng: Rng) -> Beliefs:
        program = _Program.of(beliefs, counts)
        votes = np.sum([program.solve(rng.child("weights", draw)) for draw in range(self.draws)], axis=0)
        found: Beliefs = {client: {} for client in beliefs}
        for (client, cluster), vote in zip(program.cells, (votes + program.chances).tolist(), strict=True):
            found[client][cluster] = vote / (1 + self.draws)
        return found


def representatives(shown: Sequence[frozenset[int]]) -> dict[int, float]:
    """How likely each cluster of the newest set is the true one, given all sets that the client has shown.

    Different sets stand for different clusters. Every member of a set would have given it with the same probability, so
    all systems of distinct representatives are equally likely.
    """
    newest = shown[-1]
    others = [clusters for clusters in dict.fromkeys(shown) if clusters != newest]
    ways = {cluster: float(_systems(others, frozenset({cluster}))) for cluster in newest}
    total = sum(ways.values())
    if total == 0:  # sets that no lifelong rule gives
        return dict.fromkeys(newest, 1 / len(newest))
    return {cluster: way / total for cluster, way in ways.items()}


def _systems(sets: Sequence[frozenset[int]], taken: frozenset[int]) -> int:
    """In how many ways these sets can have different members, none of them taken."""
    if not sets:
        return 1
    return sum(_systems(sets[1:], taken | {cluster}) for cluster in sets[0] - taken)


def after_moves(beliefs: Beliefs, shown: Mapping[int, Sequence[frozenset[int]]]) -> Beliefs:
    """The same, given that clients which moved went the same few ways: how often each way was gone is estimated from
    all of them together (expectation maximisation), and says of each which way it went."""
    before = {client: _last_other(sets) for client, sets in shown.items()}
    movers = [client for client, clusters in before.items() if clusters]
    if not movers:
        return beliefs
    width = 1 + max(cluster for sets in shown.values() for clusters in sets for cluster in clusters)
    ways = np.zeros((len(movers), width, width))  # of each mover: where from, where to
    for at, client in enumerate(movers):
        for goal, chance in beliefs[client].items():
            origins = sorted(before[client] - {goal})
            ways[at, origins, goal] = chance / max(1, len(origins))
    found = ways = _normalised(ways, (1, 2))
    for _ in range(STEPS):
        found = _normalised(ways * found.mean(0), (1, 2))
    goals = found.sum(1)  # (movers, clusters)
    placed = {
        client: {cluster: float(row[cluster]) for cluster in beliefs[client]}
        for client, row in zip(movers, goals, strict=True)
        if row.sum() > 0
    }
    return {**beliefs, **placed}


def _last_other(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """The set before the newest; empty if there was no other."""
    return next((clusters for clusters in reversed(sets) if clusters != sets[-1]), frozenset())


def by_frequency(beliefs: Beliefs) -> Beliefs:
    """The same where clusters are not alike in size: which they are is estimated from all sets together (expectation
    maximisation), and believed where equal sizes would hardly give such sets (a test of the likelihood ratio)."""
    clusters, table = _table(beliefs)
    found = table
    for _ in range(STEPS):
        found = _normalised(table * found.mean(0), 1)
    gained = 2 * np.log(len(clusters) * (table @ found.mean(0))).sum()
    return _believed(beliefs, clusters, found) if gained > chi2.ppf(SURE, max(1, len(clusters) - 1)) else beliefs


def of_sizes(beliefs: Beliefs, sizes: Mapping[int, float]) -> Beliefs:
    """The same where so many of these clients are in each cluster: scaled until they are (Sinkhorn)."""
    clusters, table = _table(beliefs)
    due = np.array([float(sizes.get(cluster, 0.0)) for cluster in clusters])
    for _ in range(STEPS):
        scaled = _normalised(table * np.divide(due, table.sum(0), out=np.zeros_like(due), where=table.sum(0) > 0), 1)
        table = np.where(scaled.sum(1, keepdims=True) > 0, scaled, table)  # a client that fits nowhere stays as it was
    return _believed(beliefs, clusters, table)


def _table(beliefs: Beliefs) -> tuple[list[int], NDArray[np.float64]]:
    """The clusters that anybody may be in, and how likely each client is in each, (clients, clusters)."""
    clusters = sorted({cluster for chances in beliefs.values() for cluster in chances})
    rows = [[chances.get(cluster, 0.0) for cluster in clusters] for chances in beliefs.values()]
    return clusters, np.array(rows)


def _believed(beliefs: Beliefs, clusters: Sequence[int], table: NDArray[np.float64]) -> Beliefs:
    return {
        client: {cluster: float(row[clusters.index(cluster)]) for cluster in beliefs[client]}
        for client, row in zip(beliefs, table, strict=True)
    }


def _normalised(table: NDArray[np.float64], axes: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Chances that add up to 1 over these axes, or are all 0."""
    total = table.sum(axes, keepdims=True)
    return np.asarray(np.divide(table, total, out=np.zeros_like(table), where=total > 0))


@dataclass(frozen=True)
class Count:
    """So many of these clients are truly in this cluster."""

    clients: frozenset[int]
    cluster: int
    size: float


def counted(view: View, round: int) -> list[Count]:
    """The equations of one round, where this adversary can read the sizes."""
    sizes = published_sizes(view, round)
    if sizes is None:
        return []
    try:
        present = set(view.sent(round, COUNTED).ids.tolist())
    except NotPermitted:
        present = set(view.sent(round).ids.tolist())
    sets = {client: clusters for client, clusters in identity_sets(view, round) if client in present}
    if sum(sizes.values()) > len(present):  # they count something else: everybody is in every sum, or weights
        return []
    found = []
    for cluster, size in sizes.items():
        members = frozenset(client for client, clusters in sets.items() if cluster in clusters)
        if len(members) >= LEAST:
            found.append(Count(members, cluster, size))
    return found


@dataclass(frozen=True)
class _Program:
    """Whole numbers, one for each client and cluster that it may be in, and for each count by how much it is missed."""

    cells: Sequence[tuple[int, int]]  # (client, cluster)
    chances: NDArray[np.float64]  # (cells,)
    rules: LinearConstraint
    missed: int  # twice the number of counts

    @staticmethod
    def of(beliefs: Beliefs, counts: Sequence[Count]) -> _Program:
        cells = [(client, cluster) for client, chances in beliefs.items() for cluster in chances]
        place = {cell: at for at, cell in enumerate(cells)}
        rows: list[tuple[int, int, float]] = []
        for at, (client, chances) in enumerate(beliefs.items()):
            rows += [(at, place[client, cluster], 1.0) for cluster in chances]
        for at, count in enumerate(counts):
            row, slack = len(beliefs) + at, len(cells) + 2 * at
            known = [place[client, count.cluster] for client in count.clients if (client, count.cluster) in place]
            rows += [(row, cell, 1.0) for cell in known]
            rows += [(row, slack, 1.0), (row, slack + 1, -1.0)]
        height, width = len(beliefs) + len(counts), len(cells) + 2 * len(counts)
        i, j, value = (np.array(part) for part in zip(*rows, strict=True))
        right = np.array([1.0] * len(beliefs) + [count.size for count in counts])
        rules = LinearConstraint(coo_array((value, (i, j)), shape=(height, width)).tocsr(), right, right)
        chances_of = np.array([chance for one in beliefs.values() for chance in one.values()])
        return _Program(cells, chances_of, rules, 2 * len(counts))

    def solve(self, rng: Rng) -> NDArray[np.float64]:
        """(cells,): which of them are true in one solution, or how far where whole numbers are too hard to find."""
        cells = len(self.cells)
        weights = rng.numpy().random(cells) - np.log(np.maximum(self.chances, 1e-9))
        costs = np.concatenate([weights, np.full(self.missed, 1000.0)])
        whole = np.concatenate([np.ones(cells), np.zeros(self.missed)])
        bounds = Bounds(0, np.concatenate([np.ones(cells), np.full(self.missed, np.inf)]))
        options = {"node_limit": NODES, "mip_rel_gap": 1e-3}
        found = None
        if cells <= WHOLE:
            found = milp(costs, integrality=whole, bounds=bounds, constraints=self.rules, options=options).x
        if found is None:
            found = milp(costs, bounds=bounds, constraints=self.rules).x  # there always is one: counts may be missed
        return np.asarray(np.round(found[:cells], 6))
