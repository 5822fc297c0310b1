"""The inputs of a network from the gradient of one example or of a few, layer by layer and without a search.

From the last layer back, what went into each layer and what was passed back through it are both exact (R-GAP, Zhu and
Blaschko 2021, for one example):

- of the last dense layers, ``coterie.attacks.separation`` tells one example of a batch from another;
- of a further dense layer, the weight's gradient is what was passed back times what went in (Phong et al. 2018);
- of a convolution, the gradient and what came out are linear in what went in;
- of a pooling, a value is known and where it came from is not. R-GAP has no answer to that, and here is one. The
  gradient of the convolution below, (channels, patch), is D times the patches, and D has one entry a channel, window
  and example, known but for its place. The channels that take a window's value from the same place are a vector of
  zeros and ones times known numbers, in the space that the gradient's columns span: a linear programme finds it. Which
  place it is, is told by the patches, which overlap and are nothing where the picture ends.

It is for networks of convolutions, poolings with fewer places in all examples together than half the channels below,
leaky ReLUs and dense layers; at ReLUs below dense layers it ends. Where it ends it says how far it has come:
what the first layers made of each example by itself is known then.
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
from torch.nn.functional import conv2d, fold, one_hot, unfold
from torch.nn.grad import conv2d_input, conv2d_weight

from coterie.attacks.separation import Lost, separated
from coterie.learn.params import Params

SLACK = 0.05  # of zero and one, in the programme
TINY = 1e-3  # of what is passed back to a channel, for what rounding does to it
NOISE = 1e-4  # singular values below this part of the largest are rounding: uploads have single precision
AGREES = 1e-2  # of what came out of a dense layer, and no more differs from what its inputs make
EXACT = 1e-9  # of what was to be explained, and no less is left of the slope
PATIENCE = 1500  # steps of least squares, at most


@dataclass(frozen=True)
class Followed:
    """How far a gradient could be followed back: ``value`` (examples, ...) is what ``front`` makes of the examples.

    If nothing is left in front, these are the examples. NaN: unknown.
    """

    front: nn.Sequential
    value: Tensor

    @property
    def examples(self) -> Tensor | None:
        return None if len(self.front) else self.value


def peeled(
    network: nn.Module,
    gradient: Sequence[Tensor],
    shape: tuple[int, int, int],
    labels: Tensor,
    draws: torch.Generator,
) -> Followed | None:
    """What can be said of the examples (labels' many) whose mean gradient this is; None if nothing can.

    ``gradient`` is that of the network's parameters, in their order.
    """
    layers = [(name, layer) for name, layer in network.named_children() if not _is_idle(layer)]
    followable = isinstance(network, nn.Sequential) and not any(isinstance(layer, nn.Dropout) for _, layer in layers)
    if not followable or not all(bool(leaf.isfinite().all()) for leaf in gradient):
        return None
    own = {name: leaf.detach().double() for name, leaf in network.named_parameters()}
    slopes = {name: leaf.double() for name, leaf in zip(own, gradient, strict=True)}
    try:
        peel = _Peel(layers, own, slopes, _inputs(layers, shape), len(labels))
        left = peel.down_from(peel.top(labels, draws))
    except Lost:
        return None
    return Followed(nn.Sequential(*(layer for _, layer in layers[:left])).requires_grad_(False), peel.value)


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
    """Layers from the last to the first, with ``value`` (examples, ...) what came out of one (NaN: unknown) and
    ``slope`` what the loss passes back to it."""

    def __init__(
        self,
        layers: list[tuple[str, nn.Module]],
        params: Params,
        gradient: Params,
        inputs: list[torch.Size],
        examples: int,
    ) -> None:
        self.layers, self.params, self.gradient = layers, params, gradient
        self.inputs = [torch.Size((examples, *shape[1:])) for shape in inputs]
        self.value, self.slope = torch.empty(0), torch.empty(0)

    def top(self, labels: Tensor, draws: torch.Generator) -> int:
        """What went into the last layer, and how many layers are left below it."""
        last = len(self.layers) - 1
        name, layer = self.layers[last]
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise Lost(name)
        if len(labels) == 1:
            self.slope = self.gradient[f"{name}.bias"][None]
            self.value = torch.full_like(self.slope, torch.nan)
            self.dense(name)
            said = torch.softmax(self.value @ self.params[f"{name}.weight"].T + self.params[f"{name}.bias"], 1)
            if not float((said - one_hot(labels, said.shape[1]) - self.gradient[f"{name}.bias"]).norm()) <= AGREES:
                raise Lost(name)
            return last
        if last < 2:
            raise Lost(name)
        (above, hidden), (_, bent) = self.layers[last - 2 : last]
        below = _below(bent)
        if below is None or not isinstance(hidden, nn.Linear) or hidden.bias is None:
            raise Lost(name)
        self.value, self.slope = separated(self.params, self.gradient, (above, name), below, labels, draws)
        return last

    def down_from(self, place: int) -> int:
        """How many layers are left when it ends."""
        for left in reversed(range(place)):
            try:
                self.peel(left)
            except Lost:
                return left + 1
        return 0

    def peel(self, place: int) -> None:
        name, layer = self.layers[place]
        if isinstance(layer, nn.Linear):
            self.dense(name)
        elif isinstance(layer, nn.LeakyReLU):
            self.leaky(layer.negative_slope)
        elif isinstance(layer, nn.ReLU) and place and isinstance(self.layers[place - 1][1], nn.Linear):
            on = self.value > NOISE * self.value.max()
            self.value, self.slope = torch.where(on, self.value, torch.nan), self.slope * on
        elif isinstance(layer, nn.Flatten):
            self.value, self.slope = (one.reshape(self.inputs[place]) for one in (self.value, self.slope))
        elif isinstance(layer, nn.MaxPool2d):
            self.pooled(layer, place)
        elif isinstance(layer, nn.Conv2d) and isinstance(layer.padding, tuple) and layer.groups == 1:
            self.convolved(name, layer, self.inputs[place])
        else:
            raise Lost(name)

    def dense(self, name: str) -> None:
        if not bool(self.slope.any(1).all()):
            raise Lost(name)
        weight, known = self.params[f"{name}.weight"], ~self.value.isnan()
        entered = torch.linalg.lstsq(self.slope.T, self.gradient[f"{name}.weight"]).solution
        made = entered @ weight.T + self.params.get(f"{name}.bias", 0)
        if not float((made - self.value)[known].norm()) <= AGREES * float(self.value[known].norm()):
            raise Lost(name)
        self.value, self.slope = entered, self.slope @ weight

    def leaky(self, below: float) -> None:
        negative = self.value < 0
        self.value = torch.where(negative, self.value / below, self.value)
        self.slope = torch.where(negative, self.slope * below, self.slope)

    def convolved(self, name: str, layer: nn.Conv2d, shape: torch.Size) -> None:
        """Least squares over what came out, where it is known, and over the gradient."""
        weight, how = self.params[f"{name}.weight"], _how(layer)
        slope, known = self.slope, ~self.value.isnan()
        if int(known.sum()) + weight.numel() < shape.numel():
            raise Lost("more unknowns than equations")
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
        windows = Windows(slope, side, columns)
        at = windows.origins(self.gradient[f"{name}.weight"].flatten(1), convolution, self.inputs[below])
        spread = torch.full((*at.shape[:2], rows * columns), torch.nan, dtype=slope.dtype)
        self.value = spread.scatter(2, at, self.value.flatten(2)).reshape(self.inputs[place])
        self.slope = torch.zeros_like(spread).scatter(2, at, self.slope.flatten(2)).reshape(self.inputs[place])


def _below(layer: nn.Module | None) -> float | None:
    """The slope of a bent line where it is negative; None if it is no such layer."""
    if isinstance(layer, nn.ReLU):
        return 0.0
    return layer.negative_slope if isinstance(layer, nn.LeakyReLU) else None


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

    slope: Tensor  # (examples, channels, rows, columns), as it reaches the convolution below
    side: int
    columns: int

    def origins(self, gradient: Tensor, layer: nn.Conv2d, shape: torch.Size) -> Tensor:
        """(examples, channels, windows): where values come from, by the convolution's gradient (channels, patch)."""
        slope = self.slope.flatten(2)
        left, sizes, _ = torch.linalg.svd(gradient, full_matrices=False)
        span = left[:, sizes > NOISE * sizes[0]]
        if 2 * self.side**2 * len(slope) * slope.shape[2] >= slope.shape[1]:
            raise Lost("so many places that any channels would do")
        spots = [(one, window) for one in range(len(slope)) for window in range(slope.shape[2])]
        groups = [(spot, mask) for spot in spots for mask in self.groups(span, slope[spot[0], :, spot[1]])]
        passed = torch.stack([slope[one, :, window] * mask for (one, window), mask in groups], 1)
        patches = torch.linalg.lstsq(passed, gradient).solution  # (groups, patch)
        found = torch.zeros(slope.shape, dtype=torch.int64)
        for one, window in spots:
            mine = [number for number, (where, _) in enumerate(groups) if where == (one, window)]
            for number, place in zip(mine, self.placed(patches[mine], window, layer, shape), strict=True):
                found[one, groups[number][1], window] = place
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
        down, across = divmod(window, self.slope.shape[3])
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
