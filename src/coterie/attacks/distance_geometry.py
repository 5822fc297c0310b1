"""Columns from distances: what a curious server reads out of vertical k-means (announced in paper 003, not spelt out).

Per step the server has squared distances D (records, k) of all records from k centres. It made the assignments, so that
the centres are A X for a matrix A (k, records) that it knows. With J for centring and X for centred records,

    -1/2 J D J = X (J A X)' = G B',    where G = X X' and B = J A.

Centring by rows removes whatever is the same for all centres, such as the subtraction of the minimum. All steps side by
side give E = G B'. With U for the left singular vectors of E, G = U W U' and (B U) W = E' U, which least squares solve
for W: exactly if the centres span the columns. So the records are known up to a rotation, and with a few known ones up
to nothing (Procrustes). Nystroem's G = E (B E)^+ E' is the same on paper, but B E has the squares of E's singular
values, and of float32 messages the smaller half of them is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from coterie.attacks.registration import few_known, registered
from coterie.attacks.regression import TOLERANCE, best_fitted, fitted
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.rng import Rng
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.view import ThreatModel, View

SEED, DISTANCES, RESULT, OPENED = "seed", "distances", "result", "distances/opened"
LEAST = "least"  # the exchange in which a party opens a sum for the server
RECORD = "record"  # the tag of known records: which ones they are
CURIOUS_SERVER = ThreatModel("curious server", server=True, knows="some records, all their columns")
CONGRUENT = 0.01  # relative: what rounding leaves of distances is far below, what noise leaves far above
POPULATION = "population"  # the part of the auxiliary data with records of others, who are not in the table


class Seen(Enum):
    """What the attack reads."""

    PARTY = "a party's distances"
    TOTALS = "totals over the parties"
    SHAPES = "the shapes of blinded totals"
    ASSIGNMENTS = "all assignments"
    LAST = "the last assignments"


@dataclass(frozen=True)
class Recovered:
    """The columns of every record as the attack reads them; the rank of what it saw; who was known."""

    columns: Tensor  # (records, columns)
    known: Tensor  # (known records,)
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Distances:
    """One step's distances, and from which records their centres are made."""

    squared: Tensor  # (records, k)
    weights: Tensor | None  # (k, records): A; None: the parties drew the centres, and nobody else knows them


@dataclass(frozen=True)
class DistanceGeometry:
    """Reads ``seen``, of one ``party`` where that is what is seen, and aligns by the known records.

    Where what was seen keeps the distances between known records, it is turned to them (Giannella, Liu and Kargupta
    2013): the part of a record in the span of the known ones is found, and the rest by public ``bounds``. Where it does
    not, under noise or if the centres do not span the columns, more known records than columns (and one) are enough for
    a fit without constraints. With a sample of others from the same population (``POPULATION``), no record need be
    known (``registration``).
    """

    seen: Seen = Seen.TOTALS
    party: int | None = None
    bounds: tuple[float, float] | None = None  # of every column, where they are public
    grid: tuple[float, ...] | None = None  # a column: of what its values are multiples, where that is public (pixels)
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def __post_init__(self) -> None:
        fits = (self.party is not None) == (self.seen is Seen.PARTY)
        require(fits, "party", self.party, f"must be given for {Seen.PARTY.value!r}, and for nothing else")

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Recovered:
        rows, columns, others = _held(auxiliary)
        if self.seen not in (Seen.PARTY, Seen.TOTALS):
            require(len(rows) >= 2, "known records", len(rows), "must be at least 2: one alone aligns nothing")
            features = centred(self._features(view))
            return Recovered(best_fitted(features, rows, columns), rows, (_rank(features),))
        stacked, made = embedding(steps_of(view, self.party))
        points, rank = located(stacked, made, columns.shape[1])
        if len(others):
            return Recovered(registered(points, others, rows, columns), rows, (rank,))
        require(len(rows) >= 2, "known records", len(rows), f"must be at least 2, or give others as {POPULATION!r}")
        if congruent(points[rows], columns):
            grid = None if self.grid is None else torch.tensor(self.grid, dtype=torch.float64)
            return Recovered(few_known(points, rows, columns, self.bounds, grid), rows, (rank,))
        if len(rows) > points.shape[1] + 1:
            return Recovered(fitted(low_rank(stacked, columns.shape[1]), rows, columns), rows, (rank,))
        return Recovered(few_known(points, rows, columns), rows, (rank,))

    def _features(self, view: View) -> Tensor:
        if self.seen is Seen.SHAPES:
            return shapes(view)
        return one_hot(assignments(view), only_last=self.seen is Seen.LAST)


