"""Every fast clipped gradient equals the one computed example by example, and Opacus's."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.references.micro_batch import clipped_sum
from torch import Tensor, nn
from torch.nn.functional import linear, relu_

from coterie.learn import per_example
from coterie.learn.models.bundled import Cnn, FaceCnn, Gru, ResNet18
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch, ModuleModel, seeded
from coterie.learn.params import flatten, stack
from coterie.learn.per_example import clipped_gradient, whole_gradient
from coterie.learn.whole import step_of


class Tied(nn.Module):
    """A weight that is also used by hand: no layer's input and output tell of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(linear(self.first(x), self.first.weight))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(self.first(x).tanh()))  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """A layer's output overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(relu_(self.second(self.first(x))))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5, **settings)  # type: ignore[arg-type]
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(x))).mean(1)  # type: ignore[no-any-return]


def pictures(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(9, *shape)


def tokens() -> Tensor:
    return torch.randint(0, 7, (9, 6))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], bool]] = {
    "linear": (lambda: nn.Linear(6, 3), pictures(6), True),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)), pictures(6), True),
    "few positions": (
        lambda: nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Flatten(), nn.Linear(90, 3)),
        pictures(3, 40),
        True,
    ),
    "many positions": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(200, 3)),
        pictures(50, 3),
        True,
    ),
    "in-place layers": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        pictures(6),
        True,
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        ),
        pictures(2, 8, 8),
        True,
    ),
    "strided, dilated, grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, dilation=2, padding=(1, 2), groups=2), nn.Flatten(), nn.Linear(200, 3)
        ),
        pictures(4, 11, 9),
        True,
    ),
    "ghost convolution": (
        lambda: nn.Sequential(nn.Conv2d(32, 40, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(160, 3)),
        pictures(32, 4, 4),
        True,
    ),
    "no bias, group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)),
        pictures(2, 6, 6),
        True,
    ),
    "mirrored edges": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(144, 3)),
        pictures(2, 6, 6),
        False,
    ),
    "tokens": (Tokens, tokens, True),
    "tokens with padding": (lambda: Tokens(padding_idx=0), tokens, True),
    "tokens by frequency": (lambda: Tokens(scale_grad_by_freq=True), tokens, False),
    "gru": (lambda: Gru(classes=3, vocabulary=7, embedding=4, hidden=5).build(), tokens, True),
    "lstm": (lambda: Last(nn.LSTM(4, 5, batch_first=True)), pictures(6, 4), False),
    "two-way gru": (lambda: Last(nn.GRU(4, 5, batch_first=True, bidirectional=True)), pictures(6, 4), False),
    "weight used by hand": (Tied, pictures(6), False),
    "layer called twice": (Twice, pictures(6), False),
    "output overwritten": (InPlace, pictures(6), False),
}


class Last(nn.Module):
    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(5 * (1 + recurrent.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])  # type: ignore[no-any-return]


def problem(
    build: Callable[[], nn.Module], draw: Callable[[], Tensor], seed: int = 1
) -> tuple[nn.Module, Tensor, Tensor]:
    with seeded(seed):
        module = build()
        x = draw()
        return module, x, torch.randint(0, 3, (len(x),))


