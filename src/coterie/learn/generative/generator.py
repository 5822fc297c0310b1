"""A conditional generator of pictures (paper 004, Section V-A): three layers that enlarge, from noise and a class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from coterie.errors import require
from coterie.learn.models.model import seeded


class _Net(nn.Module):
    def __init__(self, how: PictureGenerator) -> None:
        super().__init__()
        channels, height, width = how.shape
        self.classes, self.span = how.classes, how.span
        self.size = (height, width)
        self.begin = (2 * how.width, -(-height // 4), -(-width // 4))
        deep, thin, last = 2 * how.width, how.width, max(4, how.width // 2)
        self.spread = nn.Linear(how.latent + how.classes, torch.Size(self.begin).numel())
        self.grow = nn.Sequential(
            _norm(deep), nn.ReLU(),
            nn.ConvTranspose2d(deep, thin, 4, 2, 1), _norm(thin), nn.ReLU(),
            nn.ConvTranspose2d(thin, last, 4, 2, 1), _norm(last), nn.ReLU(),
            nn.ConvTranspose2d(last, channels, 3, 1, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        seed = self.spread(torch.cat([noise, one_hot(labels, self.classes).to(noise.dtype)], 1))
        grown = self.grow(seed.unflatten(1, self.begin))[:, :, : self.size[0], : self.size[1]]
        low, high = self.span
        return low + (high - low) * (grown + 1) / 2  # type: ignore[no-any-return]


def _norm(channels: int) -> nn.Module:
    """By the batch's own statistics, also when it is used: a generator is only ever asked for many pictures at once."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class StrokeCritic(nn.Module):
    """Whether small patches of a picture look real, wherever they lie: (pictures,) higher for what does."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 2), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 2, 1, 1),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        return self.patches(pictures).flatten(1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PictureGenerator:
    """An architecture; ``span`` is the range of a pixel's values."""

    classes: int
    shape: tuple[int, int, int]
    latent: int = 64
    width: int = 24
    span: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(len(self.shape) == 3 and min(self.shape) >= 1, "shape", self.shape, "must be (channels, rows, columns)")
        require(self.latent >= 1, "latent", self.latent, "must be at least 1")

    def build(self, seed: int) -> nn.Module:
        with seeded(seed):
            return _Net(self)

    def critic(self, seed: int) -> StrokeCritic:
        with seeded(seed):
            return StrokeCritic(self.shape[0])

    def noise(self, count: int, draws: torch.Generator) -> Tensor:
        return torch.randn(count, self.latent, generator=draws)
