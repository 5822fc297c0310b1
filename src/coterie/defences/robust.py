"""Robust aggregation: what a client that sends well-formed nonsense can do to the models of the others is bounded.

What is malformed (NaN, odd shapes, weights beyond its data) never gets this far: every answer is checked when it
comes in (``coterie.flow.admission``). All of this looks at single answers, so it has no place where answers are sealed.
It acts on the models that clients send for training, slot by slot, so within clusters; and on nothing else, such as
the votes on a start, in which a client has one vote.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.errors import require
from coterie.flow.ask import Replies, Sums
from coterie.flow.guard import Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, Params, flatten
from coterie.learn.robust import krum_scores, trimmed_mean
from coterie.wire.messages import TRAIN, Contributions, Down

CLIPPED, LEFT_OUT = "clipped", "left out as unlike the others"
"""Metrics: the share of models that were moved too far, and of those that Krum does not take."""


class Robust(Defence):
    """What these have in common: the server reads answers one by one."""

    @property
    def reads(self) -> bool:
        return True

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.trains else "it bounds what a client does to models, and this protocol trains none"


# -- norms ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormClip(Robust):
    """No client moves a model by more than ``bound`` (L2, over all parameters): longer moves are shortened.

    It bounds the harm and stacks with the others. A bound near the norm of honest updates costs nothing; ``history``
    has the metric "clipped", the share of models that were shortened.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        require(self.bound > 0, "bound", self.bound, "must be positive; math.inf clips nothing")

    @property
    def server(self) -> ClippingServer:
        return ClippingServer(self.bound)


@dataclass(frozen=True)
class ClippingServer(ServerGuard):
    bound: float

    def screen(self, sent: Contributions, asked: Down, turn: Turn) -> Contributions:
        given = asked.published.values
        if asked.kind != TRAIN or math.isinf(self.bound) or given.keys() != sent.values.keys():
            return sent
        starts = {name: _start(given[name], leaf, _slots(sent, asked)) for name, leaf in sent.values.items()}
        squares = [(leaf.double() - starts[name]).flatten(2).square().sum(2) for name, leaf in sent.values.items()]
        scale = (self.bound / torch.stack(squares).sum(0).sqrt().clamp_min(1e-300)).clamp_max(1)  # (clients, models)
        turn.metrics.note(CLIPPED, float((scale < 1).double().mean()), len(sent))
        return replace(sent, values={name: _shortened(leaf, starts[name], scale) for name, leaf in sent.values.items()})


def _slots(sent: Contributions, asked: Down) -> Tensor:
    """(clients,): from which of the published models each began, by what it was given or says."""
    if asked.sees is None:
        return sent.membership.argmax(1)
    place = {client: row for row, client in enumerate(asked.clients.tolist())}
    sees = asked.sees[[place[client] for client in sent.ids.tolist()]]
    return (sent.membership * sees).argmax(1)


def _start(given: Tensor, leaf: Tensor, slots: Tensor) -> Tensor:
    """(clients or 1, models, ...): what the models in this leaf (clients, models, ...) began with."""
    return given[slots].unsqueeze(1) if leaf.shape[1] == 1 else given.unsqueeze(0)


def _shortened(leaf: Tensor, start: Tensor, scale: Tensor) -> Tensor:
    factor = scale.view(*scale.shape, *[1] * (leaf.dim() - 2))
    moved = (start + (leaf.double() - start) * factor).to(leaf.dtype)
    return torch.where(factor < 1, moved, leaf)  # what is short enough stays as it is, to the bit


# -- means ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RobustServer(ServerGuard):
    """Adds up so that dividing by the weights gives a robust mean. It holds all of a round's answers in memory."""

    @abstractmethod
    def centre(self, rows: Tensor, weights: Tensor, turn: Turn) -> Tensor:
        """(columns,) of the members' models (members, columns)."""

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        if turn.kind != TRAIN:
            return Sums.over(replies)
        sent = Replies(iter(replies)).whole()
        if sent is None:
            return Sums.nothing()
        shares = (sent.membership * sent.weights.unsqueeze(1)).double()  # (clients, slots)
        sums = [self._of_slot(sent.values, shares[:, slot], slot, turn) for slot in range(shares.shape[1])]
        values = {name: torch.stack([one[name] for one in sums]) for name in sent.values}
        return Sums(values, shares.sum(0), (shares > 0).sum(0))

    def _of_slot(self, values: Params, weights: Tensor, slot: int, turn: Turn) -> Params:
        own = {name: leaf[:, 0 if leaf.shape[1] == 1 else slot] for name, leaf in values.items()}
        here = weights > 0
        layout = Layout.of(own, leading=1)
        if not bool(here.any()):
            return layout.unflatten(torch.zeros(layout.length, dtype=torch.float64))
        rows = flatten(own, leading=1)[here]
        return layout.unflatten(self.centre(rows, weights[here], turn) * weights.sum())


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """Coordinate by coordinate, the mean without the ``share`` of the weight at either end (Yin et al. 2018).

    It bears bad clients that have less than that share of a cluster's weight. 0 is the plain mean.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.share <= 0.5, "share", self.share, "must lie in [0, 0.5]; at 0.5 it is the median")

    @property
    def server(self) -> ServerGuard:
        return TrimmingServer(self.share) if self.share > 0 else ServerGuard()


@dataclass(frozen=True)
class Median(Robust):
    """Coordinate by coordinate, the weighted median (Yin et al. 2018): bears anything below half of a cluster."""

    @property
    def server(self) -> ServerGuard:
        return TrimmingServer(0.5)


@dataclass(frozen=True)
class TrimmingServer(RobustServer):
    share: float

    def centre(self, rows: Tensor, weights: Tensor, turn: Turn) -> Tensor:
        return trimmed_mean(rows, weights, self.share)


@dataclass(frozen=True)
class Krum(Robust):
    """Within a cluster, the mean of the models that are nearest to those of the others (Blanchard et al. 2017).

    ``bad`` is how many of a cluster's may be bad, and ``keep`` how many are taken: 1 is the original's Krum, and all
    but the bad ones (None) its multi-Krum. It takes 2 bad + 3 clients: a smaller cluster takes the median.
    """

    bad: int = 1
    keep: int | None = None

    def __post_init__(self) -> None:
        require(self.bad >= 0, "bad", self.bad, "must be at least 0; at 0 it is the plain mean")
        require(self.keep is None or self.keep >= 1, "keep", self.keep, "must be at least 1, or None")

    @property
    def server(self) -> ServerGuard:
        return KrumServer(self.bad, self.keep) if self.bad > 0 else ServerGuard()


@dataclass(frozen=True)
class KrumServer(RobustServer):
    bad: int
    keep: int | None

    def centre(self, rows: Tensor, weights: Tensor, turn: Turn) -> Tensor:
        members = len(rows)
        if members < 2 * self.bad + 3:
            return trimmed_mean(rows, weights, 0.5)
        keep = min(members, members - self.bad if self.keep is None else self.keep)
        kept = krum_scores(rows, self.bad).argsort(stable=True)[:keep]
        turn.metrics.note(LEFT_OUT, 1 - keep / members, members)
        mean: Tensor = weights[kept] @ rows[kept].double() / weights[kept].sum()
        return mean
