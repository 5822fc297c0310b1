"""The input of a network from the gradient of one example, layer by layer and without a search (Zhu and Blaschko 2021).

From the last layer back, what went into each layer and what was passed back through it are both exact:

- of a dense layer, row i of the weight's gradient is the bias's times the input (Phong et al. 2018);
- of a convolution, the gradient and what came out are linear in what went in, more equations than there are unknowns;
- of a pooling, a value is known and where it came from is not. R-GAP has no answer to that, and here is one. The
  gradient of the convolution below, (channels, patch), is D times the patches, and D has one entry a channel and
  window, known but for its place. The channels that take a window's value from the same place are a vector of zeros
  and ones times known numbers, in the space that the gradient's columns span: a linear programme finds it. Which place
  it is, is told by the patches, which overlap and are nothing where the picture ends.

It is for networks of convolutions, poolings with fewer places than the convolution below has channels, leaky ReLUs and
dense layers. Of anything else it says nothing (None), nor of a gradient that is no single example's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn.functional import conv2d, fold, unfold
from torch.nn.grad import conv2d_input, conv2d_weight

from coterie.learn.params import Params

SLACK = 0.05  # of zero and one, in the programme
TINY = 1e-3  # of what is passed back to a channel, for what rounding does to it
NOISE = 1e-4  # singular values below this part of the largest are rounding: uploads have single precision
EXACT = 1e-9  # of what was to be explained, and no less is left of the slope
PATIENCE = 1500  # steps of least squares, at most


class Lost(Exception):
    """A layer through which nothing can be followed."""


def peeled(network: nn.Module, params: Params, gradient: Params, shape: tuple[int, int, int]) -> Tensor | None:
    """(1, channels, rows, columns): the one example of which this is the gradient, if it can be followed back."""
    if not isinstance(network, nn.Sequential) or not all(bool(leaf.isfinite().all()) for leaf in gradient.values()):
        return None
    params, gradient = ({name: leaf.double() for name, leaf in leaves.items()} for leaves in (params, gradient))
    layers = [(name, layer) for name, layer in network.named_children() if not _is_idle(layer)]
    try:
        return _Peel(layers, params, gradient, _inputs(layers, shape)).input()
    except Lost:
        return None


def _is_idle(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Identity)
        or (isinstance(layer, nn.Dropout) and layer.p == 0)
        or (isinstance(layer, nn.MaxPool2d) and layer.kernel_size == 1)
    )


def _inputs(layers: list[tuple[str, nn.Module]], shape: tuple[int, int, int]) -> list[torch.Size]:
    """The shape of what goes into each layer."""
    passed, shapes = torch.zeros(1, *shape), []
    with torch.no_grad():
        for _, layer in layers:
            shapes.append(passed.shape)
            passed = layer(passed)
    return shapes


class _Peel:
    """Layers from the last to the first, with ``value`` what came out of one (NaN: unknown) and ``slope`` what the loss
    passes back to it."""

    def __init__(
        self, layers: list[tuple[str, nn.Module]], params: Params, gradient: Params, inputs: list[torch.Size]
    ) -> None:
        self.layers, self.params, self.gradient, self.inputs = layers, params, gradient, inputs
        self.value, self.slope = torch.empty(0), torch.empty(0)

    def input(self) -> Tensor:
        name, layer = self.layers[-1]
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise Lost(name)
        self.slope = self.gradient[f"{name}.bias"]
        for place in reversed(range(len(self.layers))):
            self.peel(place)
        return self.value

    def peel(self, place: int) -> None:
        name, layer = self.layers[place]
        if isinstance(layer, nn.Linear):
            self.dense(name)
        elif isinstance(layer, nn.LeakyReLU):
            self.leaky(layer.negative_slope)
        elif isinstance(layer, nn.Flatten):
            self.value, self.slope = (one.reshape(self.inputs[place]) for one in (self.value, self.slope))
        elif isinstance(layer, nn.MaxPool2d):
            self.pooled(layer, place)
        elif isinstance(layer, nn.Conv2d) and isinstance(layer.padding, tuple) and layer.groups == 1:
            self.convolved(name, layer, self.inputs[place])
        else:
            raise Lost(name)

    def dense(self, name: str) -> None:
        strength = self.slope.square().sum()
        if not float(strength):
            raise Lost(name)
        self.value = self.slope @ self.gradient[f"{name}.weight"] / strength
        self.slope = self.slope @ self.params[f"{name}.weight"]

    def leaky(self, below: float) -> None:
        negative = self.value < 0
        self.value = torch.where(negative, self.value / below, self.value)
        self.slope = torch.where(negative, self.slope * below, self.slope)

    def convolved(self, name: str, layer: nn.Conv2d, shape: torch.Size) -> None:
        """Least squares over what came out, where it is known, and over the gradient."""
        weight, how = self.params[f"{name}.weight"], _how(layer)
        slope, known = self.slope, ~self.value.isnan()
        out = self.value if layer.bias is None else self.value - self.params[f"{name}.bias"][:, None, None]
        strength = slope.norm() / weight.norm()  # both kinds of equations count alike

        def forth(x: Tensor) -> tuple[Tensor, Tensor]:
            return conv2d(x, weight, None, **how) * known, conv2d_weight(x, weight.shape, slope, **how) / strength

        def back(parts: tuple[Tensor, Tensor]) -> Tensor:
            through = conv2d_input(shape, weight, parts[0] * known, **how)
            found: Tensor = through + conv2d_input(shape, parts[1] / strength, slope, **how)
            return found

        told = (out.nan_to_num(0.0) * known, self.gradient[f"{name}.weight"] / strength)
        self.value = least_squares(forth, back, told, torch.zeros(shape, dtype=weight.dtype))
        self.slope = conv2d_input(shape, weight, slope, **how)

    def pooled(self, layer: nn.MaxPool2d, place: int) -> None:
        """Put every value where it came from; elsewhere nothing is known, and nothing is passed back."""
        below = next((at for at in reversed(range(place)) if isinstance(self.layers[at][1], nn.Conv2d)), None)
        between = [one for _, one in self.layers[0 if below is None else below + 1 : place]]
        side, stride = layer.kernel_size, layer.stride
        if below is None or side != stride or not isinstance(side, int) or not all(map(_is_leaky, between)):
            raise Lost(self.layers[place][0])
        slope = self.slope
        for one in between:
            slope = torch.where(self.value < 0, slope * one.negative_slope, slope)  # type: ignore[operator]
        rows, columns = self.inputs[place][2:]
        name, convolution = self.layers[below]
        assert isinstance(convolution, nn.Conv2d)
        windows = Windows(slope[0], side, columns)
        at = windows.origins(self.gradient[f"{name}.weight"].flatten(1), convolution, self.inputs[below])
        spread = torch.full((len(at), rows * columns), torch.nan, dtype=slope.dtype)
        self.value = spread.scatter(1, at, self.value[0].flatten(1)).reshape(self.inputs[place])
        self.slope = torch.zeros_like(spread).scatter(1, at, self.slope[0].flatten(1)).reshape(self.inputs[place])


def _is_leaky(layer: nn.Module) -> bool:
    return isinstance(layer, nn.LeakyReLU)


def _how(layer: nn.Conv2d) -> dict[str, Any]:
    assert isinstance(layer.padding, tuple)
    return {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}


Parts = tuple[Tensor, Tensor]


def least_squares(forth: Callable[[Tensor], Parts], back: Callable[[Parts], Tensor], told: Parts, x: Tensor) -> Tensor:
    """The x whose ``forth`` is nearest to ``told``, by conjugate gradients; ``back`` is the adjoint of ``forth``."""
    left = told
    residual = back(left)
    direction, size = residual.clone(), residual.square().sum()
    enough = size * EXACT**2
    for _ in range(PATIENCE):
        if float(size) <= float(enough):
            break
        ahead = forth(direction)
        step = size / sum(part.square().sum() for part in ahead)
        x = x + step * direction
        left = (left[0] - step * ahead[0], left[1] - step * ahead[1])
        residual = back(left)
        after = residual.square().sum()
        direction, size = residual + after / size * direction, after
    return x


@dataclass(frozen=True)
class Windows:
    """A pooling of ``side`` by ``side`` places over maps of so many columns, and what the loss passes back to it."""

    slope: Tensor  # (channels, rows, columns), as it reaches the convolution below
    side: int
    columns: int

    def origins(self, gradient: Tensor, layer: nn.Conv2d, shape: torch.Size) -> Tensor:
        """(channels, windows): where the values come from, by the convolution's gradient (channels, patch)."""
        slope = self.slope.flatten(1)
        left, sizes, _ = torch.linalg.svd(gradient, full_matrices=False)
        span = left[:, sizes > NOISE * sizes[0]]
        if span.shape[1] >= len(slope):
            raise Lost("more places than channels")
        groups = [(window, one) for window in range(slope.shape[1]) for one in self.groups(span, slope[:, window])]
        passed = torch.stack([slope[:, window] * one for window, one in groups], 1)
        patches = torch.linalg.lstsq(passed, gradient).solution  # (groups, patch)
        found = torch.zeros(slope.shape, dtype=torch.int64)
        for window in range(slope.shape[1]):
            mine = [number for number, (where, _) in enumerate(groups) if where == window]
            for number, place in zip(mine, self.placed(patches[mine], window, layer, shape), strict=True):
                found[groups[number][1], window] = place
        return found

    def groups(self, span: Tensor, slope: Tensor) -> list[Tensor]:
        """Masks (channels,) of those that take this window's value from one place."""
        size = slope.abs()
        bases = (span * slope.sign()[:, None]).numpy()
        room = (SLACK * size + TINY * size.median()).numpy()
        limits = np.concatenate([size.numpy() + room, room])
        left, found = torch.ones(len(slope), dtype=torch.bool), []
        for first in size.argsort(descending=True).tolist():
            if not left[first]:
                continue
            solved = linprog(
                bases.sum(0),
                np.concatenate([bases, -bases]),
                limits,
                bases[first : first + 1],
                size[first : first + 1].numpy(),
                (None, None),
            )
            one = None if solved.x is None else sharpened(bases, size, solved.x)
            if one is not None and not bool((one & ~left).any()):
                found.append(one)
                left = left & ~one
        return [*found, left] if bool(left.any()) else found

    def placed(self, patches: Tensor, window: int, layer: nn.Conv2d, shape: torch.Size) -> list[int]:
        """Of a window's places, the ones at which these patches overlap as patches of one picture do."""
        down, across = divmod(window, self.slope.shape[2])
        corner = down * self.side * self.columns + across * self.side
        places = [corner + row * self.columns + column for row in range(self.side) for column in range(self.side)]
        if len(patches) > len(places):
            raise Lost("more patches than places")
        orders = [list(one) for one in permutations(places, len(patches))]
        return min(orders, key=lambda order: disagreement(patches, order, layer, shape))


