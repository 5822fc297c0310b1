"""A model whose arithmetic happens on another device; parameters and data come from the CPU and go back to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coterie.errors import InvalidInput
from coterie.learn.models.model import Batch, Model, ModuleModel, WholeSums, built
from coterie.learn.params import Params, map_leaves


def usable(device: str) -> torch.device:
    """The device of this name, if torch finds it here."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidInput(f"device={device!r} is none that torch knows; use 'cpu', 'cuda' or 'mps'") from error
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(found.type, False):
        raise InvalidInput(f"device={device!r} is not there; use 'cpu', or install torch for it")
    return found


@dataclass(frozen=True)
class OnDevice(Model):
    """Everything that a client computes runs there, one round's parameters being moved once; what leaves is on the CPU.

    A guard is handed CPU tensors, for its noise is made there; and the exact sums of DP-SGD are computed there, where
    their exactness was tried. So parameters travel in every step of these.
    """

    inner: Model
    device: torch.device

    def __post_init__(self) -> None:
        if isinstance(self.inner, ModuleModel):
            built(self.inner).to(self.device)

    def placed(self, leaves: Params) -> dict[str, Tensor]:
        return map_leaves(lambda leaf: leaf.to(self.device), leaves)

    def home(self, leaves: Params) -> dict[str, Tensor]:
        return map_leaves(lambda leaf: leaf.cpu(), leaves)

    def init(self, seed: int) -> dict[str, Tensor]:
        return self.inner.init(seed)

    def own(self) -> dict[str, Tensor] | None:
        return self.inner.own()

    def module(self, params: Params) -> nn.Module:
        return self.inner.module(params)

    def with_dropout(self, rate: float) -> Model:
        return replace(self, inner=self.inner.with_dropout(rate))

    @property
    def vectorised(self) -> bool:
        return True  # one process: a device is not shared by forking

    @property
    def random(self) -> bool:
        return self.inner.random

    def logits(self, params: Params, x: Tensor) -> Tensor:
        return self.inner.logits(self.placed(params), x.to(self.device)).cpu()

    def slot_losses(self, models: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.inner.slot_losses(self.placed(models), x.to(self.device), y.to(self.device)).cpu()

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        return self.inner.gradients(params, self._there(batch), clip)

    def step(self, params: Params, batch: Batch, lr: float) -> None:
        self.inner.step(params, self._there(batch), lr)

    def units(self, width: int, length: int) -> tuple[int, int]:
        return self.inner.units(width, length)

    def whole_gradients(self, params: Params, batch: Batch, clip: float, units: int, width: int) -> WholeSums:
        module = built(self.inner) if isinstance(self.inner, ModuleModel) else None
        if module is not None:
            module.cpu()
        found = self.inner.whole_gradients(self.home(params), batch, clip, units, width)
        if module is not None:
            module.to(self.device)
        return found

    def repeated(self, start: Params, batch: Batch, steps: int, lr: float) -> dict[str, Tensor] | None:
        found = self.inner.repeated(self.placed(start), self._there(batch), steps, lr)
        return None if found is None else self.home(found)

    def _there(self, batch: Batch) -> Batch:
        parts = {name: getattr(batch, name).to(self.device) for name in ("x", "y", "weights", "divisors", "active")}
        return replace(batch, **parts)
