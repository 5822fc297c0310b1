"""Was this record trained on? Membership in the models of a (clustered) federation, by federations of one's own.

The adversary holds the records in question. It *rehearses*: it deals random parts of them to imagined clients, trains
the federation again and again as it believes that it is trained, and looks at each rehearsal from where it sits. So it
knows how a record's confidence is distributed when the record was in and when it was out, and compares what it really
saw. ``signals`` makes what it looks at; ``lira`` and ``rmia`` compare.

- LiRA (Carlini et al. 2022): confidences on the logit scale are taken to be normal, Algorithm 1 online and Section VI-D
  offline. Where we differ: variances are drawn to the one over all records by as much as few rehearsals deserve (the
  paper switches between the two), and several looks at one run are averaged on the logit scale.
- RMIA (Zarifzadeh, Liu and Shokri 2024): how many known non-members it dominates, Equations 2 to 4. Where we differ:
  only non-members of the same cluster are compared with, and ties, which a small population has many of, are broken by
  the ratio itself, as a larger population would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.attacks.base import Suspicions
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import InvalidInput, require
from coterie.learn.models.model import Model
from coterie.learn.params import Params, pick
from coterie.rng import Rng
from coterie.wire.messages import RESULT, TRAIN, Kind
from coterie.wire.view import ThreatModel, View

SURE = 1e-6  # losses below this are not told apart: float32 has no more digits there
FEW = 16  # rehearsals' worth of weight that the variance over all records has against a record's own
BLOCK = 4096  # records a forward pass

KNOWS = (
    "the records in question, how records are spread over clients, the architecture and how clients train; "
    "it trains federations of its own on random parts of these records"
)


class Seat(Enum):
    """From where it looks."""

    FINAL = "recipient of the final models"
    PUBLISHED = "curious client"
    UPLOADS = "curious server"

    def threat(self, client: int = 0) -> ThreatModel:
        """The final models are handed to clients; the holder is one, and looks at nothing else."""
        clients = frozenset() if self is Seat.UPLOADS else frozenset({client})
        return ThreatModel(self.value, server=self is Seat.UPLOADS, clients=clients, knows=KNOWS)


@dataclass(frozen=True)
class Asked:
    """The questions: was this row of the auxiliary examples trained on in this cluster, by this client?

    Whoever sees uploads is asked about clients, everybody else about clusters. ``known`` are rows that the adversary
    knows not to have been trained on: nothing is asked about them, and others are compared with them.
    """

    rows: Tensor  # (questions,)
    clusters: Tensor
    clients: Tensor
    known: Tensor  # bool

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Rehearsed:
    """What the same looks at rehearsals gave for the same questions; NaN where a rehearsal says nothing."""

    inside: Tensor = field(repr=False)  # (rehearsals, looks, questions): the record was trained on
    outside: Tensor = field(repr=False)  # and it was not

    def upto(self, looks: int) -> Rehearsed:
        return Rehearsed(self.inside[:, :looks], self.outside[:, :looks])

    def averaged(self) -> Rehearsed:
        """(rehearsals, questions)"""
        return Rehearsed(self.inside.nanmean(1), self.outside.nanmean(1))


# -- what is looked at ------------------------------------------------------------------------------------------------


def confidences(model: Model, models: Params, examples: Examples, rows: Tensor) -> Tensor:
    """(rows, slots): ln p / (1 - p) of the true label under each model, leaves (slots, ...)."""
    found = [model.slot_losses(models, examples.x[part], examples.y[part]) for part in rows.split(BLOCK)]
    losses = torch.cat(found).clamp_min(SURE)
    return -losses - torch.expm1(-losses).neg().log()


def given(seat: Seat, view: View, model: Model, examples: Examples, asked: Asked, rounds: Sequence[int]) -> Tensor:
    """(looks, questions, slots): under the models that were published in these rounds and in the end, or in the end
    alone; NaN for those that it was not given."""
    last = final(view, model, examples, asked)
    if seat is Seat.FINAL:
        return last
    there, nothing = view.rounds(), torch.full_like(last[0], torch.nan)  # not everybody is asked in every round
    looks = [_published(view, TRAIN, one, model, examples, asked) if one in there else nothing for one in rounds]
    looks.append(last[0])
    slots = max(look.shape[1] for look in looks)
    return torch.stack([pad(look, (0, slots - look.shape[1]), value=torch.nan) for look in looks])


def final(view: View, model: Model, examples: Examples, asked: Asked) -> Tensor:
    """(1, questions, slots): under the models as they were handed out in the end, or last seen."""
    kind = RESULT if view.rounds(RESULT) else TRAIN
    return _published(view, kind, view.last(kind), model, examples, asked).unsqueeze(0)


def _published(view: View, kind: Kind, round: int, model: Model, examples: Examples, asked: Asked) -> Tensor:
    received = view.received(round, kind)
    slots = int(max(int(received.slots.max()) if len(received.slots) else -1, int(asked.clusters.max()))) + 1
    found = torch.full((len(asked), slots), torch.nan)
    if received.values and len(received.slots):
        found[:, received.slots] = confidences(model, received.values, examples, asked.rows)
    return found


def uploaded(view: View, model: Model, examples: Examples, asked: Asked, rounds: Sequence[int]) -> Tensor:
    """(looks, questions): under what the questions' clients sent in these rounds; NaN where that cannot be read."""
    looks = []
    for round in rounds:
        found = torch.full((len(asked),), torch.nan)
        sent = view.sent(round) if view.has_sent(round) else None
        for position, client in enumerate(sent.ids.tolist() if sent is not None and sent.values else []):
            assert sent is not None
            here = (asked.clients == client).nonzero().flatten()
            own = pick(sent.values, position)  # leaves (slots or 1, ...)
            slots = next(iter(own.values())).shape[0]
            under = confidences(model, own, examples, asked.rows[here])
            found[here] = under[torch.arange(len(here)), asked.clusters[here] if slots > 1 else 0]
        looks.append(found)
    return torch.stack(looks)