def leaves_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: leaf.detach().clone() for name, leaf in module.named_parameters()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_equals_micro_batches(name: str, clip: float) -> None:
    build, draw, _ = CASES[name]
    module, x, y = problem(build, draw)
    leaves = leaves_of(module)
    weights = torch.tensor([0.5, 1.0, 0.0, 0.1, 0.2, 0.3, 0.0, 1.5, 0.7])
    found = clipped_gradient(module, leaves, x, y, weights, clip)
    expected = clipped_sum(module, leaves, x, y, weights, clip)
    for leaf, value in expected.items():
        torch.testing.assert_close(found[leaf], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", [0.3, 1e3])
def test_whole_gradients_equal_micro_batches(name: str, clip: float) -> None:
    """An example's weight scales its loss, before its gradient is clipped."""
    build, draw, _ = CASES[name]
    module, x, y = problem(build, draw)
    leaves, units = leaves_of(module), 1 << 40
    weights = torch.tensor([0.5, 1.0, 0.0, 0.1, 0.2, 0.3, 0.0, 1.5, 0.7])
    found = torch.from_numpy(whole_gradient(module, leaves, x, y, weights, clip, units, len(x)))
    expected = torch.zeros(len(found))
    for spot in weights.nonzero().flatten().tolist():
        one, weight = slice(spot, spot + 1), float(weights[spot])
        expected += weight * flatten(clipped_sum(module, leaves, x[one], y[one], torch.ones(1), clip / weight), 0)
    assert torch.equal(found, found.round())
    step = step_of(clip, units, len(found), torch.float64)
    torch.testing.assert_close(found.float() * step, expected, rtol=1e-4, atol=1e-6)


def without_each(module: nn.Module, x: Tensor, y: Tensor, weights: Tensor, width: int) -> None:
    """An example that goes takes its own gradient with it, which is no longer than promised, and nothing else."""
    leaves, units = leaves_of(module), 1 << 20

    def summed(x: Tensor, y: Tensor, weights: Tensor) -> NDArray[np.float64]:
        return whole_gradient(module, leaves, x, y, weights, 0.1, units, width)

    expected = summed(x, y, weights)
    assert np.isfinite(expected).all()
    for spot in range(len(x)):
        one, less = slice(spot, spot + 1), weights.clone()
        less[spot] = 0
        own = summed(x[one], y[one], weights[one])
        assert np.array_equal(expected - summed(x, y, less), own)
        assert np.square(own).sum() <= units**2


@pytest.mark.parametrize("name", CASES)
def test_hostile_examples_move_nothing_but_their_own(name: str) -> None:
    """Not finite, as large or as small as floats are, one token all along, under weights of every kind."""
    module, x, y = problem(*CASES[name][:2])
    if x.is_floating_point():
        x[0], x[1], x[2], x[3] = math.nan, x[1] * 1e30, x[2] * 1e-42, 3e38
        x[4].view(-1)[0] = -math.inf
    else:
        x[0], x[1] = x[0, 0], 0
    without_each(module, x, y, torch.tensor([1.0, 7.0, 1e-45, 1e38, -3.0, math.nan, math.inf, 0.5, 1.5]), 24)


class Mixing(nn.Module):
    """Each example's outputs hang on all examples, wherever the first layer says anything at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.head(torch.tanh(hidden - hidden.mean(0)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "build", [Mixing, lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), CASES["linear"][0]]
)
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e30])
def test_the_first_model_does_not_choose_the_block(build: Callable[[], nn.Module], factor: float) -> None:
    """Under weights of zero no rows differ, whatever is done to them: a server might begin with these."""
    sizes = []
    for first in (1.0, factor):
        module, x, y = problem(build, pictures(*((6,) if build is CASES["linear"][0] else (5,))))
        y, ones = y.remainder(2), torch.ones(9)
        whole_gradient(module, {name: first * leaf for name, leaf in leaves_of(module).items()}, x, y, ones, 1, 1000, 9)
        sizes.append(per_example._alone[module])
        without_each(module, x, y, ones, 9)
    assert sizes[0] == sizes[1]


class Remembers(nn.Module):
    """What an example leaves behind in a buffer, the next finds."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().mean(0)
        return self.head(x + self.seen)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fill", [Remembers, lambda: nn.BatchNorm2d(2, affine=False), lambda: Noticing()])
def test_what_training_alone_mixes_is_found(fill: Callable[[], nn.Module]) -> None:
    """The trial is made as in training: at rest, a normalisation by the batch keeps examples apart."""
    module, x, y = problem(
        lambda: fill() if fill is Remembers else nn.Sequential(fill(), nn.Flatten(), nn.Linear(18, 3)),
        pictures(*((5,) if fill is Remembers else (2, 3, 3))),
    )
    x[0] *= 1000
    before = [buffer.clone() for buffer in module.buffers()]
    without_each(module, x, y, torch.ones(9), 9)
    assert all(torch.equal(*pair) for pair in zip(before, module.buffers(), strict=True))


class Noticing(nn.Module):
    """Scales by the largest of all, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax() if self.training else x


def test_nobody_drawn_and_a_leaf_without_axes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.head(x)  # type: ignore[no-any-return]

    module, x, y = problem(Scaled, pictures(6))
    without_each(module, x[:2], y[:2], torch.ones(2), 9)
    for rows in (slice(0, 0), slice(0, 9)):
        none = torch.zeros(len(x[rows]))
        assert not whole_gradient(module, leaves_of(module), x[rows], y[rows], none, 1.0, 1000, 9).any()


@pytest.mark.parametrize("name", CASES)
def test_takes_the_fast_way_exactly_where_it_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, draw, fast = CASES[name]
    module, x, y = problem(build, draw)
    calls = []
    slow = per_example.one_by_one

    def counted(*given: Any) -> Any:
        calls.append(1)
        return slow(*given)

    monkeypatch.setattr(per_example, "one_by_one", counted)
    clipped_gradient(module, leaves_of(module), x, y, torch.ones(len(x)), 1.0)
    assert bool(calls) == (not fast)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(Cnn(3), (1, 28, 28)), (FaceCnn(3, (3, 16, 16)), (3, 16, 16)), (ResNet18(3, (3, 16, 16)), (3, 16, 16))],
)
def test_the_papers_models(model: ModuleModel, shape: tuple[int, ...]) -> None:
    module, x, y = problem(model.build, lambda: torch.randn(4, *shape))
    leaves = leaves_of(module)
    weights = torch.full((4,), 0.25)
    found = clipped_gradient(module, leaves, x, y, weights, 0.5)
    for leaf, value in clipped_sum(module, leaves, x, y, weights, 0.5).items():
        torch.testing.assert_close(found[leaf], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "convolution", "no bias, group norm", "tokens", "ghost convolution"])
@pytest.mark.filterwarnings("ignore")
def test_equals_opacus(name: str) -> None:
    from opacus.grad_sample import GradSampleModule

    build, draw, _ = CASES[name]
    module, x, y = problem(build, draw)
    found = clipped_gradient(module, leaves_of(module), x, y, torch.ones(len(x)), 0.3)
    watched = GradSampleModule(module, loss_reduction="sum")
    nn.functional.cross_entropy(watched(x), y, reduction="sum").backward()
    samples: dict[str, Any] = {leaf: vars(parameter)["grad_sample"] for leaf, parameter in module.named_parameters()}
    norms = torch.stack([sample.flatten(1).square().sum(1) for sample in samples.values()]).sum(0).sqrt()
    scales = (0.3 / norms).clamp_max(1)
    for leaf, sample in samples.items():
        torch.testing.assert_close(found[leaf], torch.einsum("i,i...->...", scales, sample), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [(6, 3), (6, 5, 3), (6, 8, 4, 3)])
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_dense_equals_micro_batches(sizes: tuple[int, ...], clip: float) -> None:
    model = Dense(sizes)
    params = stack([model.init(client) for client in range(2)])
    with seeded(5):
        x, y, weights = torch.randn(2, 9, 6), torch.randint(0, 3, (2, 9)), torch.rand(2, 9)
    weights[0, 3] = 0
    found = model.gradients(params, Batch(x, y, weights, torch.ones(2), torch.ones(2, dtype=torch.bool)), clip)
    for client in range(2):
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        module = nn.Sequential(*layers[:-1])
        leaves = {f"{2 * int(name.split('.')[0])}.{name.split('.')[1]}": leaf[client] for name, leaf in params.items()}
        expected = clipped_sum(module, leaves, x[client], y[client], weights[client], clip)
        for name, leaf in found.items():
            own = f"{2 * int(name.split('.')[0])}.{name.split('.')[1]}"
            torch.testing.assert_close(leaf[client], expected[own], rtol=1e-4, atol=1e-6)


def test_an_empty_batch_and_a_batch_of_padding_give_zero() -> None:
    module, x, y = problem(*CASES["linear"][:2])
    for rows in (slice(0, 0), slice(0, 3)):
        found = clipped_gradient(module, leaves_of(module), x[rows], y[rows], torch.zeros(len(x[rows])), 1.0)
        assert all(float(leaf.abs().sum()) == 0 for leaf in found.values())


def test_dropout_differs_from_example_to_example_and_follows_the_seed() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 3, bias=False))
    leaves = leaves_of(module)
    x, y = torch.ones(2, 40), torch.zeros(2, dtype=torch.int64)

    def gradient(seed: int, weights: list[float]) -> Tensor:
        with seeded(seed):
            return clipped_gradient(module, leaves, x, y, torch.tensor(weights), 1e9)["1.weight"]

    clipped_gradient(module, leaves, x, y, torch.ones(2), 1.0)  # the trial draws nothing, but leave it out of the way
    assert torch.equal(gradient(3, [1.0, 1.0]), gradient(3, [1.0, 1.0]))
    assert not torch.equal(gradient(3, [1.0, 1.0]), gradient(4, [1.0, 1.0]))
    both = gradient(3, [1.0, 1e-9])
    assert not torch.allclose(both, gradient(3, [1e-9, 1.0]))


def test_the_trial_leaves_the_module_in_training_mode() -> None:
    module, x, y = problem(*CASES["convolution"][:2])
    module.train()
    clipped_gradient(module, leaves_of(module), x, y, torch.ones(len(x)), 1.0)
    assert all(part.training for part in module.modules())
    assert not any(part._forward_hooks for part in module.modules())
