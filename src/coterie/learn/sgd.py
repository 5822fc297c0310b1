"""Local training: stochastic gradient descent over (clients, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import Diverged, require
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params


@dataclass(frozen=True)
class Local:
    """What a client does in one round: a number of steps, or of passes over its data."""

    steps: int = 5
    epochs: int | None = None  # if set, replaces steps
    batch_size: int = 50
    lr: float = 0.01
    poisson: bool = False  # each example enters a batch by its own coin, as DP-SGD's accountant assumes

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")
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
) -> dict[str, Tensor]:
    """The parameters (clients, ...) after these batches.

    A client that is not active stands still in that step. ``proximal`` is FedProx's mu: it pulls towards where the
    round started. ``gradients`` stands in for the model's own; whatever follows it is post-processing.
    """
    params = {name: leaf.contiguous() for name, leaf in start.items()}  # the caller's own until the first step
    with torch.no_grad():
        for step, batch in enumerate(batches):
            with torch.enable_grad():
                grads = model.gradients(params, batch, clip) if gradients is None else gradients(params, step, batch)
            if proximal:
                for name, grad in grads.items():
                    grad.add_(params[name] - start[name], alpha=proximal)
            guarded = grads if hook is None else hook(grads, params, step, batch)
            idle = not bool(batch.active.all())
            for name, leaf in params.items():
                grad = guarded[name]
                if idle:
                    grad = grad * batch.active.view(-1, *[1] * (grad.dim() - 1))
                if step == 0:
                    params[name] = torch.sub(leaf, grad, alpha=lr)
                else:
                    leaf.sub_(grad, alpha=lr)
    check_finite(params, lr)
    return params


def check_finite(params: Params, lr: float) -> None:
    for name, leaf in params.items():
        if not bool(torch.isfinite(leaf.sum())):
            raise Diverged(f"leaf {name!r} became NaN or infinite in local training; lower lr={lr} or check the data")
