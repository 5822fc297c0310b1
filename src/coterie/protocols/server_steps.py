"""Optimisers of the server: what the clients' mean asks for is a direction, not yet the next model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.errors import require
from coterie.learn.params import Params

KINDS = ("momentum", "adam", "yogi")
CLOSE = 1e-3  # of its parts: how far from a solution of an equation rounding may lead


@dataclass(frozen=True)
class ServerStep:
    """FedAvgM (Hsu et al. 2019), FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2), slot by slot.

    With D the clients' mean minus the model: ``momentum`` moves by lr times m <- beta m + D; ``adam`` and ``yogi`` by
    lr m / (sqrt(v) + tau) with m <- beta m + (1 - beta) D, and v as in Reddi et al., which starts at tau squared. There
    is no correction of the first steps' bias, as in that paper. A slot that nobody trained stands still.
    """

    kind: Literal["momentum", "adam", "yogi"] = "momentum"
    lr: float = 1.0
    beta: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "kind", self.kind, f"must be one of {', '.join(KINDS)}")
        require(self.lr > 0, "lr", self.lr, "must be positive")
        for name in ("beta", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must lie in [0, 1)")
        require(self.tau > 0, "tau", self.tau, "must be positive")

    def step(
        self, models: Params, mean: Params, moments: Mapping[str, Tensor], trained: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The next models and what is to be remembered, from the models, the clients' mean and what was.

        ``trained`` (slots,) bool tells the slots that somebody contributed to.
        """
        values, kept = {}, {}
        for name, leaf in models.items():
            here = trained.view(-1, *[1] * (leaf.dim() - 1))
            towards = mean[name] - leaf
            old = moments.get(f"first/{name}", torch.zeros_like(leaf))
            first = torch.where(
                here, self.beta * old + (1.0 if self.kind == "momentum" else 1 - self.beta) * towards, old
            )
            kept[f"first/{name}"] = move = first
            if self.kind != "momentum":
                old = moments.get(f"second/{name}", torch.full_like(leaf, self.tau**2))
                second = torch.where(here, self._second(old, towards.square()), old)
                kept[f"second/{name}"] = second
                move = first / (second.sqrt() + self.tau)
            values[name] = torch.where(here, leaf + self.lr * move, leaf)
        return values, kept

    def undone(self, moved: Params, moments: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inverse, of one model: by how much the clients' mean differed from it, and what is remembered then.

        Anybody who has followed a model's moves from the start can compute it: a server's optimiser hides nothing.
        """
        means, kept = {}, {}
        for name, leaf in moved.items():
            move = leaf.double() / self.lr
            old = moments.get(f"first/{name}", torch.zeros_like(move))
            if self.kind == "momentum":
                kept[f"first/{name}"], towards = move, move - self.beta * old
            else:
                before = moments.get(f"second/{name}", torch.full_like(move, self.tau**2)).double()
                towards = self._sought(move, self.beta * old, before)
                second = self._second(before, towards.square())
                kept[f"first/{name}"] = self.beta * old + (1 - self.beta) * towards
                kept[f"second/{name}"] = second
            means[name] = towards.to(leaf.dtype)
        return means, kept

    def _sought(self, move: Tensor, kept: Tensor, before: Tensor) -> Tensor:
        """The least D with ``move (sqrt(v) + tau) = kept + (1 - beta) D``, where v follows from D and its former value.

        Squared, that is quadratic, for v is so in D. (An iteration for v diverges where updates are large.) Where
        rounding leaves no solution, v is taken as it was.
        """
        part, rest, share = 1 - self.beta, kept - move * self.tau, 1 - self.beta2
        guess = (move * before.sqrt() - rest) / part
        best = torch.full_like(move, torch.inf)
        for scale, slope in ((self.beta2, share),) if self.kind == "adam" else ((1.0, share), (1.0, -share)):
            top, half = part**2 - slope * move.square(), rest * part
            bottom = rest.square() - scale * move.square() * before
            root = half + torch.where(half < 0, -1.0, 1.0) * (half.square() - top * bottom).clamp_min(0).sqrt()
            for found in (-root / top, -bottom / root):  # both without a difference of what is nearly equal
                second = self._second(before, found.square())
                asked, given = move * (second.clamp_min(0).sqrt() + self.tau), part * found
                fits = (asked - kept - given).abs() <= CLOSE * (
                    asked.abs() + given.abs()
                )  # not so for what is no number
                best = torch.where(fits & (found.abs() < best.abs()), found, best)
        return torch.where(best.isfinite(), best, guess)

    def _second(self, before: Tensor, squared: Tensor) -> Tensor:
        if self.kind == "yogi":
            return before - (1 - self.beta2) * squared * torch.sign(before - squared)
        return self.beta2 * before + (1 - self.beta2) * squared