def seen(seat: Seat, view: View, model: Model, examples: Examples, asked: Asked, rounds: Sequence[int]) -> Tensor:
    """(looks, questions): what this seat sees of each question; NaN where it can read nothing."""
    if seat is Seat.UPLOADS:
        return uploaded(view, model, examples, asked, rounds)
    return given(seat, view, model, examples, asked, rounds)[:, torch.arange(len(asked)), asked.clusters]


def matching(ours: Tensor, theirs: Tensor, labels: Tensor) -> Tensor:
    """For each of our slots the slot of a rehearsal that stands for it: the one that is as sure of each class.

    Both are (questions, slots); clusters are numbered otherwise in every run.
    """
    from scipy.optimize import linear_sum_assignment

    profiles = [torch.stack([side[labels == y].nanmean(0) for y in labels.unique()], 1) for side in (ours, theirs)]
    costs = torch.cdist(profiles[0], profiles[1]).nan_to_num(nan=1e6)  # (our slots, their slots)
    found = torch.zeros(len(costs), dtype=torch.int64)
    rows, columns = linear_sum_assignment(costs.numpy())
    found[rows] = torch.as_tensor(columns)
    spare = sorted(set(range(len(costs))) - set(rows.tolist()))
    found[spare] = costs[spare].argmin(1)
    return found


# -- what is made of it -----------------------------------------------------------------------------------------------


class Comparison(Protocol):
    """(questions,) scores from what was seen (questions,) and rehearsed (rehearsals, questions)."""

    def __call__(self, seen: Tensor, rehearsed: Rehearsed, asked: Asked) -> Tensor: ...


def lira(seen: Tensor, rehearsed: Rehearsed, asked: Asked) -> Tensor:
    """Online: ln N(seen; inside) / N(seen; outside). A record that was never in is taken to move as others do."""
    low, out_variance = _moments(rehearsed.outside)
    high, in_variance = _moments(rehearsed.inside)
    high = torch.where(high.isnan(), low + (high - low).nanmean(), high)

    def log_density(mean: Tensor, variance: Tensor) -> Tensor:
        return -((seen - mean) ** 2) / (2 * variance) - variance.log() / 2

    return log_density(high, in_variance) - log_density(low, out_variance)


