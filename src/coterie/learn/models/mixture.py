"""Several modules as one, for a client that predicts with a mixture of models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    """The logarithms of the weighted mean of its parts' class probabilities: logits, as each part gives them."""

    weights: Tensor

    def __init__(self, parts: Sequence[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("weights", weights.clone())  # (parts,)

    def forward(self, x: Tensor) -> Tensor:
        chances = torch.stack([part(x).log_softmax(-1) for part in self.parts])  # (parts, examples, classes)
        return (chances + self.weights.log().view(-1, 1, 1)).logsumexp(0)
