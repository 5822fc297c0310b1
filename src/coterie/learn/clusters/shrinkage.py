"""What to make of a noisy vector when something about it was known before: James and Stein (1961).

A release may be reworked at no cost in privacy, and the deviation of its noise is public. The noisy vector is moved
towards a public guess by the share of their distance that noise explains. In three dimensions or more this errs less in
the mean than the noisy vector does, wherever the truth lies: a good guess helps, a bad one is overruled by the data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SURE = 1.0
"""A measured thing has moved if its shift is longer, by so many deviations, than noise is on average."""


def shrunk(noisy: Tensor, guess: Tensor, deviation: Tensor | float) -> Tensor:
    """Vectors (..., length) with noise of this deviation (...) in every entry; the positive part of the estimate.

    No noise, or fewer than three dimensions, and the vectors stay as they are.
    """
    deviation = torch.as_tensor(deviation, dtype=noisy.dtype)
    if noisy.shape[-1] < 3 or not bool((deviation > 0).any()):
        return noisy
    shift = noisy - guess
    return guess + kept_part(shift, deviation).unsqueeze(-1) * shift


def kept_part(shift: Tensor, deviation: Tensor) -> Tensor:
    """The share of each shift (..., length) that noise of this deviation (...) in every entry does not explain."""
    dimensions = shift.shape[-1]
    if dimensions < 3:
        return torch.ones_like(shift[..., 0])
    distance = shift.square().sum(-1).clamp_min(torch.finfo(shift.dtype).tiny)
    return (1 - (dimensions - 2) * deviation.square() / distance).clamp(0, 1)


def followed(shift: Tensor, deviation: Tensor, doubt: Tensor) -> tuple[Tensor, Tensor]:
    """How far to follow a noisy shift (..., length) away from an estimate that is noisy, too, and the doubt then left.

    ``doubt`` (...) is the variance of the estimate's entries. If the truth has not moved, the best is the mean of the
    old estimate and the new, weighted by their precisions (Kalman 1960): noisy measurements of one thing are averaged,
    and none is lost. If it has, the shift is followed as far as noise does not explain it. The larger share counts.
    """
    variance = deviation.square()
    averaged = doubt / (doubt + variance).clamp_min(torch.finfo(shift.dtype).tiny)
    dimensions = shift.shape[-1]
    usual = (doubt + variance) * (dimensions + SURE * math.sqrt(2 * dimensions))
    stays = (doubt > 0) & (shift.square().sum(-1) <= usual)
    share = torch.where(stays, averaged, torch.maximum(kept_part(shift, deviation), averaged))
    return share, share * variance
