"""Optimisers of many clients against torch's own, one client after the other; schedules by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tests.references import client_loop as slow
from tests.ring import blobs, cohort, play
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.errors import InvalidInput
from coterie.flow.guard import ClientGuard
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.optimisers import Decay
from coterie.learn.params import Params, pick, stack
from coterie.learn.sgd import Local, descend
from coterie.protocols.fedavg import FedAvg

SIZES = (5, 7, 3)
CLIENTS, STEPS, WIDTH = 4, 6, 8
MODEL = Dense(SIZES)
Torchs = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

KINDS: dict[str, tuple[dict[str, Any], Torchs]] = {
    "momentum": ({"momentum": 0.9}, lambda leaves: torch.optim.SGD(leaves, lr=0.05, momentum=0.9)),
    "momentum and decay": (
        {"momentum": 0.5, "weight_decay": 0.1},
        lambda leaves: torch.optim.SGD(leaves, lr=0.05, momentum=0.5, weight_decay=0.1),
    ),
    "decay alone": ({"weight_decay": 0.2}, lambda leaves: torch.optim.SGD(leaves, lr=0.05, weight_decay=0.2)),
    "adam": ({"optimizer": "adam"}, lambda leaves: torch.optim.Adam(leaves, lr=0.05)),
    "adam, decay, betas": (
        {"optimizer": "adam", "weight_decay": 0.1, "betas": (0.8, 0.95)},
        lambda leaves: torch.optim.Adam(leaves, lr=0.05, weight_decay=0.1, betas=(0.8, 0.95)),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda leaves: torch.optim.AdamW(leaves, lr=0.05, weight_decay=0.1),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def batches(seed: int, active: Callable[[int], list[bool]] = lambda step: [True] * CLIENTS) -> list[Batch]:
    draws = torch.Generator().manual_seed(seed)
    return [
        Batch(
            torch.randn(CLIENTS, WIDTH, 5, generator=draws),
            torch.randint(3, (CLIENTS, WIDTH), generator=draws),
            torch.full((CLIENTS, WIDTH), 1 / WIDTH),
            torch.full((CLIENTS,), float(WIDTH)),
            torch.tensor(active(step)),
        )
        for step in range(STEPS)
    ]


def alone(start: Params, mine: list[tuple[Tensor, Tensor]], build: Torchs) -> list[Tensor]:
    """One client in plain torch."""
    module = copy.deepcopy(slow.module_of(SIZES))
    slow.load(module, dict(start))
    optimiser = build(module.parameters())
    for x, y in mine:
        optimiser.zero_grad()
        cross_entropy(module(x), y).backward()
        optimiser.step()
    return [leaf.detach() for leaf in module.parameters()]


@every_kind
@pytest.mark.parametrize("idle", [False, True])
def test_each_client_steps_as_torch_alone_would(kind: str, idle: bool) -> None:
    settings, build = KINDS[kind]
    start = stack(MODEL.init(seed) for seed in range(CLIENTS))
    given = batches(1, (lambda step: [step < 2, True, step % 2 == 0, False]) if idle else lambda step: [True] * CLIENTS)
    local = Local(lr=0.05, **settings)
    found = descend(MODEL, start, given, 0.05, optimiser=local.begin(start))
    for client in range(CLIENTS):
        mine = [(one.x[client], one.y[client]) for one in given if one.active[client]]
        for leaf, expected in zip(found.values(), alone(pick(start, client), mine, build), strict=True):
            torch.testing.assert_close(leaf[client], expected, rtol=1e-4, atol=1e-6)


@every_kind
def test_the_start_and_the_gradients_are_left_alone(kind: str) -> None:
    start = stack(MODEL.init(seed) for seed in range(CLIENTS))
    before = {name: leaf.clone() for name, leaf in start.items()}
    seen: list[tuple[Params, dict[str, Tensor]]] = []

    def watch(grads: dict[str, Tensor], params: Params, step: int, batch: Batch) -> Params:
        seen.append((grads, {name: leaf.clone() for name, leaf in grads.items()}))
        return grads

    descend(MODEL, start, batches(2), 0.05, hook=watch, optimiser=Local(lr=0.05, **KINDS[kind][0]).begin(start))
    assert all(torch.equal(start[name], leaf) for name, leaf in before.items())
    assert all(torch.equal(given[name], leaf) for given, was in seen for name, leaf in was.items())


def test_it_works_on_what_the_guard_made_of_a_gradient() -> None:
    """Twice the gradient, strided as no kernel expects it: the same as torch on a loss twice as large."""
    start = stack(MODEL.init(seed) for seed in range(CLIENTS))

    def double(grads: dict[str, Tensor], params: Params, step: int, batch: Batch) -> Params:
        return {name: torch.stack([2 * leaf, leaf], -1)[..., 0] for name, leaf in grads.items()}

    given = batches(3)
    found = descend(MODEL, start, given, 0.05, hook=double, optimiser=Local(lr=0.05, momentum=0.9).begin(start))
    mine = [(one.x[1], one.y[1]) for one in given]
    expected = alone(pick(start, 1), mine, lambda leaves: torch.optim.SGD(leaves, lr=0.1, momentum=0.9))
    for leaf, value in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(leaf[1], value, rtol=1e-4, atol=1e-6)


def test_plain_sgd_has_no_optimiser() -> None:
    """So the default's bits are those of the step that has always been."""
    start = stack([MODEL.init(0)])
    assert Local().begin(start) is None
    assert Local(schedule=Decay("linear", by=0.001)).begin(start) is None


