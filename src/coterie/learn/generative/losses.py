"""What a generator is told: to look like samples, to move a model as somebody's data did, to be smooth, to differ."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from coterie.learn.params import Params


def hybrid(made: Tensor, samples: Tensor, threshold: float, weight: float) -> Tensor:
    """Paper 004, Equation 3: the squared distance up to ``threshold``, ``weight`` times the L1 distance beyond it.

    By picture, divided by the number of pixels, which the paper leaves open; the threshold is on the L2 distance as
    printed. The two branches do not meet at the threshold (the paper says that they do).
    """
    error = (made - samples).flatten(1)
    squared, absolute = error.square().sum(1), error.abs().sum(1)
    return torch.where(squared.sqrt() <= threshold, squared, weight * absolute).mean() / error.shape[1]


def huber(error: Tensor, threshold: float) -> Tensor:
    """Equation 5, to draw beside it (Figure 5)."""
    size = error.abs()
    linear: Tensor = threshold * (size - 0.5 * threshold)
    return torch.where(size <= threshold, 0.5 * size**2, linear)


def distance(made: Tensor, samples: Tensor) -> Tensor:
    """The mean L2 distance by picture: early in training, what the threshold of ``hybrid`` is set to."""
    found: Tensor = (made - samples).flatten(1).norm(dim=1).mean()
    return found


def contrast(made: Tensor, samples: Tensor) -> Tensor:
    """How far the brightness of pixels is from that of samples, in order of brightness: where they lie is left open."""
    return (made.flatten(1).sort(1).values - samples.flatten(1).sort(1).values).abs().mean()


def total_variation(pictures: Tensor) -> Tensor:
    """The mean absolute step from pixel to pixel, down and across."""
    steps = [pictures.diff(dim=axis).abs().mean() for axis in (2, 3) if pictures.shape[axis] > 1]
    return torch.stack(steps).sum() if steps else pictures.sum() * 0


def mismatch(moved: Params, update: Params) -> Tensor:
    """One less the cosine of two updates, summed over layers; entries that are NaN in ``update`` were not read."""
    apart = [torch.zeros(())]
    for name, leaf in update.items():
        read = ~leaf.isnan()
        if leaf.dim() > 1 and bool(leaf[read].any()):
            apart.append(1 - cosine_similarity(moved[name][read], leaf[read], dim=0))
    return torch.stack(apart).sum()


def sameness(made: Tensor, noise: Tensor) -> Tensor:
    """Mode seeking (Mao et al. 2019): how little pictures differ for how much their noise does.

    Pairs are of one class if the first half of a batch has the classes of the second.
    """
    one, other = made.chunk(2)
    here, there = noise.chunk(2)
    apart = (one - other).abs().flatten(1).mean(1) / (here - there).abs().mean(1)
    return (1 / (apart + 1e-2)).mean()