def _held(auxiliary: Auxiliary) -> tuple[Tensor, Tensor, Tensor]:
    """Which records are known, their columns, and others' (none unless they are given)."""
    others = torch.empty(0, 0, dtype=torch.float64)
    if POPULATION in auxiliary.parts:
        others = auxiliary.part(POPULATION).x.flatten(1).double()
        if auxiliary.examples is None:
            return torch.empty(0, dtype=torch.int64), others[:0], others
    known = auxiliary.whole()
    if RECORD not in known.tags:
        raise InvalidInput(f"tags of the known records={sorted(known.tags)} must have {RECORD!r}: which ones they are")
    return known.tags[RECORD], known.x.flatten(1).double(), others


# -- what the view holds -------------------------------------------------------------------------------------------


def steps_of(view: View, party: int | None = None) -> list[Distances]:
    """The distances of every step, of one party or summed over all, with what the server knows of the centres."""
    return [step for _, step in party_steps(view, party)]


def party_steps(view: View, party: int | None = None) -> list[tuple[int, Distances]]:
    """The same, each with the round in which it was sent; all that was sent to find a start is one step."""
    steps, records, seeds = [], [], []
    for round in view.rounds(SEED):
        if (squared := _squared(view, round, SEED, party)) is not None:
            seeds.append(squared)
            records.append(view.received(round, SEED).values["records"][0])
    if len(seeds) > 1:  # the same record's number is the same in all: they centre as one step
        steps.append((view.rounds(SEED)[-1], Distances(torch.cat(seeds, 1), _on(torch.cat(records), len(seeds[0])))))
    weights: Tensor | None = None
    for round in view.rounds(DISTANCES):
        told = view.received(round, DISTANCES).values
        squared = _squared(view, round, DISTANCES, party)
        if squared is None:
            raise NotPermitted(f"{view.threat.name} sees nothing that it can read of the distances of round {round}")
        if "labels" in told:
            weights = _means(told["labels"][0].long(), squared.shape[1], weights)
        else:
            weights = _on(told["records"][0], len(squared)) if told["records"].shape[1] else None
        steps.append((round, Distances(squared, weights)))
    if not steps:
        raise NotPermitted(
            f"{view.threat.name} saw nothing of kind {DISTANCES!r}; it saw {list(map(str, view.kinds()))}"
        )
    return steps


def _squared(view: View, round: int, kind: str, party: int | None) -> Tensor | None:
    """(records, k): in the open, or as the server's guard opened it."""
    if SHARED_KEY in view.threat.keys and round in view.rounds(f"{kind}/{LEAST}"):
        return _decrypted(view, round, kind)
    opened = f"{kind}/opened"
    if view.has_sent(round, opened):
        if party is not None:
            raise NotPermitted(f"{view.threat.name} sees totals alone: nothing that party {party} sent can be read")
        return view.sent(round, opened).values["distances"][0, 0].double()
    sent = view.sent(round, kind)
    if not sent.values:
        return None
    leaf = sent.values["distances"][:, 0].double()
    if party is None:
        return leaf.sum(0)
    ids = sent.ids.tolist()
    if party not in ids:
        raise NotPermitted(f"{view.threat.name} sees nothing that party {party} sent; it sees {ids}")
    return leaf[ids.index(party)]


def _decrypted(view: View, round: int, kind: str) -> Tensor:
    """(records, k): the sum that a party was given to open, by whoever has its key."""
    total = view.received(round, f"{kind}/{LEAST}").published.sealed[SEALED].open(view.key(SHARED_KEY))
    records = view.received(view.last(RESULT), RESULT).values["labels"].shape[1]
    return total.view(records, -1).double()


