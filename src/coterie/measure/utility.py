"""How well each client is served by what it was given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.data.federation import Federation, Shards, VerticalFederation
from coterie.errors import InvalidInput
from coterie.flow.cohort import evaluation_block, segment_mean
from coterie.flow.ring import AnyRing
from coterie.learn.clusters.columns import means_by_label
from coterie.learn.clusters.lloyd import nearest, squared_distances
from coterie.learn.models.model import Model
from coterie.learn.params import Params, pick
from coterie.learn.targets import CLASSES, MULTI_LABEL, NUMBERS, targets
from coterie.measure.intervals import Sample
from coterie.protocols.clusterings.vertical_kmeans import LABELS

ROWS_AT_ONCE = 200_000
ACCURACY, F1, ERROR, COST = "accuracy", "F1 of labels", "mean squared error", "k-means cost"
HIGHER_IS_BETTER = {ACCURACY: True, F1: True, ERROR: False, COST: False}
MEASURES = {CLASSES: ACCURACY, MULTI_LABEL: F1, NUMBERS: ERROR}


def utility_in(row: Mapping[str, float]) -> tuple[str, float] | None:
    """Of what was measured in a round, how well it served, and by which measure; None where nothing says so."""
    return next(((name, float(row[name])) for name in HIGHER_IS_BETTER if name in row), None)


@dataclass(frozen=True)
class Scores:
    """Results a client on its own test data; NaN for one without."""

    values: Tensor  # (clients,)
    choices: Tensor  # (clients, slots): with which weights it mixes the models
    measure: str = ACCURACY
    joint: bool = False  # all clients have one score between them, which is one unit

    @property
    def accuracy(self) -> Tensor:
        return self.values

    @property
    def mean(self) -> float:
        return float(self.values.nanmean())

    def sample(self) -> Sample:
        """The mean over the clients that have something to be served on; what they have between them counts once."""
        served = self.values[~self.values.isnan()][: 1 if self.joint else None]
        most = 1.0 if HIGHER_IS_BETTER[self.measure] else math.inf
        return replace(Sample.average(served.tolist(), 0.0, most), mean=self.mean)

    @property
    def sizes(self) -> list[int]:
        """How many clients use each slot most."""
        return torch.bincount(self.choices.argmax(1), minlength=self.choices.shape[1]).tolist()


def evaluate(ring: AnyRing, state: object) -> Scores:
    """What every client would have of the federation now: the only evaluation there is.

    Of a network, its accuracy on the client's own test rows (F1 where an example may have several labels, the mean
    squared error where numbers are predicted); of a clustering, the mean squared distance of the client's
    points from the nearest centre, or of records from the mean of their cluster where parties hold columns of them
    (from the nearest centre, where these are told).
    What is published passes both sides' guards on its way, as in a round.
    """
    federation = ring.federation
    if isinstance(federation, VerticalFederation):
        found = ring.models(state)
        if LABELS in found:
            cost = _cost_of_columns(found[LABELS][0].long(), federation)
        elif "centres" in found:
            points, centres = torch.cat(federation.parts, 1).float(), found["centres"][0]
            cost = float(squared_distances(points, centres, nearest(points, centres)).double().mean())
        else:
            raise InvalidInput(
                "federation=columns has no rows of its own to score, and this gives no labels or centres"
            )
        return Scores(torch.full((federation.clients,), cost), torch.ones(federation.clients, 1), COST, joint=True)
    models, choices = served(ring, state)
    if ring.model is None:
        return Scores(_costs(models["centres"][0], ring.panel), choices, COST)
    return Scores(scored(ring.model, models, choices, ring.panel), choices, measure_of(ring.panel))


def measure_of(federation: Federation) -> str:
    """By which clients of a network are scored: the targets decide."""
    return MEASURES[targets(federation.examples.y)]


def served(ring: AnyRing, state: object) -> tuple[Params, Tensor]:
    """The models as clients have them, and with which weights (clients, slots) each would mix them."""
    models, cohort = ring.models(state), ring.everyone(state)
    cohort.schedules = {}  # a client predicts for all its data
    return models, ring.protocol.choose(models, cohort)


def _costs(centres: Tensor, federation: Federation) -> Tensor:
    """(clients,): of the test rows where there are any, else of what was clustered."""
    shards = federation.test if len(federation.test.rows) else federation.train
    points = federation.examples.x[shards.rows].flatten(1)
    distances = squared_distances(points, centres, nearest(points, centres))
    return torch.where(shards.sizes > 0, segment_mean(distances, shards), torch.nan)


def _cost_of_columns(labels: Tensor, federation: VerticalFederation) -> float:
    """The mean squared distance of a record from the mean of its cluster: what all parties have between them."""
    total = 0.0
    for own in federation.parts:
        centres = means_by_label(own, labels, own.mean(0).expand(int(labels.max()) + 1, -1))
        total += float(squared_distances(own, centres, labels).double().mean())
    return total


def scored(model: Model, models: Params, choices: Tensor, federation: Federation) -> Tensor:
    """(clients,): how well each client's mixture of models does on its test rows, by the measure of the targets."""
    test = federation.test
    rows, places = test.rows.unique(return_inverse=True)  # clients of a group share their test rows
    owners = torch.repeat_interleave(torch.arange(federation.clients), test.offsets.diff())
    answers = _answers(model, models, federation, rows, _used(choices, owners, places, len(rows)))
    truth = federation.examples.y[rows]
    result = torch.full((federation.clients,), torch.nan)
    for start, end in _spans(test):
        offsets = test.offsets[start : end + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        here, whose = places[span], owners[span]
        mixed = torch.einsum("rsc,rs->rc", answers[here], choices[whose])
        parts = tally(mixed, truth[here])
        totals = torch.zeros(end - start, 2).index_add_(0, whose - start, parts)
        result[start:end] = torch.where(offsets.diff() > 0, _quotient(totals), torch.nan)
    return result


def tally(predicted: Tensor, y: Tensor) -> Tensor:
    """(rows, 2): what each row adds to the two sides of the fraction that the measure of these targets is."""
    kind = targets(y)
    if kind is CLASSES:
        above = (predicted.argmax(1) == y).float()
    elif kind is NUMBERS:
        above = kind.losses(predicted, y)
    else:
        said = predicted > 0.5
        both = 2 * (said & y).sum(1)
        return torch.stack([both, said.sum(1) + y.sum(1)], 1).float()
    return torch.stack([above, torch.ones_like(above)], 1)


def _quotient(totals: Tensor) -> Tensor:
    """Where there is nothing to find and nothing was said (no label at all), all of it is right."""
    return torch.where(totals[:, 1] > 0, totals[:, 0] / totals[:, 1], 1.0)


def _used(choices: Tensor, owners: Tensor, places: Tensor, rows: int) -> Tensor:
    """(distinct rows, slots): whether anybody predicts this row with this model. Hard choices use one in ``slots``."""
    used = torch.zeros(rows, choices.shape[1], dtype=torch.bool)
    for slot in range(choices.shape[1]):
        used[places[choices[owners, slot] != 0], slot] = True
    return used


def _answers(model: Model, models: Params, federation: Federation, rows: Tensor, used: Tensor) -> Tensor:
    """(distinct rows, slots, classes), zero where a model is not used."""
    slots, kind = used.shape[1], targets(federation.examples.y)
    answers = torch.zeros(len(rows), slots, federation.examples.classes)
    for slot in range(slots):
        params = pick(models, slot)
        for block in used[:, slot].nonzero().flatten().split(evaluation_block(model)):
            answers[block, slot] = kind.predicted(model.logits(params, federation.examples.x[rows[block]]))
    return answers


def _spans(shards: Shards) -> list[tuple[int, int]]:
    """Ranges of clients whose rows together stay under a bound."""
    spans, start = [], 0
    for client in range(len(shards)):
        if int(shards.offsets[client + 1] - shards.offsets[start]) > ROWS_AT_ONCE and client > start:
            spans.append((start, client))
            start = client
    return [*spans, (start, len(shards))]
