"""How near one picture is to another: peak signal-to-noise ratio and structural similarity, and which is whose.

``ssim`` is Wang et al. 2004 as scikit-image computes it with Gaussian weights (window 11, deviation 1.5, K 0.01 and
0.03, population covariance, the mean over places where the whole window fits). A picture smaller than the window has a
smaller one, with the deviation in proportion.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import conv2d

from coterie.errors import require

RADIUS, DEVIATION = 5, 1.5
K1, K2 = 0.01, 0.03


def psnr(found: Tensor, truth: Tensor, span: float = 1.0) -> Tensor:
    """(pictures,) decibels; infinite where the two are equal. ``span`` is the range of the pixels' values."""
    require_alike(found, truth)
    error = (found.double() - truth.double()).square().flatten(1).mean(1)
    return 10 * torch.log10(span**2 / error)


def ssim(found: Tensor, truth: Tensor, span: float = 1.0) -> Tensor:
    """(pictures,): 1 where the two are equal, about 0 where they have nothing in common."""
    require_alike(found, truth)
    window = _window(min(found.shape[2:]))
    x, y = (pictures.double().flatten(0, 1).unsqueeze(1) for pictures in (found, truth))
    blurred = conv2d(torch.cat([x, y, x * x, y * y, x * y]), window)
    mean_x, mean_y, xx, yy, xy = blurred.chunk(5)
    c1, c2 = (K1 * span) ** 2, (K2 * span) ** 2
    likeness = (2 * mean_x * mean_y + c1) * (2 * (xy - mean_x * mean_y) + c2)
    scale = (mean_x**2 + mean_y**2 + c1) * (xx - mean_x**2 + yy - mean_y**2 + c2)
    told: Tensor = (likeness / scale).unflatten(0, found.shape[:2]).flatten(1).mean(1)
    return told


def _window(side: int) -> Tensor:
    radius = min(RADIUS, (side - 1) // 2)
    require(radius >= 1, "pixels a side", side, "must be at least 3 for a structural similarity")
    places = torch.arange(-radius, radius + 1, dtype=torch.float64)
    bell = torch.exp(-0.5 * (places / (DEVIATION * radius / RADIUS)) ** 2)
    bell = bell / bell.sum()
    return torch.outer(bell, bell)[None, None]


def matched(found: Tensor, truth: Tensor, span: float = 1.0) -> list[tuple[int, int]]:
    """Which of the found pictures stands for which true one: the pairing with the largest sum of similarities.

    A batch has no order, so an attack cannot know in which order to hand it back.
    """
    table: NDArray[np.float64] = torch.stack([ssim(one.expand_as(truth), truth, span) for one in found]).numpy()
    rows, columns = linear_sum_assignment(-table)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def require_alike(found: Tensor, truth: Tensor) -> None:
    require(
        found.dim() == 4 and found.shape == truth.shape,
        "pictures",
        tuple(found.shape),
        f"must be (pictures, channels, rows, columns) like the true ones, {tuple(truth.shape)}",
    )
