"""The written-out GRU against ``nn.GRU`` under autograd, and against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.learn.models.gru import GruLayer


@pytest.mark.parametrize(("batch", "steps", "inputs", "hidden"), [(1, 1, 2, 3), (4, 7, 3, 5), (3, 20, 6, 4)])
def test_states_and_gradients_are_those_of_the_library_s_layer(
    batch: int, steps: int, inputs: int, hidden: int
) -> None:
    draws = torch.Generator().manual_seed(0)
    plain, ours = nn.GRU(inputs, hidden, batch_first=True).double(), GruLayer(inputs, hidden).double()
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(batch, steps, inputs, generator=draws, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(batch, steps, hidden, generator=draws, dtype=torch.float64)
    grads = []
    for layer in (plain, ours):
        states, last = layer(x)
        torch.testing.assert_close(last, states[:, -1].unsqueeze(0))
        loss = (states * upstream).sum() + last.square().sum()
        grads.append((states.detach(), *torch.autograd.grad(loss, [x, *layer.parameters()])))
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    layer = GruLayer(2, 3).double()
    names = [name for name, _ in layer.named_parameters()]

    def states(x: Tensor, *leaves: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, leaves, strict=True)), (x,))[0]  # type: ignore[no-any-return]

    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(states, [x, *(leaf.detach().requires_grad_() for leaf in layer.parameters())])


def test_without_gradients_the_states_are_the_same() -> None:
    layer, x = GruLayer(3, 4), torch.rand(2, 5, 3)
    with torch.no_grad():
        quick = layer(x)[0]
    torch.testing.assert_close(quick, layer(x)[0].detach())
