"""Per-example clipping the slow way: one plain backward pass an example."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy


def clipped_sum(
    module: nn.Module, leaves: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor, clip: float
) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for example in range(len(x)):
        tracked = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        logits = functional_call(module, tracked, (x[example : example + 1],))
        cross_entropy(logits, y[example : example + 1]).backward()
        grads = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in tracked.items()}
        norm = sum(float(grad.double().square().sum()) for grad in grads.values()) ** 0.5
        for name, grad in grads.items():
            total[name] += weights[example] * min(1.0, clip / norm) * grad
    return total