@pytest.mark.parametrize("carry", [False, True])
@every_kind
def test_moments_from_round_to_round(kind: str, carry: bool) -> None:
    """Carried, two rounds are one long training; else the second begins anew."""
    settings, build = KINDS[kind]
    federation, model = blobs([8]), Dense((4, 5, 3))
    local = Local(steps=2, batch_size=8, lr=0.05, carry=carry, **settings)
    group = cohort(federation, model)
    start = stack([model.init(0)])
    first = group.train(start, local, ClientGuard())
    second = group.train(first, local, ClientGuard())
    module = slow.module_of(model.sizes)
    slow.load(module, model.init(0))
    optimiser = build(module.parameters())
    x, y = federation.examples.x[federation.train[0]], federation.examples.y[federation.train[0]]
    for step in range(4):
        if step == 2 and not carry:
            optimiser = build(module.parameters())
        optimiser.zero_grad()
        cross_entropy(module(x), y).backward()
        optimiser.step()
    for leaf, expected in zip(second.values(), module.parameters(), strict=True):
        torch.testing.assert_close(leaf[0], expected.detach(), rtol=1e-4, atol=1e-6)
    assert carry == bool(group.memory[0])  # and only then does a client keep anything


class TestDecay:
    def test_by_hand(self) -> None:
        assert Decay().rate(0.5, 99) == 0.5
        assert [Decay("step", factor=0.5, every=2).rate(1.0, r) for r in range(5)] == [1, 1, 0.5, 0.5, 0.25]
        assert [Decay("step", factor=0.1, at=(3, 4)).rate(1.0, r) for r in (2, 3, 9)] == pytest.approx([1, 0.1, 0.01])
        assert Decay("exponential", factor=0.99).rate(0.1, 2) == pytest.approx(0.1 * 0.99**2)
        cosine = Decay("cosine", over=10, least=0.1)
        assert [cosine.rate(1.1, r) for r in (0, 5, 10, 99)] == pytest.approx([1.1, 0.6, 0.1, 0.1])
        assert cosine.rate(1.1, 3) == pytest.approx(0.1 + (1 + math.cos(0.3 * math.pi)) / 2)

    def test_paper_004(self) -> None:
        falls = Decay("linear", by=1e-7)
        assert falls.rate(1e-4, 100) == pytest.approx(9e-5)
        assert falls.rate(1e-4, 2000) == 0.0

    def test_the_round_decides(self) -> None:
        """A rate that falls to nothing after round 0 leaves the models where they were."""
        local = Local(steps=2, batch_size=4, lr=0.1, schedule=Decay("linear", by=1.0))
        one, many = (play(FedAvg(rounds=rounds, local=local), blobs([8, 6]), Dense((4, 3))) for rounds in (1, 3))
        for name, leaf in one.state.published.values.items():
            torch.testing.assert_close(many.state.published.values[name], leaf, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("wrong", [{"shape": "sawtooth"}, {"factor": 0.0}, {"every": 0}, {"over": 0}, {"by": -1.0}])
    def test_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Decay(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "lion"},
        {"momentum": 1.0},
        {"optimizer": "adam", "momentum": 0.9},
        {"weight_decay": -0.1},
        {"betas": (0.9, 1.0)},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=list(wrong)[-1]):
        Local(**wrong)
