"""Local training against one client after the other with torch.optim."""

from __future__ import annotations

import pytest
import torch
from tests.references import client_loop as slow
from tests.ring import batch

from coterie.errors import Diverged
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch, Model, as_model
from coterie.learn.params import pick, stack
from coterie.learn.sgd import descend

SIZES = (5, 7, 4, 3)
CLIENTS, STEPS, WIDTH = 4, 6, 8


def steps(seed: int) -> list[Batch]:
    draws = torch.Generator().manual_seed(seed)
    return [
        batch(
            torch.randn(CLIENTS, WIDTH, 5, generator=draws),
            torch.randint(3, (CLIENTS, WIDTH), generator=draws),
            seeds=range(CLIENTS),
        )
        for _ in range(STEPS)
    ]


def both_kinds() -> list[Model]:
    return [Dense(SIZES), as_model(slow.module_of(SIZES))]


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("kind", [0, 1], ids=["dense", "module"])
def test_descend_is_sgd_client_by_client(kind: int, mu: float) -> None:
    model = both_kinds()[kind]
    start = stack(model.init(seed) for seed in range(CLIENTS))
    batches = steps(1)
    fast = descend(model, start, batches, 0.3, proximal=mu)
    for client in range(CLIENTS):
        mine = [(one.x[client], one.y[client]) for one in batches]
        expected = slow.sgd(slow.module_of(SIZES), pick(start, client), mine, 0.3, mu)
        for name, leaf in expected.items():
            torch.testing.assert_close(fast[name][client], leaf, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [0, 1], ids=["dense", "module"])
def test_padding_weighs_nothing_and_an_idle_client_stands_still(kind: int) -> None:
    model = both_kinds()[kind]
    start = stack(model.init(seed) for seed in range(2))
    draws = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 6, 5, generator=draws), torch.randint(3, (2, 6), generator=draws)
    weights = torch.tensor([[0.25] * 4 + [0.0] * 2, [0.0] * 6])
    padded = Batch(x, y, weights, torch.tensor([4.0, 1.0]), torch.tensor([True, False]), (0, 1))
    found = descend(model, start, [padded], 0.5, proximal=0.3)
    expected = slow.sgd(slow.module_of(SIZES), pick(start, 0), [(x[0, :4], y[0, :4])], 0.5, 0.3)
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name][0], leaf, rtol=1e-4, atol=1e-6)
        assert torch.equal(found[name][1], start[name][1])


def test_the_start_is_left_alone() -> None:
    model = Dense(SIZES)
    start = stack(model.init(seed) for seed in range(CLIENTS))
    before = {name: leaf.clone() for name, leaf in start.items()}
    descend(model, start, steps(1), 0.3)
    assert all(torch.equal(start[name], before[name]) for name in start)


def test_the_hook_has_the_last_word_on_a_step() -> None:
    model = Dense(SIZES)
    start = stack(model.init(seed) for seed in range(CLIENTS))
    seen: list[int] = []

    def double(grads: dict[str, torch.Tensor], params: object, step: int, batch: Batch) -> dict[str, torch.Tensor]:
        seen.append(step)
        return {name: 2 * grad for name, grad in grads.items()}

    doubled = descend(model, start, steps(1), 0.1, hook=double)
    plain = descend(model, start, steps(1), 0.2)
    assert seen == list(range(STEPS))
    for name, leaf in plain.items():
        torch.testing.assert_close(doubled[name], leaf, rtol=1e-5, atol=1e-6)


def test_divergence_is_an_error() -> None:
    model = Dense(SIZES)
    start = {name: leaf * 1e30 for name, leaf in stack([model.init(0)] * CLIENTS).items()}
    with pytest.raises(Diverged, match=r"leaf '.*' became NaN or infinite in local training; lower lr=1e\+30"):
        descend(model, start, steps(1), 1e30)
