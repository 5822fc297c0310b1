"""Multi-layer perceptrons whose clients are computed together, with batched matrix products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from coterie.errors import require
from coterie.learn.models.model import Batch, Model, seeded
from coterie.learn.params import Params


@dataclass(frozen=True)
class Dense(Model):
    """Fully connected layers with ReLU between them; the input is flattened."""

    sizes: tuple[int, ...]
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(len(self.sizes) >= 2, "sizes", self.sizes, "must name the input and the output at least")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must lie in [0, 1)")

    @property
    def vectorised(self) -> bool:
        return True

    @property
    def random(self) -> bool:
        return self.dropout > 0

    def with_dropout(self, rate: float) -> Dense:
        return replace(self, dropout=rate)

    def init(self, seed: int) -> dict[str, Tensor]:
        with seeded(seed):
            layers = [nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(self.sizes)]
        return {
            f"{index}.{name}": leaf.detach()
            for index, layer in enumerate(layers)
            for name, leaf in layer.named_parameters()
        }

    def logits(self, params: Params, x: Tensor) -> Tensor:
        hidden = self._features(x, 1)
        for index in range(self.depth):
            hidden = torch.addmm(params[f"{index}.bias"], hidden, params[f"{index}.weight"].T)
            if index < self.depth - 1:
                hidden = hidden.relu_()
        return hidden

    def _features(self, x: Tensor, leading: int) -> Tensor:
        """The examples as vectors, behind this many axes."""
        flat = x.flatten(leading)
        require(
            flat.shape[-1] == self.sizes[0],
            "features of an example",
            flat.shape[-1],
            f"must be {self.sizes[0]}, the first of the model's sizes={self.sizes}; give the model the data's shape",
        )
        return flat

    @property
    def depth(self) -> int:
        return len(self.sizes) - 1

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        inputs, masks, logits = self._forward(params, batch)
        deltas = self._backward(params, batch, inputs, masks, logits)
        if clip is not None:
            scales = clip_factors(inputs, deltas, batch.weights, clip)  # (clients, batch)
            deltas = [delta.mul_(scales.unsqueeze(-1)) for delta in deltas]
        grads: dict[str, Tensor] = {}
        for index, (given, delta) in enumerate(zip(inputs, deltas, strict=True)):
            grads[f"{index}.weight"] = torch.bmm(delta.transpose(1, 2), given)
            grads[f"{index}.bias"] = delta.sum(1)
        return grads

    def _forward(self, params: Params, batch: Batch) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        """Each layer's input (clients, batch, width), the dropout masks, and the logits."""
        hidden = self._features(batch.x, 2)
        inputs: list[Tensor] = []
        masks: list[Tensor | None] = []
        for index in range(self.depth):
            inputs.append(hidden)
            bias, weight = params[f"{index}.bias"], params[f"{index}.weight"]
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            if index < self.depth - 1:
                hidden = hidden.relu_()
                masks.append(self._mask(batch, index, hidden))
                if masks[-1] is not None:
                    hidden = hidden.mul_(masks[-1])
        return inputs, masks, hidden

    def _mask(self, batch: Batch, layer: int, hidden: Tensor) -> Tensor | None:
        if self.dropout == 0:
            return None
        draws = torch.empty_like(hidden)
        for client, seed in enumerate(batch.seeds):
            generator = torch.Generator().manual_seed(seed + layer)
            draws[client].uniform_(generator=generator)
        return (draws >= self.dropout).to(hidden.dtype).div_(1 - self.dropout)

    def _backward(
        self, params: Params, batch: Batch, inputs: list[Tensor], masks: list[Tensor | None], logits: Tensor
    ) -> list[Tensor]:
        """The loss's derivative by each layer's output before its activation, (clients, batch, width)."""
        delta = logits.softmax(-1)
        delta.scatter_add_(2, batch.y.unsqueeze(-1), delta.new_full((1, 1, 1), -1.0).expand(*batch.y.shape, 1))
        delta.mul_(batch.weights.unsqueeze(-1))
        deltas = [delta]
        for index in range(self.depth - 1, 0, -1):
            delta = torch.bmm(delta, params[f"{index}.weight"])
            mask = masks[index - 1]
            if mask is not None:
                delta.mul_(mask)
            delta = torch.ops.aten.threshold_backward(delta, inputs[index], 0)  # relu's derivative, in one pass
            deltas.insert(0, delta)
        return deltas


def clip_factors(inputs: list[Tensor], deltas: list[Tensor], weights: Tensor, clip: float) -> Tensor:
    """What brings each example's gradient to at most ``clip``.

    A dense layer's gradient of one example is an outer product, so its norm is the product of two norms, and
    no example's gradient is ever built ("ghost" norms).
    """
    squared = torch.zeros_like(weights)
    for given, delta in zip(inputs, deltas, strict=True):
        squared += (given.square().sum(-1) + 1) * delta.square().sum(-1)
    norms = squared.sqrt_() / weights.abs().clamp_min(torch.finfo(weights.dtype).tiny)
    return (clip / norms).clamp_max_(1.0).masked_fill_(weights == 0, 0.0)
