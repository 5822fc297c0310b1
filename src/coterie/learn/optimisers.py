"""Optimisers of many clients at once, in torch's own kernels: each client has its own moments and count of steps.

They work on whatever gradient arrives. After DP-SGD's noise they are post-processing, and cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from coterie.errors import require
from coterie.learn.params import Params, map_leaves

SGD, ADAM, ADAMW = "sgd", "adam", "adamw"
EPSILON = 1e-8  # Adam's, as in torch
VECTOR = 16  # numbers that the kernels take at a time; less at the end


@dataclass(frozen=True)
class Decay:
    """How the learning rate falls from round to round; rounds count from 0.

    ``step``: times ``factor`` every ``every`` rounds, or once at each round of ``at``. ``exponential``: times
    ``factor`` every round (Sattler's notebook: 0.99). ``cosine``: down to ``least`` over ``over`` rounds.
    ``linear``: less ``by`` every round, not below ``least`` (paper 004: 1e-4 less 1e-7 a round).
    """

    shape: Literal["constant", "step", "exponential", "cosine", "linear"] = "constant"
    factor: float = 0.1
    every: int = 50
    at: tuple[int, ...] = ()
    over: int = 100
    by: float = 0.0
    least: float = 0.0

    def __post_init__(self) -> None:
        shapes = ("constant", "step", "exponential", "cosine", "linear")
        require(self.shape in shapes, "shape", self.shape, f"must be one of {', '.join(shapes)}")
        require(0 < self.factor <= 1, "factor", self.factor, "must lie in (0, 1]")
        require(self.every >= 1, "every", self.every, "must be at least 1")
        require(self.over >= 1, "over", self.over, "must be at least 1")
        require(self.by >= 0, "by", self.by, "must be at least 0")
        require(self.least >= 0, "least", self.least, "must be at least 0")

    def rate(self, first: float, round: int) -> float:
        """The learning rate of a round, if it was ``first`` in round 0."""
        match self.shape:
            case "step":
                falls = sum(round >= place for place in self.at) if self.at else round // self.every
                return first * self.factor**falls
            case "exponential":
                return first * float(self.factor**round)
            case "cosine":
                return self.least + (first - self.least) * (1 + math.cos(math.pi * min(1.0, round / self.over))) / 2
            case "linear":
                return max(self.least, first - self.by * round)
            case _:
                return first


@dataclass
class Optimiser:
    """What one local training of a group of clients keeps between its steps; leaves (clients, ...).

    Momentum and Adam's moments start at zero, which is torch's rule. A client that is not active in a step keeps its
    moments and its count, as if it had been alone.
    """

    kind: str
    lr: float
    momentum: float
    weight_decay: float
    betas: tuple[float, float]
    moments: dict[str, dict[str, Tensor]]  # by purpose, then by leaf
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))  # (clients,): steps taken

    @staticmethod
    def moments_of(kind: str, momentum: float) -> tuple[str, ...]:
        """What it keeps a parameter."""
        if kind == SGD:
            return ("velocity",) if momentum else ()
        return ("mean", "square")

    @staticmethod
    def begin(
        kind: str, lr: float, momentum: float, weight_decay: float, betas: tuple[float, float], start: Params
    ) -> Optimiser:
        names = Optimiser.moments_of(kind, momentum)
        moments = {name: map_leaves(torch.zeros_like, start) for name in names}
        clients = len(next(iter(start.values())))
        return Optimiser(kind, lr, momentum, weight_decay, betas, moments, torch.zeros(clients))

    def step(self, params: Params, grads: Params, active: Tensor) -> None:
        """Move the parameters in place, in one call for all clients that are active.

        A kernel is given a whole number of vectors, or one client's leaf: at the end of a tensor that is neither, a
        number's rounding would depend on where it lies, and so on who else is there.
        """
        clients = active.nonzero().flatten().tolist()
        alike = len(clients) == len(active) and bool((self.counts == self.counts[0]).all())
        joint = [name for name, leaf in params.items() if alike and leaf[0].numel() % VECTOR == 0]
        apart = [name for name in params if name not in joint]

        def cut(leaves: Params) -> list[Tensor]:
            parts = [leaves[name].unbind() for name in apart]
            return [*(leaves[name] for name in joint), *(part[client] for part in parts for client in clients)]

        solid = map_leaves(lambda leaf: leaf.contiguous(), grads)  # the kernels read memory in a row
        if self.kind == SGD:
            self._sgd(cut(params), cut(solid), cut(self.moments["velocity"]) if self.momentum else [])
        else:
            whose = [*(0 for _ in joint), *(client for _ in apart for client in clients)]
            counts = (self.counts[whose] + 1).to(next(iter(params.values())).device).unbind()
            self._adam(cut(params), cut(solid), cut(self.moments["mean"]), cut(self.moments["square"]), counts)
        self.counts += active

    def _sgd(self, params: list[Tensor], grads: list[Tensor], velocities: list[Tensor]) -> None:
        torch._fused_sgd_(
            params,
            grads,
            velocities,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def _adam(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        counts: tuple[Tensor, ...],
    ) -> None:
        step = torch._fused_adamw_ if self.kind == ADAMW else torch._fused_adam_
        step(
            params,
            grads,
            means,
            squares,
            [],
            counts,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )
