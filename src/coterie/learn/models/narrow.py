"""Convolutions of few channels, which a library that is made for many is slow at: two ways round it.

The pooling behind one takes as long as the convolution: ``pooled`` does both as one. The slope of its inputs takes
three times as long as its outputs: ``banded`` finds it by one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

STEP, NONE, ONE = [2, 2], [0, 0], [1, 1]  # stride, padding, dilation


class _Pooled(torch.autograd.Function):
    """max_pool2d(conv2d(x, weight, bias), 2), to rounding, for pictures that nobody differentiates by.

    The four outputs that are pooled together come from four copies of the kernel, each in one corner of a larger one
    that moves by two: channels of one convolution. What is pooled then lies in four planes, and not side by side. Of
    equal outputs the first has the slope, row by row, as in ``max_pool2d``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        four = weight.new_zeros(4, *weight.shape[:2], *(side + 1 for side in weight.shape[2:]))
        for corner in _corners(four):
            corner.copy_(weight)
        four = four.flatten(0, 1)
        planes = torch.conv2d(x, four, stride=2).unflatten(1, (4, -1))  # (examples, 4, channels, height, width)
        one, two, three, last = planes.unbind(1)
        upper, lower = torch.maximum(one, two), torch.maximum(three, last)
        ctx.save_for_backward(x, four, two - one, last - three, lower - upper)
        return torch.maximum(upper, lower).add_(bias.view(-1, 1, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[None, Tensor, Tensor]:
        x, four, right_above, right_below, below = ctx.saved_tensors  # type: ignore[attr-defined]
        slope = slope.contiguous()
        slopes = slope.new_empty(len(slope), 4, *slope.shape[1:])
        lower = torch.ops.aten.threshold_backward(slope, below, 0)  # the slope where that is above 0
        for half, part, right in ((0, slope - lower, right_above), (2, lower, right_below)):
            second = torch.ops.aten.threshold_backward(part, right, 0)
            torch.sub(part, second, out=slopes[:, half])
            slopes[:, half + 1] = second
        _, found, _ = torch.ops.aten.convolution_backward(
            slopes.flatten(1, 2), x, four, None, STEP, NONE, ONE, False, NONE, 1, [False, True, False]
        )
        one, two, three, last = _corners(found.unflatten(0, (4, -1)))
        return None, (one + two).add_(three).add_(last), slope.sum((0, 2, 3))


def _corners(four: Tensor) -> list[Tensor]:
    """Where the kernel lies in each of the larger ones, row by row."""
    return [
        four[2 * row + column, :, :, row : four.shape[3] - 1 + row, column : four.shape[4] - 1 + column]
        for row in (0, 1)
        for column in (0, 1)
    ]


class _Banded(torch.autograd.Function):
    """conv2d(x, weight, bias), to rounding, whose slope by x is one product with the kernel's rows as banded matrices.

    A row of outputs depends on as many rows of inputs as the kernel has, on each by a band: its row, moved along.
    Most of such a matrix is zeros, and a product with it is still faster than many small ones.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.conv2d(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        _, by_weight, by_bias = torch.ops.aten.convolution_backward(
            slope, x, weight, [len(weight)], ONE, NONE, ONE, False, NONE, 1, [False, True, True]
        )
        examples, channels, height, width = x.shape
        rows = slope.shape[2]
        moved = slope.permute(0, 2, 3, 1).reshape(examples * rows, -1) @ _bands(weight, width)
        moved = moved.view(examples, rows, weight.shape[2], width * channels)
        found = x.new_zeros(examples, height, width * channels)
        for row, part in enumerate(moved.unbind(2)):
            found[:, row : row + rows] += part
        return found.view(examples, height, width, channels).permute(0, 3, 1, 2), by_weight, by_bias


def _bands(weight: Tensor, width: int) -> Tensor:
    """(a row of outputs, kernel's rows x a row of inputs), both with all channels of a pixel side by side."""
    outs, ins, tall, wide = weight.shape
    columns = width - wide + 1
    bands = weight.new_zeros(columns, outs, tall, width, ins)
    of_output, of_column = bands.stride(1), bands.stride(0)
    along = bands.as_strided(
        (columns, outs, tall, wide, ins), (of_column + ins, of_output, bands.stride(2), ins, 1)
    )  # each column of outputs begins one pixel further
    along.copy_(weight.permute(0, 2, 3, 1))
    return bands.view(columns * outs, tall * width * ins)


def pooled(convolution: nn.Conv2d, pooling: nn.MaxPool2d, x: Tensor) -> Tensor:
    """Pooling by 2 behind a convolution without stride or padding; as one, if all that is wanted are its gradients."""
    even = all((side - kernel) % 2 for side, kernel in zip(x.shape[2:], convolution.weight.shape[2:], strict=True))
    if not _trained(convolution) or pooling._forward_hooks or x.requires_grad or not even:
        return pooling(convolution(x))  # type: ignore[no-any-return]
    return _Pooled.apply(x, convolution.weight, convolution.bias)  # type: ignore[no-any-return, no-untyped-call]


def banded(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution without stride or padding of what other layers gave; the short way if it is trained plainly."""
    if not _trained(convolution) or not x.requires_grad:
        return convolution(x)  # type: ignore[no-any-return]
    return _Banded.apply(x, convolution.weight, convolution.bias)  # type: ignore[no-any-return, no-untyped-call]


def _trained(convolution: nn.Conv2d) -> bool:
    """Whether nobody looks on, or differentiates twice: that goes by ``functional_call``, on bare tensors."""
    own = isinstance(convolution.weight, nn.Parameter) and convolution.bias is not None
    return own and torch.is_grad_enabled() and not convolution._forward_hooks