def shapes(view: View) -> Tensor:
    """(records, numbers): what blinding leaves. Each record's totals in order of size, from 0 to 1, in every step.

    And what fresh blinding lets through over steps: scales are drawn anew from a known range, so the middle of what
    they made of a record's range tells how wide that is; where an offset happened to be small, the least total shows.
    """
    found, ranges, least = [], [], []
    for step in steps_of(view):
        low, high = step.squared.min(1, keepdim=True).values, step.squared.max(1, keepdim=True).values
        wide = (high - low).clamp_min(1e-300)
        found.append(((step.squared - low) / wide).sort(1).values)
        ranges.append(wide.log2())
        least.append((low.abs() / wide + 1e-12).log2())
    over = torch.cat(ranges, 1)
    found.append((over.amax(1, keepdim=True) + over.amin(1, keepdim=True)) / 2)
    found.append(torch.cat(least, 1).amin(1, keepdim=True))
    return torch.cat(found, 1)


def assignments(view: View) -> list[Tensor]:
    """(records,) each: the labels of every step, the last ones last."""
    told = [view.received(round, DISTANCES).values for round in view.rounds(DISTANCES)]
    labels = [one["labels"][0].long() for one in told if "labels" in one]
    return [*labels, view.received(view.last(RESULT), RESULT).values["labels"][0].long()]


def _on(chosen: Tensor, records: int) -> Tensor:
    """A of centres that are records themselves."""
    weights = torch.zeros(len(chosen), records, dtype=torch.float64)
    weights[torch.arange(len(chosen)), chosen] = 1.0
    return weights


def _means(labels: Tensor, clusters: int, before: Tensor | None) -> Tensor | None:
    """A of centres that are means; one without records stays where it was."""
    share = torch.zeros(clusters, len(labels), dtype=torch.float64)
    share[labels, torch.arange(len(labels))] = 1.0
    heads = share.sum(1, keepdim=True)
    if before is None and bool((heads == 0).any()):
        return None
    means = share / heads.clamp_min(1)
    return means if before is None else torch.where(heads > 0, means, before)


def one_hot(labels: Sequence[Tensor], only_last: bool) -> Tensor:
    chosen = labels[-1:] if only_last else labels
    return torch.cat([torch.nn.functional.one_hot(one).double() for one in chosen], 1)


# -- geometry ------------------------------------------------------------------------------------------------------


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def centred_both(squared: Tensor) -> Tensor:
    """-1/2 J D J: by rows and columns."""
    both = squared - squared.mean(1, keepdim=True)
    return -0.5 * (both - both.mean(0))


def embedding(steps: Sequence[Distances]) -> tuple[Tensor, Tensor]:
    """E (records, m) of all steps, and B (m', records) of those whose centres are known, which are E's last columns."""
    stacked = torch.cat([centred_both(step.squared) for step in steps], 1)
    made = [step.weights - step.weights.mean(0) for step in steps if step.weights is not None]
    require(len(made) > 0, "steps whose centres are known", 0, "must be at least one; record the run from its start")
    return stacked, torch.cat(made)


def _rank(features: Tensor) -> int:
    values = torch.linalg.svdvals(features)
    return int((values > TOLERANCE * values.max().clamp_min(1e-300)).sum())


def located(stacked: Tensor, made: Tensor, most: int) -> tuple[Tensor, int]:
    """(records, at most so many): the records up to a rotation, and the rank of what was seen."""
    every, sizes, _ = torch.linalg.svd(stacked, full_matrices=False)
    rank = int((sizes > TOLERANCE * sizes.max().clamp_min(1e-300)).sum())
    basis = every[:, : max(1, min(rank, most))]
    products = stacked[:, -len(made) :].T @ basis  # (m', rank)
    gram = torch.linalg.lstsq(made @ basis, products, driver="gelsd").solution
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    points: Tensor = basis @ (vectors * values.clamp_min(0).sqrt())
    return points, rank


def congruent(points: Tensor, columns: Tensor) -> bool:
    """Whether known records are as far from each other among the points as they truly are."""
    seen, true = centred(points), centred(columns)
    products = true @ true.T
    return float((seen @ seen.T - products).norm()) <= CONGRUENT * float(products.norm())


def low_rank(stacked: Tensor, rank: int) -> Tensor:
    """(records, rank): the directions that all steps share. Fresh noise averages out over them, memoised noise not."""
    values, vectors = torch.linalg.eigh(stacked.T @ stacked)
    directions: Tensor = stacked @ vectors[:, values.argsort(descending=True)[:rank]]
    return directions
