"""The batched gradients against autograd, and clipping against one example at a time."""

from __future__ import annotations

import math

import pytest
import torch
from tests.references import client_loop as slow
from tests.ring import batch
from torch.nn.functional import cross_entropy

from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.own_examples import OwnExamples
from coterie.learn.params import Params, pick, stack
from coterie.learn.sgd import descend

SHAPES = [(4, 3), (6, 5, 2), (9, 8, 7, 4), (3, 1, 2)]


def gradient(sizes: tuple[int, ...], params: Params, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """One example's, by autograd."""
    module = slow.module_of(sizes)
    slow.load(module, dict(params))
    grads = torch.autograd.grad(cross_entropy(module(x.unsqueeze(0)), y.unsqueeze(0)), list(module.parameters()))
    return dict(zip(params, grads, strict=True))


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("clip", [None, 0.05, 1.0, 1e6, math.inf])
def test_gradients_one_example_at_a_time(sizes: tuple[int, ...], clip: float | None) -> None:
    draws = torch.Generator().manual_seed(0)
    clients, width = 3, 5
    params = stack(Dense(sizes).init(seed) for seed in range(clients))
    x = 2 * torch.randn(clients, width, sizes[0], generator=draws)
    y = torch.randint(sizes[-1], (clients, width), generator=draws)
    weights = torch.rand(clients, width, generator=draws)
    weights[0, 0] = 0.0  # padding
    fast = Dense(sizes).gradients(params, batch(x, y, weights), clip)
    clipped = 0
    for client in range(clients):
        expected = {name: torch.zeros_like(leaf[client]) for name, leaf in params.items()}
        for example in range(width):
            one = gradient(sizes, pick(params, client), x[client, example], y[client, example])
            norm = math.sqrt(sum(float(leaf.square().sum()) for leaf in one.values()))
            scale = 1.0 if clip is None else min(1.0, clip / norm)
            clipped += scale < 1
            for name, leaf in one.items():
                expected[name] += weights[client, example] * scale * leaf
        for name, leaf in expected.items():
            torch.testing.assert_close(fast[name][client], leaf, rtol=1e-4, atol=1e-6)
    assert (clipped > 0) == (clip is not None and clip < 1e6)  # the bounds are on both sides of the norms


def test_pictures_are_flattened() -> None:
    model = Dense((12, 3))
    x = torch.randn(2, 4, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(2, 4, dtype=torch.int64)
    params = stack(model.init(seed) for seed in range(2))
    flat = model.gradients(params, batch(x.flatten(2), y))
    for name, leaf in model.gradients(params, batch(x, y)).items():
        assert torch.equal(leaf, flat[name])
    assert torch.equal(model.logits(model.init(0), x[0]), model.logits(model.init(0), x[0].flatten(1)))


class TestDropout:
    def test_the_same_seed_drops_the_same(self) -> None:
        model = Dense((6, 50, 3)).with_dropout(0.5)
        x, y = torch.ones(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
        params = stack([model.init(0)] * 2)
        same = model.gradients(params, batch(x, y, seeds=(7, 7)))
        other = model.gradients(params, batch(x, y, seeds=(7, 8)))
        assert torch.equal(same["0.weight"][0], same["0.weight"][1])
        assert torch.equal(same["0.weight"][0], other["0.weight"][0])
        assert not torch.equal(other["0.weight"][0], other["0.weight"][1])

    def test_padding_does_not_move_the_draws(self) -> None:
        """A client in a chunk with larger batches must drop the same units as alone."""
        model = Dense((6, 5, 3), dropout=0.5)
        draws = torch.Generator().manual_seed(0)
        x, y = torch.randn(1, 9, 6, generator=draws), torch.randint(3, (1, 9), generator=draws)
        params = stack([model.init(0)])
        weights = torch.tensor([[1 / 4] * 4 + [0.0] * 5])
        wide = model.gradients(params, batch(x, y, weights, seeds=(3,)))
        narrow = model.gradients(params, batch(x[:, :4], y[:, :4], weights[:, :4], seeds=(3,)))
        for name, leaf in narrow.items():
            torch.testing.assert_close(wide[name], leaf)

    def test_a_dropped_unit_has_no_gradient_and_the_rest_are_scaled(self) -> None:
        """By hand: with one input, the gradient of the first layer's bias is (delta W)_j mask_j / (1 - p)."""
        model = Dense((1, 1000, 2), dropout=0.25)
        params = {
            "0.weight": torch.ones(1, 1000, 1),
            "0.bias": torch.zeros(1, 1000),
            "1.weight": torch.stack([torch.full((1000,), 1e-6), torch.zeros(1000)]).unsqueeze(0),
            "1.bias": torch.zeros(1, 2),
        }
        grads = model.gradients(params, batch(torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.int64), seeds=(1,)))
        values = grads["0.bias"].flatten()
        kept = values != 0
        # 1000 units at 0.75: the standard deviation is 13.7; six of them are passed once in 5e8 seeds
        assert abs(int(kept.sum()) - 750) < 82
        torch.testing.assert_close(values[kept], torch.full_like(values[kept], -0.5 * 1e-6 / 0.75), rtol=1e-2, atol=0)

    def test_prediction_is_without_dropout(self) -> None:
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
        params = Dense((6, 4, 3)).init(0)
        assert torch.equal(Dense((6, 4, 3), dropout=0.9).logits(params, x), Dense((6, 4, 3)).logits(params, x))


class TestRepeated:
    """Steps on all data, by the products of the examples, against one step after the other."""

    @pytest.mark.parametrize("sizes", [(12, 7, 3), (12, 6, 5, 3)], ids=str)
    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_step_by_step(self, sizes: tuple[int, ...], seed: int) -> None:
        model, draws = Dense(sizes), torch.Generator().manual_seed(seed)
        start = stack(model.init(100 * seed + client) for client in range(3))
        x, y = torch.randn(3, 8, 12, generator=draws), torch.randint(3, (3, 8), generator=draws)
        weights = torch.tensor([[1 / 8] * 8, [1 / 5] * 5 + [0.0] * 3, [0.0] * 8])  # padded; a client without data
        same = Batch(x, y, weights, torch.tensor([8.0, 5.0, 1.0]), torch.tensor([True, True, False]))
        found = model.repeated(start, same, 6, 0.4)
        assert found is not None
        for name, leaf in descend(model, start, [same] * 6, 0.4).items():
            torch.testing.assert_close(found[name], leaf, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(found[name][2], leaf[2]) for name, leaf in start.items())

    def test_only_where_it_pays(self) -> None:
        start = stack([Dense((4, 5, 3)).init(0)])
        many = batch(torch.zeros(1, 6, 4), torch.zeros(1, 6, dtype=torch.int64))
        few = batch(torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.int64))
        assert Dense((4, 5, 3)).repeated(start, many, 5, 0.1) is None  # more examples than features
        assert Dense((4, 5, 3)).repeated(start, few, 1, 0.1) is None
        assert Dense((4, 5, 3), dropout=0.5).repeated(start, few, 5, 0.1) is None
        assert Dense((4, 5, 3)).repeated(start, few, 5, 0.1) is not None


class TestRetraced:
    """Steps on parts of the clients' own examples, by the products of these, against one step after the other."""

    @pytest.mark.parametrize("sizes", [(20, 7, 3), (20, 6, 5, 3)], ids=str)
    def test_it_is_step_by_step(self, sizes: tuple[int, ...]) -> None:
        model, draws = Dense(sizes), torch.Generator().manual_seed(0)
        rows, clients, width = [6, 9, 0], 3, 4
        start = stack(model.init(client) for client in range(clients))
        x, y = torch.randn(15, 20, generator=draws), torch.randint(3, (15,), generator=draws)
        weights = torch.tensor([[1 / 4] * 4, [1 / 3] * 3 + [0.0], [0.0] * 4])  # one without data
        places, plain = [], []
        for _ in range(5):
            at = torch.stack([torch.randperm(6, generator=draws)[:width], torch.randperm(9, generator=draws)[:width]])
            at = torch.cat([at, torch.zeros(1, width, dtype=torch.int64)])
            places.append(batch(at, at, weights))
            whole = at + torch.tensor([[0], [6], [0]])
            plain.append(batch(x[whole], y[whole], weights))
        found = {name: leaf.clone() for name, leaf in start.items()}
        own = OwnExamples.of(x, y, rows)
        outputs = [
            torch.addmm(found["0.bias"][client], part, found["0.weight"][client].T)
            for client, part in enumerate(own.clients)
        ]
        model.retraced(found, torch.cat(outputs), own, places, 0.4)
        for name, leaf in descend(model, start, plain, 0.4).items():
            torch.testing.assert_close(found[name], leaf, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(found[name][2], leaf[2]) for name, leaf in start.items())

    def test_losses_onward_from_first_outputs(self) -> None:
        model, draws = Dense((5, 4, 3, 2)), torch.Generator().manual_seed(1)
        models = stack(model.init(slot) for slot in range(3))
        x, y = torch.randn(7, 5, generator=draws), torch.randint(2, (7,), generator=draws)
        outputs = model.first_outputs(models, x)
        before = outputs.clone()
        found = model.losses_onward(models, outputs, y)
        torch.testing.assert_close(found.T, model.slot_losses(models, x, y))
        assert torch.equal(outputs, before)  # training begins with them
