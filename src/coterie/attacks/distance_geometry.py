"""Columns from distances: what a curious server reads out of vertical k-means (announced in paper 003, not spelt out).

Per step the server has squared distances D (records, k) of all records from k centres. It made the assignments, so that
the centres are A X for a matrix A (k, records) that it knows. With J for centring and X for centred records,

    -1/2 J D J = X (J A X)' = G B',    where G = X X' and B = J A.

Centring by rows removes whatever is the same for all centres, such as the subtraction of the minimum. All steps side by
side give E = G B'. Then B E = B G B', and G = E (B E)^+ E' (Nystroem), exactly if the centres span the columns. So the
records are known up to a rotation, and with a few known ones up to nothing (Procrustes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from coterie.attacks.registration import few_known, registered, spanned
from coterie.attacks.regression import TOLERANCE, best_fitted, fitted
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

SEED, DISTANCES, RESULT, OPENED = "seed", "distances", "result", "distances/opened"
RECORD = "record"  # the tag of known records: which ones they are
CURIOUS_SERVER = ThreatModel("curious server", server=True, knows="some records, all their columns")
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

    More known records than columns (and one) are enough for a fit without constraints, which noise spoils least. With
    fewer, or with columns in which the known ones do not differ, distances are preserved (Giannella, Liu and Kargupta
    2013): the part of a record in the span of the known ones is found, and the rest by public ``bounds``. With a sample
    of others from the same population (``POPULATION``), no record need be known (``registration``).
    """

    seen: Seen = Seen.TOTALS
    party: int | None = None
    bounds: tuple[float, float] | None = None  # of every column, where they are public
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
        stacked, middle = embedding(steps_of(view, self.party))
        rank = _rank(middle)
        most = min(rank, columns.shape[1])
        if spanned(columns) >= most and len(rows) > most + 1:
            return Recovered(fitted(low_rank(stacked, columns.shape[1]), rows, columns), rows, (rank,))
        points = nystroem(stacked, middle, most)
        if len(others):
            return Recovered(registered(points, others, rows, columns), rows, (rank,))
        require(len(rows) >= 2, "known records", len(rows), f"must be at least 2, or give others as {POPULATION!r}")
        return Recovered(few_known(points, rows, columns, self.bounds), rows, (rank,))

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
    """E (records, m) of all steps, and B E (m', m') of those whose centres are known."""
    parts, rows = [], []
    for step in steps:
        parts.append(centred_both(step.squared))
        if step.weights is not None:
            rows.append((step.weights - step.weights.mean(0), parts[-1]))
    stacked = torch.cat(parts, 1)
    require(len(rows) > 0, "steps whose centres are known", 0, "must be at least one; record the run from its start")
    known = torch.cat([part for _, part in rows], 1)
    middle = torch.cat([centres @ known for centres, _ in rows])
    return stacked, (middle + middle.T) / 2


def _rank(symmetric_or_features: Tensor) -> int:
    values = torch.linalg.svdvals(symmetric_or_features)
    return int((values > TOLERANCE * values.max().clamp_min(1e-300)).sum())


def nystroem(stacked: Tensor, middle: Tensor, rank: int) -> Tensor:
    """(records, rank): the records up to a rotation."""
    values, vectors = torch.linalg.eigh(middle)
    top = values.argsort(descending=True)[:rank]
    kept = values[top].clamp_min(TOLERANCE * float(values.max().clamp_min(1e-300)))
    points: Tensor = stacked[:, -len(middle) :] @ (vectors[:, top] / kept.sqrt())
    return points


def low_rank(stacked: Tensor, rank: int) -> Tensor:
    """(records, rank): the directions that all steps share. Fresh noise averages out over them, memoised noise not."""
    values, vectors = torch.linalg.eigh(stacked.T @ stacked)
    directions: Tensor = stacked @ vectors[:, values.argsort(descending=True)[:rank]]
    return directions
