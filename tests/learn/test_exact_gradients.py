"""Sums of clipped gradients: exact in any order, the gradients themselves up to rounding, nobody above the bound."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.exact_gradients import exact_dense_sums, gradient_step, most_units, stands_alone
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.params import stack
from coterie.rng import Rng

WIDTH, CLIP = 16, 0.7
Layers = tuple[list[Tensor], list[Tensor]]


def random_layers(seed: int, sizes: tuple[int, ...] = (30, 12, 4), clients: int = 2, spread: float = 1.0) -> Layers:
    draws = Rng.seeded(seed).torch()
    sizing = torch.exp(spread * torch.randn(clients, WIDTH, 1, generator=draws))
    inputs = [torch.randn(clients, WIDTH, fan, generator=draws) for fan in sizes[:-1]]
    deltas = [torch.randn(clients, WIDTH, fan, generator=draws) * sizing * 0.05 for fan in sizes[1:]]
    return inputs, deltas


def flat(sums: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(clients, length) int64"""
    whole = torch.cat([part.flatten(1).double() for pair in sums for part in pair], 1)
    assert torch.equal(whole, whole.round())
    return whole.long()


def only(layers: Layers, example: int) -> Layers:
    inputs, deltas = layers
    keep = torch.zeros(WIDTH, 1)
    keep[example] = 1
    return inputs, [delta * keep for delta in deltas]


def evil_layers() -> Layers:
    """Zeros, the largest and smallest floats, NaN, and entries that all round up."""
    inputs, deltas = random_layers(3)
    inputs[0][:, 0], inputs[1][:, 1], deltas[0][:, 2], deltas[1][:, 3] = 1e19, 1e30, 3e38, 1e-44
    inputs[0][:, 4], deltas[0][:, 5], deltas[1][:, 6] = 0.0, math.nan, math.inf
    for layer in range(2):
        deltas[layer][:, 7] = 0.0
        inputs[layer][:, 8:], deltas[layer][:, 8:] = 1.0 + 1e-6, 0.5
    return inputs, deltas


@pytest.mark.parametrize("layers", [random_layers(0), random_layers(1, spread=6.0), evil_layers()])
@pytest.mark.parametrize("units", [300, 40_000, most_units(WIDTH)])
def test_a_sum_is_the_sum_of_its_examples_none_of_which_is_longer_than_the_bound(layers: Layers, units: int) -> None:
    whole = flat(exact_dense_sums(*layers, CLIP, units))
    singles = [flat(exact_dense_sums(*only(layers, example), CLIP, units)) for example in range(WIDTH)]
    assert torch.equal(whole, torch.stack(singles).sum(0))
    for single in singles:
        for client in single.tolist():
            assert sum(entry * entry for entry in client) <= units**2


def test_the_order_does_not_matter() -> None:
    inputs, deltas = random_layers(4)
    order = torch.randperm(WIDTH, generator=Rng.seeded(0).torch())
    moved = [leaf[:, order] for leaf in inputs], [leaf[:, order] for leaf in deltas]
    whole = flat(exact_dense_sums(inputs, deltas, CLIP, 50_000))
    assert torch.equal(whole, flat(exact_dense_sums(*moved, CLIP, 50_000)))
    one = [leaf[1:] for leaf in inputs], [leaf[1:] for leaf in deltas]
    assert torch.equal(whole[1:], flat(exact_dense_sums(*one, CLIP, 50_000)))


def dense(width: int, clients: int = 3) -> tuple[Dense, dict[str, Tensor], Batch]:
    model, draws = Dense((50, 20, 5)), Rng.seeded(5).torch()
    params = stack([model.init(seed) for seed in range(clients)])
    x = torch.rand(clients, width, 50, generator=draws)
    y = torch.randint(0, 5, (clients, width), generator=draws)
    ones, active = torch.ones(clients, width), torch.ones(clients, dtype=torch.bool)
    return model, params, Batch(x, y, ones, ones.sum(1), active)


@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
def test_it_is_the_clipped_gradient(clip: float) -> None:
    model, params, batch = dense(32)
    inputs, masks, logits = model._forward(params, batch)
    deltas = model._backward(params, batch, inputs, masks, logits)
    expected = model.gradients(params, batch, clip)
    units = most_units(32)
    sums, step = exact_dense_sums(inputs, deltas, clip, units), gradient_step(clip, units, [(50, 20), (20, 5)])
    for layer, (weight, bias) in enumerate(sums):
        for name, found in (("weight", weight), ("bias", bias)):
            off = (found * step - expected[f"{layer}.{name}"]).norm() / expected[f"{layer}.{name}"].norm()
            assert float(off) < (0.02 if clip < 100 else 0.1), name


def test_one_example_more_moves_the_sum_by_itself_alone() -> None:
    """A dense model end to end at one width: what is left of the batch keeps its bits when an example goes."""
    model, params, batch = dense(32)

    def sums(weights: Tensor) -> Tensor:
        part = Batch(batch.x * weights.unsqueeze(-1), batch.y, weights, batch.divisors, batch.active)
        inputs, masks, logits = model._forward(params, part)
        return flat(exact_dense_sums(inputs, model._backward(params, part, inputs, masks, logits), 0.3, 100_000))

    everyone = torch.ones(3, 32)
    for gone in (0, 13, 31):
        without = everyone.clone()
        without[:, gone] = 0
        moved = sums(everyone) - sums(without)
        assert torch.equal(moved, sums(everyone - without))
        assert max(sum(entry * entry for entry in row) for row in moved.tolist()) <= 100_000**2


def test_models_rows_stand_alone_at_one_width() -> None:
    model, params, batch = dense(32)

    def logits(x: Tensor) -> Tensor:
        return model._forward(params, Batch(x, batch.y, batch.weights, batch.divisors, batch.active))[2]

    assert stands_alone(logits, batch.x)
    assert not stands_alone(lambda x: x - x.mean(1, keepdim=True), batch.x)
    assert not stands_alone(lambda x: x * torch.arange(32.0).view(1, -1, 1), batch.x)


def test_products_of_lower_precision_are_refused() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(InvalidInput, match="float32 matmul precision='medium'"):
            exact_dense_sums(*random_layers(0), CLIP, 1000)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_bounds_that_float32_cannot_add_up_are_refused() -> None:
    layers = random_layers(0)
    assert most_units(50) * 50 < 2**24
    assert all(most_units(a) >= most_units(b) for a, b in pairwise((1, 16, 50, 512, 4096)))
    with pytest.raises(InvalidInput, match="units="):
        exact_dense_sums(*layers, CLIP, most_units(WIDTH) + 1)
    with pytest.raises(InvalidInput, match="width=100000"):
        most_units(100_000)
    with pytest.raises(InvalidInput, match="clipping bound=inf"):
        exact_dense_sums(*layers, math.inf, 100)