def lira_offline(seen: Tensor, rehearsed: Rehearsed, asked: Asked) -> Tensor:
    """Deviations by which it lies above where it would lie outside: the order of the paper's 1 - Pr(Z > seen)."""
    low, variance = _moments(rehearsed.outside)
    return (seen - low) / variance.sqrt()


def rmia(seen: Tensor, rehearsed: Rehearsed, asked: Asked, gamma: float = 2.0) -> Tensor:
    """Equation 3: the share of known non-members z with (p(x | model) / p(x)) / (p(z | model) / p(z)) >= gamma.

    p(x) is the mean over rehearsals in which it was in and those in which it was out, each half (Equation 4).
    """
    inside, outside = (side.sigmoid().nanmean(0) for side in (rehearsed.inside, rehearsed.outside))
    usual = (torch.where(inside.isnan(), outside, inside) + outside) / 2
    ratios = seen.sigmoid() / usual
    scores = torch.full_like(ratios, torch.nan)
    for cluster in asked.clusters.unique():
        here = asked.clusters == cluster
        population = ratios[here & asked.known]
        population = population[~population.isnan()].sort().values
        below = torch.searchsorted(population, ratios[here] / gamma, right=True)
        scores[here] = (below + ratios[here] / (1 + ratios[here])) / (len(population) + 1)
    return scores


def _moments(side: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (questions,) over rehearsals; variances are drawn to the one over all questions."""
    counts = (~side.isnan()).sum(0)
    mean = side.nanmean(0)
    squares = ((side - mean) ** 2).nansum(0)
    freedom = (counts - 1).clamp_min(0)
    whole = squares.sum() / freedom.sum().clamp_min(1)
    variance = (squares + FEW * whole) / (freedom + FEW)
    return mean, variance.clamp_min(torch.finfo(side.dtype).tiny)


METHODS: dict[str, Comparison] = {"LiRA, online": lira, "LiRA, offline": lira_offline, "RMIA": rmia}


@dataclass(frozen=True)
class ShadowMembership:
    """One comparison from one seat. ``rounds`` are those that it looks at; for final models none are needed.

    ``auxiliary`` examples are the records in question, whatever has become of them.
    """

    seat: Seat
    model: Model
    asked: Asked = field(repr=False)
    rehearsed: Rehearsed = field(repr=False)
    rounds: tuple[int, ...] = ()
    method: str = "LiRA, online"
    client: int = 0  # the curious client's number

    def __post_init__(self) -> None:
        require(self.method in METHODS, "method", self.method, f"must be one of {list(METHODS)}")
        require(bool(self.rounds) or self.seat is Seat.FINAL, "rounds", self.rounds, "must be at least one")

    @property
    def threat(self) -> ThreatModel:
        return self.seat.threat(self.client)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        """One score a question, by its number. Who can read nothing of a question has nothing to say about it."""
        view.last(TRAIN)  # raises where nothing at all was seen
        return self.compare(seen(self.seat, view, self.model, auxiliary.whole(), self.asked, self.rounds))

    def compare(self, looks: Tensor) -> Suspicions:
        """From looks (looks, questions); fewer looks than there are rehearsed are taken to be the first ones."""
        if looks.shape[1] != len(self.asked):
            raise InvalidInput(f"looks={tuple(looks.shape)} must have one column a question ({len(self.asked)})")
        averaged = self.rehearsed.upto(len(looks)).averaged()
        scores = METHODS[self.method](looks.nanmean(0), averaged, self.asked)
        told = (~scores.isnan() & ~self.asked.known).nonzero().flatten().tolist()
        return Suspicions({number: _finite(float(scores[number])) for number in told})


def _finite(score: float) -> float:
    return math.copysign(1e30, score) if math.isinf(score) else score
