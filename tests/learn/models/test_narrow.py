"""Short ways round convolutions of few channels, held against the layers themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.learn.models.bundled import Cnn
from coterie.learn.models.narrow import banded, pooled


def layers(channels: int = 1, kernel: int = 5) -> tuple[nn.Conv2d, nn.MaxPool2d]:
    torch.manual_seed(0)
    return nn.Conv2d(channels, 6, kernel), nn.MaxPool2d(2)


@pytest.mark.parametrize(
    ("channels", "kernel", "shape"), [(1, 5, (28, 28)), (3, 5, (32, 16)), (2, 3, (8, 10)), (1, 2, (5, 7))]
)
@pytest.mark.parametrize("flat", [False, True])
def test_it_is_what_the_two_layers_give(channels: int, kernel: int, shape: tuple[int, int], flat: bool) -> None:
    """In double precision, also where outputs are equal: half of the picture is empty."""
    convolution, pooling = (layer.double() for layer in layers(channels, kernel))
    x = torch.rand(7, channels, *shape, dtype=torch.float64)
    if flat:
        x[:, :, : shape[0] // 2] = 0
    one, two = pooled(convolution, pooling, x), pooling(convolution(x))  # type: ignore[arg-type]
    assert "_Pooled" in type(one.grad_fn).__name__
    torch.testing.assert_close(one, two)
    slopes, leaves = torch.rand_like(two), list(convolution.parameters())
    found, expected = (torch.autograd.grad(outputs, leaves, slopes) for outputs in (one, two))
    torch.testing.assert_close(found, expected)


def test_of_equal_outputs_the_first_has_the_slope() -> None:
    """A kernel of ones on a picture whose four sums are equal, and whose pixels are not."""
    convolution, pooling = nn.Conv2d(1, 1, 1), nn.MaxPool2d(2)
    for x in (
        torch.ones(1, 1, 2, 2),
        torch.tensor([[[[1.0, 2.0], [2.0, 1.0]]]]),
        torch.tensor([[[[1.0, 1.0], [2.0, 2.0]]]]),
    ):
        picture = torch.cat([x, x * 10], 0)
        outputs = pooled(convolution, pooling, picture), pooling(convolution(picture))
        found, expected = (torch.autograd.grad(output.sum(), list(convolution.parameters())) for output in outputs)
        torch.testing.assert_close(found, expected)


def test_only_plain_training_is_joined() -> None:
    convolution, pooling = layers()

    def joined(x: torch.Tensor) -> bool:
        return "_Pooled" in type(pooled(convolution, pooling, x).grad_fn).__name__

    assert joined(torch.rand(2, 1, 8, 8))
    assert not joined(torch.rand(2, 1, 9, 8))  # five rows of outputs
    assert not joined(torch.rand(2, 1, 8, 8, requires_grad=True))
    handle = convolution.register_forward_hook(lambda *_: None)
    assert not joined(torch.rand(2, 1, 8, 8))  # somebody wants to see what the layer gives
    handle.remove()
    with torch.no_grad():
        assert not joined(torch.rand(2, 1, 8, 8))


def test_it_says_that_it_cannot_be_differentiated_twice() -> None:
    convolution, pooling = layers()
    (slope,) = torch.autograd.grad(
        pooled(convolution, pooling, torch.rand(2, 1, 8, 8)).sum(), [convolution.weight], create_graph=True
    )
    with pytest.raises(RuntimeError):
        slope.sum().backward()


def test_the_cnn_gives_the_same_joined_and_apart() -> None:
    torch.manual_seed(1)
    module, x = Cnn().build(), torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        apart = module(x)
    torch.testing.assert_close(module(x), apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "kernel", "shape"),
    [(6, (5, 5), (12, 12)), (1, (3, 2), (7, 4)), (3, (1, 4), (5, 9)), (2, (4, 4), (4, 4))],
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_bands_give_what_the_layer_gives(
    channels: int, kernel: tuple[int, int], shape: tuple[int, int], order: torch.memory_format
) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, 5, kernel).double()
    x = torch.rand(7, channels, *shape, dtype=torch.float64).contiguous(memory_format=order).requires_grad_()
    one, two = banded(convolution, x), convolution(x)
    assert "_Banded" in type(one.grad_fn).__name__
    torch.testing.assert_close(one, two)
    slopes, wanted = torch.rand_like(two), [x, *convolution.parameters()]
    found, expected = (torch.autograd.grad(outputs, wanted, slopes) for outputs in (one, two))
    torch.testing.assert_close(found, expected)


def test_only_plain_training_goes_by_bands() -> None:
    convolution, _ = layers()

    def short(requires_grad: bool = True) -> bool:
        x = torch.rand(2, 1, 8, 8, requires_grad=requires_grad)
        return "_Banded" in type(banded(convolution, x).grad_fn).__name__

    assert short()
    assert not short(requires_grad=False)
    handle = convolution.register_forward_hook(lambda *_: None)
    assert not short()
    handle.remove()
    with torch.no_grad():
        assert not short()


def test_the_cnn_has_the_gradients_of_its_layers() -> None:
    torch.manual_seed(2)
    module, x = Cnn().build().double(), torch.rand(5, 1, 28, 28, dtype=torch.float64)
    assert isinstance(module, nn.Sequential)
    leaves = list(module.parameters())
    found, expected = (
        torch.autograd.grad(out.square().sum(), leaves) for out in (module(x), nn.Sequential(*module)(x))
    )
    torch.testing.assert_close(found, expected)
