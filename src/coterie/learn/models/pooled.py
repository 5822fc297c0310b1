"""A convolution and the pooling behind it as one: on few channels, pooling takes as long as the convolution."""

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


def pooled(convolution: nn.Conv2d, pooling: nn.MaxPool2d, x: Tensor) -> Tensor:
    """Pooling by 2 behind a convolution without stride or padding; as one, if all that is wanted are its gradients."""
    weight, bias = convolution.weight, convolution.bias
    watched = convolution._forward_hooks or pooling._forward_hooks
    trained = isinstance(weight, nn.Parameter) and torch.is_grad_enabled() and not x.requires_grad
    even = all((side - kernel) % 2 for side, kernel in zip(x.shape[2:], weight.shape[2:], strict=True))
    if bias is None or watched or not trained or not even:
        return pooling(convolution(x))  # type: ignore[no-any-return]
    return _Pooled.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
