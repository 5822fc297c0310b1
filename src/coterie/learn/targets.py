"""What outputs are held against. The type of the targets decides the loss, and what a model predicts.

Whole numbers (..., examples) are classes, under cross-entropy. Truth values (..., examples, labels) are labels of which
an example may have several, under binary cross-entropy. Other numbers (..., examples, outputs) are measurements, under
squared error. Losses are means over an example's labels or outputs, as torch's are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, nll_loss


class Targets(ABC):
    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(examples,) from outputs (examples, width)."""

    @abstractmethod
    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(..., examples, width): each example's loss by its outputs, in a tensor of its own."""

    def many_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``losses`` to rounding, whichever way is fast for very many examples."""
        return self.losses(outputs, y)

    def many_slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``slopes`` likewise."""
        return self.slopes(outputs, y)

    @abstractmethod
    def predicted(self, outputs: Tensor) -> Tensor:
        """What is averaged where several models answer together: chances, or the numbers themselves."""

    @abstractmethod
    def outputs(self, predicted: Tensor) -> Tensor:
        """Outputs that predict so."""

    @abstractmethod
    def made_up(self, count: int, like: Tensor) -> Tensor:
        """So many targets of this kind and shape that say nothing of anybody's, to try a model with."""


class Classes(Targets):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y, reduction="none")

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        return _less_the_truth(outputs.softmax(-1), y)

    def many_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if outputs.shape[-1] > FEW_CLASSES:
            return self.losses(outputs, y)
        return nll_loss(outputs.T.contiguous().log_softmax(0).T, y, reduction="none")

    def many_slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        if outputs.shape[-1] > FEW_CLASSES:
            return self.slopes(outputs, y)
        chances = outputs.flatten(0, -2).T.contiguous().softmax(0)
        return _less_the_truth(chances.T.reshape(outputs.shape), y)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def outputs(self, predicted: Tensor) -> Tensor:
        return predicted.log()

    def made_up(self, count: int, like: Tensor) -> Tensor:
        return torch.arange(count).remainder(2)


FEW_CLASSES = 12
"""A softmax over so few is faster over the examples of a class than over the classes of an example: 4 to 7 times."""


def _less_the_truth(chances: Tensor, y: Tensor) -> Tensor:
    """In place."""
    return chances.scatter_add_(-1, y.unsqueeze(-1), chances.new_full((), -1.0).expand(*y.shape, 1))


class Labels(Targets):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(-1)

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.sigmoid().sub_(y.to(outputs.dtype)).div_(y.shape[-1])

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def outputs(self, predicted: Tensor) -> Tensor:
        return predicted.logit()

    def made_up(self, count: int, like: Tensor) -> Tensor:
        return torch.arange(count * like.shape[-1]).remainder(3).eq(0).view(count, -1)


class Numbers(Targets):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return mse_loss(outputs, y, reduction="none").mean(-1)

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).mul_(2 / y.shape[-1])

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs

    def outputs(self, predicted: Tensor) -> Tensor:
        return predicted

    def made_up(self, count: int, like: Tensor) -> Tensor:
        return torch.arange(count * like.shape[-1]).remainder(3).sub(1).to(like.dtype).view(count, -1)


CLASSES, MULTI_LABEL, NUMBERS = Classes(), Labels(), Numbers()


def targets(y: Tensor) -> Targets:
    """Of which kind they are."""
    if y.dtype == torch.bool:
        return MULTI_LABEL
    return NUMBERS if y.is_floating_point() else CLASSES
