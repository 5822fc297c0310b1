"""Local training: stochastic gradient descent over (clients, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from coterie.errors import Diverged, require, require_count
from coterie.learn.models.model import Batch, Model
from coterie.learn.optimisers import ADAM, ADAMW, SGD, Decay, Optimiser
from coterie.learn.params import Owned, Params

MOST_STEPS = 10**7


@dataclass(frozen=True)
class Local:
    """What a client does in one round: a number of steps, or of passes over its data.

    The optimiser's moments begin anew in every round, since a client may be asked again only after many rounds, from
    another model. With ``carry`` a client keeps them, as in Sattler's notebook and in FedEM's code; they are then part
    of what it remembers, and of every checkpoint. Weight decay is torch's: with ``adamw`` decoupled, else added to the
    gradient, after the client's guard.
    """

    steps: int = 5
    epochs: int | None = None  # if set, replaces steps
    batch_size: int = 50
    lr: float = 0.01
    poisson: bool = False  # each example enters a batch by its own coin, as DP-SGD's accountant assumes
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)  # of adam and adamw
    schedule: Decay = field(default_factory=Decay)  # of the learning rate, by round
    carry: bool = False  # moments stay with the client from round to round
    whole: bool = False  # every step (or epoch) is one step on all of a client's data, whatever batch_size is

    def __post_init__(self) -> None:
        require_count("steps", self.steps, 1, MOST_STEPS)
        require(
            self.epochs is None or self.epochs >= 1,
            "epochs",
            self.epochs,
            "must be at least 1, or None for steps",
        )
        require(self.batch_size >= 1, "batch_size", self.batch_size, "must be at least 1")
        require(self.lr > 0, "lr", self.lr, "must be positive")
        require(
            not (self.poisson and self.epochs),
            "epochs",
            self.epochs,
            "have no meaning with poisson; set steps",
        )
        require(not (self.whole and self.poisson), "whole", self.whole, "leaves nothing to sample; drop poisson")
        known = (SGD, ADAM, ADAMW)
        require(self.optimizer in known, "optimizer", self.optimizer, f"must be one of {', '.join(known)}")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must lie in [0, 1)")
        require(
            self.momentum == 0 or self.optimizer == SGD, "momentum", self.momentum, "is sgd's; set betas for adam's"
        )
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be at least 0")
        require(all(0 <= beta < 1 for beta in self.betas), "betas", self.betas, "must lie in [0, 1)")

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.schedule.rate(self.lr, round)

    def shape(self, size: int) -> tuple[int, int]:
        """How many steps a client with so many records takes in a round, and on how many of them each (at most)."""
        width = size if self.whole else min(self.batch_size, size)
        if self.epochs is None or self.whole:
            return self.epochs or self.steps, width
        return self.epochs * -(-size // max(width, 1)), width

    @property
    def moments(self) -> tuple[str, ...]:
        """What the optimiser keeps a parameter."""
        return Optimiser.moments_of(self.optimizer, self.momentum)

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient times the rate, and nothing is kept from step to step."""
        return self.optimizer == SGD and not self.momentum and not self.weight_decay

    def begin(self, start: Params, round: int = 0) -> Optimiser | None:
        """The optimiser of a training from these models (clients, ...); None for plain SGD, which keeps nothing."""
        if self.plain:
            return None
        return Optimiser.begin(self.optimizer, self.rate(round), self.momentum, self.weight_decay, self.betas, start)


GradientHook = Callable[[dict[str, Tensor], Params, int, Batch], Params]
"""(gradients, parameters, step, batch) -> gradients: the client's guard point inside a local step."""

Gradients = Callable[[Params, int, Batch], dict[str, Tensor]]
"""(parameters, step, batch) -> gradients, in place of the model's own: clipped, added up and noised."""


def descend(
    model: Model,
    start: Params,
    batches: Iterable[Batch],
    lr: float,
    *,
    clip: float | None = None,
    hook: GradientHook | None = None,
    proximal: float = 0.0,
    gradients: Gradients | None = None,
    optimiser: Optimiser | None = None,
    may_diverge: bool = False,
) -> dict[str, Tensor]:
    """The parameters (clients, ...) after these batches; NaN or infinite ones raise, unless they may be.

    ``start`` is used up if it is ``Owned``. A client that is not active stands still in that step. ``proximal`` is
    FedProx's mu: it pulls towards where the round started. ``gradients`` stands in for the model's own; whatever
    follows it is post-processing. Without an optimiser the step is plain SGD's.
    """
    anchor = model.placed(_copied(start)) if proximal else {}
    params = dict(model.placed(dict(start) if isinstance(start, Owned) else _copied(start)))
    plain = hook is None and gradients is None and optimiser is None and clip is None and not proximal
    if optimiser is not None:
        optimiser.moments = {name: dict(model.placed(leaves)) for name, leaves in optimiser.moments.items()}
    with torch.no_grad():
        for step, batch in enumerate(batches):
            if plain:
                model.step(params, batch, lr)
                continue
            with torch.enable_grad():
                if gradients is None:
                    grads = model.gradients(params, batch, clip)
                else:
                    grads = dict(model.placed(gradients(model.home(params), step, batch)))
            for name, start_leaf in anchor.items():
                grads[name].add_(params[name] - start_leaf, alpha=proximal)
            guarded: Params = grads
            if hook is not None:
                guarded = model.placed(hook(dict(model.home(grads)), model.home(params), step, batch))
            if optimiser is not None:
                optimiser.step(params, guarded, batch.active)
                continue
            idle = not bool(batch.active.all())
            for name, leaf in params.items():
                grad = guarded[name]
                active = batch.active.to(grad.device).view(-1, *[1] * (grad.dim() - 1))
                leaf.sub_(grad * active if idle else grad, alpha=lr)
    params = dict(model.home(params))
    if optimiser is not None:
        optimiser.moments = {name: dict(model.home(leaves)) for name, leaves in optimiser.moments.items()}
    return params if may_diverge else checked(params, lr)


def _copied(start: Params) -> dict[str, Tensor]:
    return {name: leaf.clone(memory_format=torch.contiguous_format) for name, leaf in start.items()}


def checked(params: dict[str, Tensor], lr: float) -> dict[str, Tensor]:
    """The same, if all of it is finite."""
    for name, leaf in params.items():
        if not bool(torch.isfinite(leaf.sum())):
            raise Diverged(
                f"leaf {name!r} became NaN or infinite in local training; lower lr={lr}, check the data, or, "
                "if a client may send what it likes, aggregate robustly (Median, NormClip)"
            )
    return params
