"""With what weight each of several records is in an update: least squares on their gradients.

What a client sends, or what a cluster's model moves by, is up to curvature and noise a sum over gradients of the
records that were trained on. A model has far more parameters than there are records in question, so the coefficients of
that sum can be solved for: no shadow federation is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params, flatten, map_leaves

AT_ONCE = 64  # gradients that are in memory at the same time, in full


class Unknowns:
    """The normal equations of some records' coefficients, over all rounds; the first ``penalised`` are records, and
    what follows are sums, which are not drawn to anything."""

    def __init__(self, penalised: int) -> None:
        self.penalised = penalised
        self.gram: Tensor | None = None
        self.right: Tensor | None = None

    def enter(self, rows: Tensor, moved: Tensor) -> None:
        """Gradients (unknowns, length), and what was moved against them, (length,)."""
        gram, right = (rows @ rows.T).double(), (rows @ moved).double()
        self.gram = gram if self.gram is None else self.gram + gram
        self.right = right if self.right is None else self.right + right

    def solved(self, ridge: float, least: float) -> Tensor:
        """(penalised,), under a ridge that is at least so large a part of the mean squared norm of a gradient: similar
        ones must not swing against each other."""
        assert self.gram is not None
        assert self.right is not None
        gram, own = self.gram.clone(), self.gram.diagonal()[: self.penalised].mean().clamp_min(1e-300)
        gram.diagonal()[: self.penalised].add_(max(ridge, least * float(own)))
        gram.diagonal()[self.penalised :].mul_(1 + 1e-9)
        found: Tensor = torch.linalg.solve(gram, self.right)
        return found[: self.penalised]


def summed_gradients(model: Model, start: Params, x: Tensor, y: Tensor, clip: float | None) -> Tensor:
    """(rows, length): the sum over axis 1 of the gradients of x (rows, examples, ...), each clipped as clients clip."""
    rows = len(x)
    batch = Batch(x, y, torch.ones(y.shape), torch.ones(rows), torch.ones(rows, dtype=torch.bool))
    params = map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape).contiguous(), start)
    return flatten(model.gradients(params, batch, clip))


def gradients(
    model: Model, start: Params, x: Tensor, y: Tensor, clip: float | None = None, entries: Tensor | None = None
) -> Tensor:
    """(examples, length or entries): of each example on its own, or some entries of it."""
    parts = []
    for few in torch.arange(len(x)).split(AT_ONCE):
        found = summed_gradients(model, start, x[few].unsqueeze(1), y[few].unsqueeze(1), clip)
        parts.append(found if entries is None else found[:, entries])
    return torch.cat(parts)
