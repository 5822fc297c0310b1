"""What a client would have without the federation. A price is a price only of something that is worth having.

A *constant answer* is the commonest label of a client's own training rows; for a clustering, one centre for everybody.
*Training alone* is the same model, trained on a client's own rows for as many steps as the federation takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.data.federation import Federation, VerticalFederation
from coterie.flow.cohort import Cohort, evaluation_block, segment_mean
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Roots, Turn
from coterie.learn.models.model import Model
from coterie.learn.params import Params, map_leaves, pick
from coterie.learn.sgd import Local
from coterie.measure.intervals import Sample
from coterie.measure.utility import HIGHER_IS_BETTER
from coterie.protocols.base import AnyTrainer, Trainer
from coterie.rng import Rng

CONSTANT, ONE_CENTRE, ALONE = "a constant answer", "one centre for everybody", "training alone"
AT_ONCE = 1 << 26  # bytes of models that are trained side by side


def without_federation(
    protocol: object, federation: Federation | VerticalFederation, model: Model | None, seed: int
) -> dict[str, Tensor]:
    """By name, what each client would score, (clients,); NaN for one without test rows."""
    if isinstance(federation, VerticalFederation):
        return {}  # nobody has a whole record without the others
    if model is None:
        return {ONE_CENTRE: one_centre(federation)}
    found = {CONSTANT: constant(federation)}
    if isinstance(protocol, Trainer):
        found[ALONE] = trained_alone(model, federation, protocol, Rng.seeded(seed).child("alone"))
    return found


def level(measure: str, without: Sequence[float]) -> Sample:
    """What clients would have on average; NaN where none has anything to be served on."""
    known = [value for value in without if not math.isnan(value)]
    return Sample.average(known or [math.nan], 0.0, _most(measure))


def gain(measure: str, served: Sequence[float], without: Sequence[float]) -> Sample:
    """How much better each client is served than without the federation, client by client; positive is better."""
    sign = 1.0 if HIGHER_IS_BETTER[measure] else -1.0
    pairs = zip(served, without, strict=True)
    better = [sign * (here - there) for here, there in pairs if not math.isnan(here - there)]
    return Sample.average(better or [math.nan], -_most(measure), _most(measure))


def _most(measure: str) -> float:
    return 1.0 if HIGHER_IS_BETTER[measure] else math.inf


def constant(federation: Federation) -> Tensor:
    examples = federation.examples
    found = torch.full((federation.clients,), torch.nan)
    for client in range(federation.clients):
        held, tested = (examples.y[shards[client]] for shards in (federation.train, federation.test))
        if len(tested):
            answer = torch.bincount(held, minlength=examples.classes).argmax()
            found[client] = (tested == answer).float().mean()
    return found


def one_centre(federation: Federation) -> Tensor:
    shards = federation.test if len(federation.test.rows) else federation.train
    points = federation.examples.x.flatten(1)
    distances = (points[shards.rows] - points[federation.train.rows].mean(0)).square().sum(1)
    return torch.where(shards.sizes > 0, segment_mean(distances, shards), torch.nan)


def trained_alone(model: Model, federation: Federation, trainer: AnyTrainer, rng: Rng) -> Tensor:
    size = 4 * sum(leaf.numel() for leaf in model.init(0).values())
    clients = torch.arange(federation.clients)
    parts = clients.split(max(1, AT_ONCE // size))
    return torch.cat([_alone(model, federation, trainer, part, rng) for part in parts])


def _alone(model: Model, federation: Federation, trainer: AnyTrainer, clients: Tensor, rng: Rng) -> Tensor:
    shards = federation.train.pick(clients.tolist())
    start = model.init(rng.child("init").seed())
    copies = map_leaves(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), start)
    cohort = Cohort(clients, Turn(0, Roots.same(rng)), federation.examples, shards, model)
    trained = cohort.train(copies, _in_one_go(trainer.local, trainer.rounds), ClientGuard())
    return torch.stack([_accuracy(model, pick(trained, at), federation, int(one)) for at, one in enumerate(clients)])


def _in_one_go(local: Local, rounds: int) -> Local:
    rounds = max(rounds, 1)
    if local.epochs is not None:
        return replace(local, epochs=local.epochs * rounds, poisson=False)
    return replace(local, steps=local.steps * rounds, poisson=False)


def _accuracy(model: Model, params: Params, federation: Federation, client: int) -> Tensor:
    rows, examples = federation.test[client], federation.examples
    if not len(rows):
        return torch.tensor(torch.nan)
    right = [
        model.logits(params, examples.x[block]).argmax(1) == examples.y[block]
        for block in rows.split(evaluation_block(model))
    ]
    return torch.cat(right).float().mean()
