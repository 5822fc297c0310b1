"""How somebody else's pictures are turned: as one's own must be, to explain how somebody's model moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from coterie.learn.generative.duel import Discriminator, Moved, Samples


def angles(count: int, samples: Samples) -> list[float]:
    """So many degrees round a full turn, 0 first; what is not square keeps its rows, or is turned upside down."""
    rows, columns = samples.x.shape[2:]
    found = [360 * number / count for number in range(count)]
    return found if rows == columns else [angle for angle in found if angle % 180 == 0]


def turned(samples: Samples, degrees: float) -> Samples:
    """Clockwise; by quarters exactly, else between pixels, and what comes in from outside is as the edge is."""
    if degrees % 90 == 0:
        return Samples(torch.rot90(samples.x, -int(degrees // 90), (2, 3)), samples.y)
    turn = torch.deg2rad(torch.tensor(degrees))
    cos, sin = torch.cos(turn), torch.sin(turn)
    matrix = torch.stack([cos, sin, cos * 0, -sin, cos, cos * 0]).reshape(1, 2, 3)
    grid = affine_grid(matrix.expand(len(samples.x), 2, 3), list(samples.x.shape), align_corners=False)
    return Samples(grid_sample(samples.x, grid, padding_mode="border", align_corners=False), samples.y)


def strains(seen: Moved, discriminate: Discriminator, samples: Samples, by: Sequence[float]) -> Tensor:
    """(angles,): how far from an update the gradient of the samples points, turned by each."""
    found = []
    for degrees in by:
        x = turned(samples, degrees).x
        found.append(float(seen.explained(discriminate, x, samples.y).detach()))
    return torch.tensor(found)
