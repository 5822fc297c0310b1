"""The papers' own architectures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from coterie.errors import require
from coterie.learn.models.dense import Dense
from coterie.learn.models.gru import GruLayer
from coterie.learn.models.model import ModuleModel
from coterie.learn.models.narrow import banded, pooled

Picture = tuple[int, int, int]  # channels, height, width


def fcnn(classes: int = 10, inputs: int = 784, hidden: int = 200) -> Dense:
    """The 784-200-10 network of MingledPie."""
    return Dense((inputs, hidden, classes))


def texas_mlp(classes: int = 100) -> Dense:
    """For Texas100's 6169 binary features."""
    return Dense((6169, 1024, 512, classes))


def purchase_mlp(classes: int = 100) -> Dense:
    """For Purchase100's 600 binary features."""
    return Dense((600, 512, 256, classes))


@dataclass(frozen=True)
class _Sized(ModuleModel):
    smallest: ClassVar[int] = 8  # pixels a side that the pooling leaves something of

    classes: int = 10
    shape: Picture = (1, 28, 28)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(self.classes >= 1, "classes", self.classes, "must be at least 1")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must lie in [0, 1)")
        require(
            len(self.shape) == 3 and min(self.shape[1:]) >= self.smallest,
            "shape",
            self.shape,
            f"must be (channels, height, width) with {self.smallest} pixels a side at least",
        )

    @property
    def random(self) -> bool:
        return self.dropout > 0

    def with_dropout(self, rate: float) -> _Sized:
        return replace(self, dropout=rate)


class _PixelsFirst(nn.Sequential):
    """Convolutions with all channels of a pixel side by side in memory: 1.2 to 1.6 times faster on a CPU.

    (A clone has those strides even with one channel, where ``contiguous`` would leave them as they are.) Pooling before
    ReLU gives the same values and gradients as after it, on a quarter of the numbers.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone(memory_format=torch.channels_last))  # type: ignore[no-any-return, no-untyped-call]


class _Narrow(nn.Sequential):
    """``_PixelsFirst`` for few channels: convolution and pooling of the first layer as one, further ones by bands."""

    def forward(self, x: Tensor) -> Tensor:
        convolution, pooling, *others = self
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(pooling, nn.MaxPool2d)
        hidden = pooled(convolution, pooling, x).contiguous(memory_format=torch.channels_last)
        for layer in others:
            hidden = banded(layer, hidden) if isinstance(layer, nn.Conv2d) else layer(hidden)
        return hidden


@dataclass(frozen=True)
class Cnn(_Sized):
    """Two convolutions and three dense layers (MingledPie)."""

    smallest: ClassVar[int] = 16

    def build(self) -> nn.Module:
        channels, height, width = self.shape
        flat = 16 * _twice_convolved(height) * _twice_convolved(width)
        return _Narrow(
            nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Dropout(self.dropout),
            nn.Linear(flat, 120), nn.ReLU(), nn.Dropout(self.dropout),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, self.classes),
        )  # fmt: skip


@dataclass(frozen=True)
class WideCnn(_Sized):
    """Two padded convolutions of 64 and dense layers of 384 and 192: the CNN of MingledPie's public code."""

    def build(self) -> nn.Module:
        channels, height, width = self.shape
        flat = 64 * (height // 4) * (width // 4)
        return _PixelsFirst(
            nn.Conv2d(channels, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(64, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Dropout(self.dropout),
            nn.Linear(flat, 384), nn.ReLU(), nn.Dropout(self.dropout),
            nn.Linear(384, 192), nn.ReLU(),
            nn.Linear(192, self.classes),
        )  # fmt: skip


def _twice_convolved(pixels: int) -> int:
    """What two convolutions of 5, each followed by pooling by 2, leave of a side."""
    return ((pixels - 4) // 2 - 4) // 2


@dataclass(frozen=True)
class FaceCnn(_Sized):
    """Three convolutions (32, 64, 128) and a dense layer of 256 (papers 000 and 004)."""

    shape: Picture = (3, 48, 48)

    def build(self) -> nn.Module:
        channels, height, width = self.shape
        flat = 128 * (height // 8) * (width // 8)
        return _PixelsFirst(
            nn.Conv2d(channels, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Dropout(self.dropout),
            nn.Linear(flat, 256), nn.ReLU(), nn.Dropout(self.dropout),
            nn.Linear(256, self.classes),
        )  # fmt: skip


@dataclass(frozen=True)
class StridedCnn(_Sized):
    """Three convolutions of stride 2 (32, 64, 128), pooling and two dense layers of 256, all leaky (paper 004).

    ``width`` is that of the first. Nothing in it is flat for long, so it can be differentiated twice: what inverts
    gradients, or trains a generator against it, finds it easier than the others.
    """

    width: int = 32

    def build(self) -> nn.Module:
        channels, height, width = self.shape
        first, hidden = self.width, 8 * self.width
        left = [-(-side // 8) for side in (height, width)]  # what three strides of 2 leave
        pool = 2 if min(left) > 1 else 1
        flat = 4 * first * (left[0] // pool) * (left[1] // pool)
        return _PixelsFirst(
            nn.Conv2d(channels, first, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(first, 2 * first, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * first, 4 * first, 3, 2, 1), nn.LeakyReLU(0.2), nn.MaxPool2d(pool),
            nn.Flatten(), nn.Dropout(self.dropout),
            nn.Linear(flat, hidden), nn.LeakyReLU(0.2), nn.Dropout(self.dropout),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, self.classes),
        )  # fmt: skip


class _Block(nn.Module):
    """A residual block with GroupNorm: its statistics are the example's own, so clients can be averaged."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, fan_out)
        same = stride == 1 and fan_in == fan_out
        self.skip = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(hidden)) + self.skip(x))


@dataclass(frozen=True)
class ResNet18(_Sized):
    """ResNet-18 for small pictures, with GroupNorm in place of BatchNorm."""

    shape: Picture = (3, 32, 32)

    def build(self) -> nn.Module:
        layers: list[nn.Module] = [
            nn.Conv2d(self.shape[0], 64, 3, 1, 1, bias=False),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
        ]
        width = 64
        for fan_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [_Block(width, fan_out, stride), _Block(fan_out, fan_out, 1)]
            width = fan_out
        layers += [
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(self.dropout),
            nn.Linear(512, self.classes),
        ]
        return nn.Sequential(*layers)


class _GruNet(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.gru = GruLayer(embedding, hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))
        last = ((tokens != 0) * torch.arange(tokens.shape[1])).argmax(1)  # token 0 is padding, on either side
        return self.head(self.dropout(states[torch.arange(len(tokens)), last]))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Gru(ModuleModel):
    """Embedding 100, GRU 128, and the last state to a dense layer (paper 000)."""

    classes: int = 5
    vocabulary: int = 5000
    embedding: int = 100
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(self.classes >= 1, "classes", self.classes, "must be at least 1")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must lie in [0, 1)")
        require(self.vocabulary >= 2, "vocabulary", self.vocabulary, "must be at least 2: padding and a word")

    @property
    def random(self) -> bool:
        return self.dropout > 0

    def build(self) -> nn.Module:
        return _GruNet(self.vocabulary, self.embedding, self.hidden, self.classes, self.dropout)

    def with_dropout(self, rate: float) -> Gru:
        return replace(self, dropout=rate)
