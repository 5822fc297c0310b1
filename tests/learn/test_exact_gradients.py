"""Sums of clipped gradients: exact in any order, the gradients themselves up to rounding, nobody above the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn import whole_products
from coterie.learn.exact_gradients import (
    BYTE_UNITS,
    WITHIN_BYTES,
    DenseSums,
    _Rounded,
    exact_dense_sums,
    gradient_step,
    stands_alone,
)
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.params import Layout, stack
from coterie.learn.whole_products import SummedOuterProducts
from coterie.rng import Rng

WIDTH, CLIP = 16, 0.7
Layers = tuple[list[Tensor], list[Tensor]]


def random_layers(seed: int, sizes: tuple[int, ...] = (30, 12, 4), clients: int = 2, spread: float = 1.0) -> Layers:
    draws = Rng.seeded(seed).torch()
    sizing = torch.exp(spread * torch.randn(clients, WIDTH, 1, generator=draws))
    inputs = [torch.randn(clients, WIDTH, fan, generator=draws) for fan in sizes[:-1]]
    deltas = [torch.randn(clients, WIDTH, fan, generator=draws) * sizing * 0.05 for fan in sizes[1:]]
    return inputs, deltas


def flat(sums: DenseSums) -> Tensor:
    """(clients, length) int64"""
    return torch.stack([torch.from_numpy(own).long() for own in sums])


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
@pytest.mark.parametrize("units", [300, 5_000, BYTE_UNITS - 1, BYTE_UNITS])
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
    whole = flat(exact_dense_sums(inputs, deltas, CLIP, 5_000))
    assert torch.equal(whole, flat(exact_dense_sums(*moved, CLIP, 5_000)))
    one = [leaf[1:] for leaf in inputs], [leaf[1:] for leaf in deltas]
    assert torch.equal(whole[1:], flat(exact_dense_sums(*one, CLIP, 5_000)))


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
    units = BYTE_UNITS
    step = gradient_step(clip, units, [(50, 20), (20, 5)])
    sums = flat(exact_dense_sums(inputs, deltas, clip, units)) * step
    for name, found in Layout.of(expected, leading=1).unflatten(sums).items():
        off = (found - expected[name]).norm() / expected[name].norm()
        assert float(off) < (0.05 if clip < 100 else 0.25), name  # beside a clip of 100, gradients are short


def test_one_example_more_moves_the_sum_by_itself_alone() -> None:
    """A dense model end to end at one width: what is left of the batch keeps its bits when an example goes."""
    model, params, batch = dense(32)

    def sums(weights: Tensor) -> Tensor:
        part = Batch(batch.x * weights.unsqueeze(-1), batch.y, weights, batch.divisors, batch.active)
        inputs, masks, logits = model._forward(params, part)
        return flat(exact_dense_sums(inputs, model._backward(params, part, inputs, masks, logits), 0.3, 10_000))

    everyone = torch.ones(3, 32)
    for gone in (0, 13, 31):
        without = everyone.clone()
        without[:, gone] = 0
        moved = sums(everyone) - sums(without)
        assert torch.equal(moved, sums(everyone - without))
        assert max(sum(entry * entry for entry in row) for row in moved.tolist()) <= 10_000**2


def test_models_rows_stand_alone_at_one_width() -> None:
    model, params, batch = dense(32)

    def logits(x: Tensor) -> Tensor:
        return model._forward(params, Batch(x, batch.y, batch.weights, batch.divisors, batch.active))[2]

    def drawn(draws: torch.Generator) -> Tensor:
        return torch.randn(batch.x.shape, generator=draws)

    def now_and_then(x: Tensor) -> Tensor:
        """One row in a hundred has other bits at an odd place, as small products have on some machines."""
        odd = torch.arange(32).remainder(2).view(1, -1, 1)
        return x + odd * (x[..., :1].abs() > 2.6) * 1e-6

    assert stands_alone(logits, drawn)
    assert not stands_alone(lambda x: x - x.mean(1, keepdim=True), drawn)
    assert not stands_alone(lambda x: x * torch.arange(32.0).view(1, -1, 1), drawn)
    assert not stands_alone(now_and_then, drawn)


def sparse_layers() -> Layers:
    """Rows with one entry, which has all of the norm."""
    inputs, deltas = random_layers(5, spread=2.0)
    for leaf in (*inputs, *deltas):
        leaf[:, ::2, 1:] = 0.0
        leaf[:, ::2, 0] = 1e3
    return inputs, deltas


@pytest.mark.parametrize("layers", [random_layers(0), random_layers(1, spread=6.0), evil_layers(), sparse_layers()])
@pytest.mark.parametrize("units", [300, 5_000, BYTE_UNITS])
def test_products_of_bytes_and_of_floats_are_the_same(
    layers: Layers, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a machine has instructions for bytes changes no bit of what is noised."""
    found = flat(exact_dense_sums(*layers, CLIP, units))
    monkeypatch.setattr(whole_products, "bytes_multiply", lambda *shape: False)
    assert torch.equal(found, flat(exact_dense_sums(*layers, CLIP, units)))


