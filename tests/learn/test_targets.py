"""Losses beside torch's own, and their slopes beside autograd, for every kind of targets and every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from coterie.learn.models.dense import Dense
from coterie.learn.models.mixture import Mixture
from coterie.learn.models.model import Batch, Model, as_model
from coterie.learn.params import flatten, pick, stack
from coterie.learn.targets import CLASSES, MULTI_LABEL, NUMBERS, targets

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(2, 6, 4, generator=DRAWS)
Y = {
    "classes": torch.randint(3, (2, 6), generator=DRAWS),
    "labels": torch.rand(2, 6, 3, generator=DRAWS) > 0.5,
    "numbers": torch.randn(2, 6, 3, generator=DRAWS),
}
TORCHS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": cross_entropy,
    "labels": lambda outputs, y: binary_cross_entropy_with_logits(outputs, y.float()),
    "numbers": mse_loss,
}
kinds = pytest.mark.parametrize("kind", TORCHS)
models = pytest.mark.parametrize("model", [Dense((4, 5, 3)), as_model(lambda: net())], ids=["dense", "module"])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_the_type_decides() -> None:
    assert [targets(y) for y in Y.values()] == [CLASSES, MULTI_LABEL, NUMBERS]


@kinds
def test_losses_are_torchs_and_slopes_their_derivatives(kind: str) -> None:
    outputs, y = torch.randn(2, 6, 3, generator=DRAWS, requires_grad=True), Y[kind]
    losses = torch.stack([targets(y).losses(outputs[client], y[client]) for client in range(2)])
    for client in range(2):
        torch.testing.assert_close(losses[client].mean(), TORCHS[kind](outputs[client], y[client]))
    (due,) = torch.autograd.grad(losses.sum(), outputs)
    before = outputs.detach().clone()
    torch.testing.assert_close(targets(y).slopes(before, y), due)
    assert torch.equal(before, outputs)


@pytest.mark.parametrize("classes", [2, 12, 13])
def test_many_at_once_as_one_by_one(classes: int) -> None:
    outputs = 5 * torch.randn(3, 7, classes, generator=DRAWS)
    y = torch.randint(classes, (3, 7), generator=DRAWS)
    torch.testing.assert_close(CLASSES.many_slopes(outputs, y), CLASSES.slopes(outputs, y))
    flat = outputs.flatten(0, 1), y.flatten()
    torch.testing.assert_close(CLASSES.many_losses(*flat), CLASSES.losses(*flat))


@kinds
def test_outputs_predict_what_they_are_made_of(kind: str) -> None:
    rule = targets(Y[kind])
    predicted = rule.predicted(torch.randn(5, 3, generator=DRAWS))
    torch.testing.assert_close(rule.predicted(rule.outputs(predicted)), predicted)


def batch(y: Tensor) -> Batch:
    return Batch(X, y, torch.full((2, 6), 1 / 6), torch.full((2,), 6.0), torch.ones(2, dtype=torch.bool))


@kinds
@models
@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradients_are_autograd_s(model: Model, kind: str, clip: float | None) -> None:
    """Of the whole batch, and with each example's clipped by itself."""
    params = stack([model.init(1), model.init(2)])
    found = model.gradients(params, batch(Y[kind]), clip)
    for client in range(2):
        module = model.module(pick(params, client))
        rows = [slice(0, 6)] if clip is None else [slice(at, at + 1) for at in range(6)]
        due = [torch.zeros_like(leaf) for leaf in module.parameters()]
        for part in rows:
            loss = TORCHS[kind](module(X[client, part]), Y[kind][client, part])
            grads = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
            scale = 1.0 if clip is None else float((clip / norm).clamp_max(1)) / 6
            due = [total + scale * grad for total, grad in zip(due, grads, strict=True)]
        for leaf, expected in zip(pick(found, client).values(), due, strict=True):
            torch.testing.assert_close(leaf, expected, rtol=1e-4, atol=1e-6)


@kinds
@models
def test_whole_gradients_of_dp_sgd(model: Model, kind: str) -> None:
    params, clip = stack([model.init(1), model.init(2)]), 0.3
    plain = flatten(model.gradients(params, batch(Y[kind]), clip))
    sums = model.whole_gradients(params, batch(Y[kind]), clip, min(1 << 16, model.units(16, plain.shape[1])[1]), 16)
    whole = torch.stack([torch.from_numpy(total) * sums.worth for total in sums.totals])
    assert float((whole / 6 - plain).norm() / plain.norm()) < 0.02


@kinds
def test_steps_and_repeated_steps_agree(kind: str) -> None:
    """The short way by products of the examples is the same training."""
    model = Dense((8, 5, 3))
    x = torch.randn(2, 6, 8, generator=DRAWS)
    whole = Batch(x, Y[kind], torch.full((2, 6), 1 / 6), torch.full((2,), 6.0), torch.ones(2, dtype=torch.bool))
    start = stack([model.init(1), model.init(2)])
    found = model.repeated(start, whole, 4, 0.3)
    assert found is not None
    for _ in range(4):
        model.step(start, whole, 0.3)
    for name, leaf in start.items():
        torch.testing.assert_close(found[name], leaf, rtol=1e-4, atol=1e-6)


@kinds
def test_a_mixture_predicts_the_mean_of_what_its_parts_predict(kind: str) -> None:
    parts, weights, rule = [net(), net()], torch.tensor([0.3, 0.7]), targets(Y[kind])
    mixed: Any = Mixture(parts, weights, rule)(X[0])
    due = sum(weight * rule.predicted(part(X[0])) for weight, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(rule.predicted(mixed), due)
