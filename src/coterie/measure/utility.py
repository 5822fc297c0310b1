"""How well each client is served by the models that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.data.federation import Federation, Shards
from coterie.flow.cohort import evaluation_block
from coterie.flow.guard import Turn
from coterie.flow.protocol import Protocol, Server
from coterie.flow.simulate import Simulator
from coterie.learn.models.model import Model
from coterie.learn.params import Params, pick

ROWS_AT_ONCE = 200_000


@dataclass(frozen=True)
class Scores:
    """Test results a client; NaN for one without test data."""

    accuracy: Tensor  # (clients,)
    choices: Tensor  # (clients, slots): with which weights it mixes the models

    @property
    def mean(self) -> float:
        return float(self.accuracy.nanmean())

    @property
    def sizes(self) -> list[int]:
        """How many clients use each slot most."""
        return torch.bincount(self.choices.argmax(1), minlength=self.choices.shape[1]).tolist()


def evaluate(simulator: Simulator, protocol: Protocol[Any], state: Any, server: Server | None = None) -> Scores:
    """Every client's accuracy on its own test rows, as it would predict now.

    With the server, the models pass its ``publish`` guard on their way, as in a round.
    """
    federation = simulator.federation
    turn = Turn(getattr(state, "round", 0), simulator.rng, "evaluate")
    published = protocol.result(state)
    if server is not None:
        published = server.guard.publish(published, Turn(turn.round, server.rng, turn.kind))
    models = simulator.guard.receive(published, turn)
    everyone = torch.arange(federation.clients)
    cohort = simulator.cohort(everyone, turn, protocol.sees(state, everyone))
    cohort.schedules = {}  # a client predicts for all its data
    choices = protocol.choose(models, cohort)  # (clients, slots)
    return Scores(accuracy(simulator.model, models, choices, federation), choices)


def accuracy(model: Model, models: Params, choices: Tensor, federation: Federation) -> Tensor:
    """(clients,): the share of test rows that each client's mixture of models gets right."""
    test = federation.test
    rows, places = test.rows.unique(return_inverse=True)  # clients of a group share their test rows
    owners = torch.repeat_interleave(torch.arange(federation.clients), test.offsets.diff())
    chances = _chances(model, models, federation, rows, _used(choices, owners, places, len(rows)))
    truth = federation.examples.y[rows]
    result = torch.full((federation.clients,), torch.nan)
    for start, end in _spans(test):
        offsets = test.offsets[start : end + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        here, whose = places[span], owners[span]
        mixed = torch.einsum("rsc,rs->rc", chances[here], choices[whose])
        right = (mixed.argmax(1) == truth[here]).float()
        totals = torch.zeros(end - start).index_add_(0, whose - start, right)
        result[start:end] = torch.where(offsets.diff() > 0, totals / offsets.diff(), torch.nan)
    return result


def _used(choices: Tensor, owners: Tensor, places: Tensor, rows: int) -> Tensor:
    """(distinct rows, slots): whether anybody predicts this row with this model. Hard choices use one in ``slots``."""
    used = torch.zeros(rows, choices.shape[1], dtype=torch.bool)
    for slot in range(choices.shape[1]):
        used[places[choices[owners, slot] != 0], slot] = True
    return used


def _chances(model: Model, models: Params, federation: Federation, rows: Tensor, used: Tensor) -> Tensor:
    """(distinct rows, slots, classes), zero where a model is not used."""
    slots = used.shape[1]
    chances = torch.zeros(len(rows), slots, federation.examples.classes)
    for slot in range(slots):
        params = pick(models, slot)
        for block in used[:, slot].nonzero().flatten().split(evaluation_block(model)):
            chances[block, slot] = model.logits(params, federation.examples.x[rows[block]]).softmax(1)
    return chances


def _spans(shards: Shards) -> list[tuple[int, int]]:
    """Ranges of clients whose rows together stay under a bound."""
    spans, start = [], 0
    for client in range(len(shards)):
        if int(shards.offsets[client + 1] - shards.offsets[start]) > ROWS_AT_ONCE and client > start:
            spans.append((start, client))
            start = client
    return [*spans, (start, len(shards))]
