"""Several modules as one, for a client that predicts with a mixture of models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.learn.targets import CLASSES, Targets


class Mixture(nn.Module):
    """Outputs that predict the weighted mean of what its parts predict; of classes: the logarithms of chances."""

    weights: Tensor

    def __init__(self, parts: Sequence[nn.Module], weights: Tensor, kind: Targets = CLASSES) -> None:
        super().__init__()
        self.kind = kind
        self.parts = nn.ModuleList(parts)
        self.register_buffer("weights", weights.clone())  # (parts,)

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([self.kind.predicted(part(x)) for part in self.parts])  # (parts, examples, width)
        return self.kind.outputs(torch.einsum("prc,p->rc", answers, self.weights))
