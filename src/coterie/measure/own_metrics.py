"""A user's own measure of how well clients are served."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.errors import InvalidInput
from coterie.flow.cohort import evaluation_block
from coterie.flow.ring import AnyRing
from coterie.learn.params import pick
from coterie.learn.targets import targets
from coterie.measure.utility import served

Metric = Callable[[Tensor, Tensor], float]
"""From what a client predicts for its test rows, and the truth: class probabilities (rows, classes) and classes
(rows,); the labels' probabilities and the labels, or numbers and numbers, all (rows, width)."""


def mean_of(metric: Metric, ring: AnyRing, state: object) -> float:
    """The mean over the clients with test rows, each with the mixture of models that it predicts with."""
    federation, model = ring.federation, ring.model
    if model is None or not isinstance(federation, Federation):
        raise InvalidInput("metrics: a clustering predicts nothing; leave them out")
    models, choices = served(ring, state)
    kind = targets(federation.examples.y)
    values = []
    for client in federation.test.sizes.nonzero().flatten().tolist():
        rows = federation.test[client]
        mixed = torch.zeros(len(rows), federation.examples.classes)
        for slot in choices[client].nonzero().flatten().tolist():
            params, blocks = pick(models, slot), rows.split(evaluation_block(model))
            parts = [model.logits(params, federation.examples.x[block]) for block in blocks]
            mixed += choices[client, slot] * kind.predicted(torch.cat(parts))
        values.append(float(metric(mixed, federation.examples.y[rows])))
    return sum(values) / len(values) if values else float("nan")