def test_products_that_cut_their_sums_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels do that add two products of bytes in 16 bits."""
    exact = torch._int_mm

    def cut(left: Tensor, right: Tensor) -> Tensor:
        parts = [exact(left[:, at : at + 2], right[at : at + 2]) for at in range(0, left.shape[1], 2)]
        return torch.stack([part.clamp(-32_000, 32_000) for part in parts]).sum(0)

    whole_products.bytes_multiply.cache_clear()
    usable = whole_products.bytes_multiply(16, 5, 7, 1)
    assert usable == torch.cpu._is_vnni_supported()
    whole_products.bytes_multiply.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", cut)
    assert not whole_products.bytes_multiply(16, 5, 7, 1)
    whole_products.bytes_multiply.cache_clear()


@pytest.mark.parametrize("entry", [-127.0, 127.0, 127.5, 128.0, -128.0, -129.0, 1e9, math.inf, math.nan])
@pytest.mark.parametrize("kind", [np.int8, np.float32])
def test_what_is_no_byte_counts_as_too_long(entry: float, kind: type[np.generic]) -> None:
    """It would be another number as a byte, and the norm that was found would not be that of what is added."""
    given, delta = np.array([[entry, 0.0]], dtype=np.float32), np.array([[1.0, 1.0]], dtype=np.float32)
    rounded = _Rounded([given, delta], np.array([[0.0], [1.0], [1.0]], dtype=np.float32), 1, kind)
    long = rounded.longer_than(BYTE_UNITS)
    assert long.tolist() == ([] if abs(entry) <= 127 else [0])
    assert 127**2 <= WITHIN_BYTES < 128**2


def test_sums_beyond_what_floats_hold_are_added_in_parts() -> None:
    """3,000 rows whose products of 127 and 127 add up to 4.8e7 by entry, which float32 does not hold."""
    kinds: set[type[np.generic]] = {np.float32, whole_products.factor_kind(3001, 2, 3)}
    for kind in kinds:
        left, right = np.full((1, 3001, 2), 127, dtype=kind), np.full((1, 3001, 3), 127, dtype=kind)
        found = torch.empty(6, dtype=torch.int32)
        SummedOuterProducts(left, right, 127**2 * 3).into(found, 0)
        assert bool((found == 3001 * 127**2).all())
    left, right = left.astype(np.float32), right.astype(np.float32)
    SummedOuterProducts(left[:, :0], right[:, :0], 9).into(found, 0)
    assert found.abs().sum() == 0
    with pytest.raises(InvalidInput, match=r"must be below 2\^31"):
        SummedOuterProducts(left, right, 1 << 20)


def test_products_of_lower_precision_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no products of bytes."""
    monkeypatch.setattr(whole_products, "bytes_multiply", lambda *shape: False)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(InvalidInput, match="float32 matmul precision='medium'"):
            exact_dense_sums(*random_layers(0), CLIP, BYTE_UNITS)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_bounds_that_no_product_can_add_up_are_refused() -> None:
    layers = random_layers(0)
    with pytest.raises(InvalidInput, match="units="):
        exact_dense_sums(*layers, CLIP, BYTE_UNITS + 1)
    with pytest.raises(InvalidInput, match="clipping bound=inf"):
        exact_dense_sums(*layers, math.inf, 100)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_clients_and_no_batch_are_refused_by_name(shape: tuple[int, int]) -> None:
    with pytest.raises(
        InvalidInput, match=rf"clients and batch=\({shape[0]}, {shape[1]}\) must be at least one of each"
    ):
        exact_dense_sums([torch.zeros(*shape, 4)], [torch.zeros(*shape, 2)], 1.0, 5_000)
