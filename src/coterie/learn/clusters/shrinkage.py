"""What to make of a noisy vector when something about it was known before: James and Stein (1961).

A release may be reworked at no cost in privacy, and the deviation of its noise is public. The noisy vector is moved
towards a public guess by the share of their distance that noise explains. In three dimensions or more this errs less in
the mean than the noisy vector does, wherever the truth lies: a good guess helps, a bad one is overruled by the data.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shrunk(noisy: Tensor, guess: Tensor, deviation: Tensor | float) -> Tensor:
    """Vectors (..., length) with noise of this deviation (...) in every entry; the positive part of the estimate.

    No noise, or fewer than three dimensions, and the vectors stay as they are.
    """
    deviation = torch.as_tensor(deviation, dtype=noisy.dtype)
    dimensions = noisy.shape[-1]
    if dimensions < 3 or not bool((deviation > 0).any()):
        return noisy
    shift = noisy - guess
    distance = shift.square().sum(-1).clamp_min(torch.finfo(noisy.dtype).tiny)
    kept = (1 - (dimensions - 2) * deviation.square() / distance).clamp(0, 1)
    return guess + kept.unsqueeze(-1) * shift