def sharpened(bases: NDArray[np.float64], size: Tensor, weights: NDArray[np.float64]) -> Tensor | None:
    """(channels,): which are in, by what fits those that surely are or are not; None if that fits badly."""
    for _ in range(3):
        part = bases @ weights / size.clamp_min(1e-300).numpy()
        sure = np.abs(part - np.round(part)) < 0.25
        weights = np.linalg.lstsq(bases[sure], (size.numpy() * np.round(part))[sure], rcond=None)[0]
    inside = bases @ weights > size.numpy() / 2
    wanted = size.numpy() * inside  # one channel to which next to nothing is passed back would always fit
    fits = np.linalg.norm(bases @ weights - wanted) < TINY * np.linalg.norm(wanted)
    return torch.from_numpy(inside) if fits else None


def disagreement(patches: Tensor, places: Sequence[int], layer: nn.Conv2d, shape: torch.Size) -> float:
    """How far patches (patches, entries) at these places are from patches of one picture, which ends at its border."""
    how = {**_how(layer), "kernel_size": layer.kernel_size}
    count = unfold(torch.zeros(shape, dtype=patches.dtype), **how).shape[2]
    laid = torch.zeros(1, patches.shape[1], count, dtype=patches.dtype)
    there = laid.clone()
    laid[0, :, list(places)], there[0, :, list(places)] = patches.T, 1.0
    picture = fold(laid, shape[2:], **how) / fold(there, shape[2:], **how).clamp_min(1)
    return float((unfold(picture, **how)[0, :, list(places)] - patches.T).square().sum())
