"""One picture from its gradient, layer by layer: exact where layers can be followed, and silent where they cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from coterie.attacks.layerwise import Followed, Windows, disagreement, least_squares, peeled
from coterie.data.sources.embedded import Digits, Mnist5k
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model, outputs
from coterie.learn.params import Params


def digit(number: int, side: int) -> Tensor:
    """(1, 1, side, side) in -1..1 with an empty margin, as digits have: patches of it are alike."""
    small = Digits().load().x[number].reshape(1, 1, 8, 8)
    inner = interpolate(small, size=side - side // 4, mode="bilinear")
    return 2 * nn.functional.pad(inner, [side // 8] * 4).clamp(0, 1) - 1


def gradient(model: Model, params: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    slopes = torch.autograd.grad(cross_entropy(outputs(model, leaves, x), y), list(leaves.values()))
    return dict(zip(leaves, slopes, strict=True))


def followed(network: nn.Module, exact: Params, side: int, labels: Tensor) -> Followed | None:
    return peeled(network, list(exact.values()), (1, side, side), labels, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("side", "number"), [(8, 0), (8, 1), (32, 0), (32, 1), (32, 2)])
def test_a_picture_comes_back_exactly(side: int, number: int) -> None:
    """8: nothing is pooled. 32: of sixteen places four windows take their values, channel by channel."""
    model, x, label = StridedCnn(10, (1, side, side), width=16), digit(number, side), torch.tensor([number])
    params = model.init(number)
    found = followed(model.module(params), gradient(model, params, x, label), side, label)
    assert found is not None
    assert found.examples is not None
    torch.testing.assert_close(found.examples.float(), x, atol=5e-3, rtol=0)


@pytest.mark.parametrize("labels", [(0, 1), (3, 3, 3, 5), (0, 1, 1, 2, 2, 2, 7, 9)], ids=len)
def test_what_convolutions_made_of_each_picture_of_a_batch(labels: tuple[int, ...]) -> None:
    """Also of pictures of one class, whose rows in the last layer's gradient are nearly the same."""
    digits, y = Mnist5k().load(), torch.tensor(labels)
    rows = [int((digits.y == label).nonzero()[labels[:at].count(label)]) for at, label in enumerate(labels)]
    x, model = 2 * digits.x[rows] - 1, StridedCnn(10, (1, 28, 28), width=16)
    params = model.init(0)
    found = followed(model.module(params), gradient(model, params, x, y), 28, y)
    assert found is not None
    assert found.examples is None  # there are too many places for as many channels
    made, told = found.front(x).flatten(1), found.value.float().flatten(1)
    order = [int((made - one).norm(dim=1).argmin()) for one in told]
    assert sorted(order) == list(range(len(labels)))
    torch.testing.assert_close(told, made[order], atol=1e-3 * float(made.abs().max()), rtol=0)


def test_a_dense_network_gives_a_whole_batch_away() -> None:
    """Eight digits in one step, three of one class: all of them, exactly, of whatever network is dense throughout."""
    digits = Digits().load()
    x, y, model = digits.x[:8].reshape(8, 64), digits.y[:8].clone(), Dense((64, 96, 48, 10))
    y[1:3] = y[0]
    params = model.init(3)
    found = followed(model.module(params), gradient(model, params, x, y), 8, y)
    assert found is not None
    assert found.examples is not None
    apart = torch.cdist(x, found.examples.float().flatten(1)).min(1).values
    assert float(apart.max()) < 1e-2


def test_what_cannot_be_followed_says_nothing() -> None:
    model, x, label = StridedCnn(10, (1, 32, 32), width=16), digit(0, 32), torch.tensor([0])
    params, shape = model.init(0), (1, 32, 32)
    exact = gradient(model, params, x, label)
    noisy = {name: leaf + leaf.std() * torch.randn(leaf.shape) for name, leaf in exact.items()}
    noised = followed(model.module(params), noisy, 32, label)
    assert noised is None or noised.examples is None
    two = torch.tensor([0, 1])
    assert followed(model.module(params), exact, 32, two) is None  # of one picture, and taken for one of two
    assert followed(model.module(params), noisy, 32, two) is None
    unread = exact | {"0.bias": torch.full_like(exact["0.bias"], torch.nan)}
    assert followed(model.module(params), unread, 32, label) is None
    assert followed(nn.Sequential(*model.module(params).children(), nn.Tanh()), exact, 32, label) is None
    assert followed(StridedCnn(10, shape, width=16, dropout=0.5).module(params), exact, 32, label) is None
    named = nn.ModuleDict({"net": model.module(params)})
    assert followed(named, exact, 32, label) is None


def test_channels_are_told_apart_by_where_a_window_took_its_value() -> None:
    """Planted: four places of one window among a gradient of twelve more directions."""
    draws = torch.Generator().manual_seed(0)
    slope = torch.randn(64, generator=draws, dtype=torch.float64)
    where = torch.randint(4, (64,), generator=draws)
    planted = torch.stack([slope * (where == place) for place in range(4)], 1)
    others = torch.randn(64, 12, generator=draws, dtype=torch.float64)
    span = torch.linalg.qr(torch.cat([planted, others], 1)).Q
    found = Windows(slope.reshape(1, 64, 1, 1), 2, 2).groups(span, slope)
    assert {tuple(one.tolist()) for one in found} == {tuple((where == place).tolist()) for place in range(4)}


def test_patches_of_one_picture_agree_at_their_places_alone() -> None:
    layer = nn.Conv2d(2, 3, 3, 2, 1)
    picture = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    patches = nn.functional.unfold(picture, 3, padding=1, stride=2)[0].T
    assert disagreement(patches[[0, 1, 5]], [0, 1, 5], layer, picture.shape) < 1e-20
    assert disagreement(patches[[0, 1, 5]], [1, 0, 5], layer, picture.shape) > 1


def test_least_squares_beside_the_library_s() -> None:
    draws = torch.Generator().manual_seed(0)
    matrix, told = (torch.randn(9, width, generator=draws, dtype=torch.float64) for width in (4, 1))
    top, bottom = matrix[:5], matrix[5:]
    found = least_squares(
        lambda x: (top @ x, bottom @ x),
        lambda parts: top.T @ parts[0] + bottom.T @ parts[1],
        (told[:5], told[5:]),
        torch.zeros(4, 1, dtype=torch.float64),
    )
    torch.testing.assert_close(found, torch.linalg.lstsq(matrix, told).solution)
