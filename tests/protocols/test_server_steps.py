"""Optimisers of the server, by hand and against torch's; clients that train alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.server_steps import ServerStep
from coterie.protocols.starts import Given
from coterie.wire.messages import Down

MODEL = Dense((4, 5, 3))
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
CLIENTS = blobs([6, 5, 7])
ALL = torch.tensor([True])


def test_momentum_is_torchs_sgd_on_what_the_mean_asks_for() -> None:
    leaf = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    torchs = torch.optim.SGD([leaf], lr=0.5, momentum=0.9)
    ours, moments = {"w": leaf.detach().clone()}, dict[str, torch.Tensor]()
    for towards in torch.randn(5, 1, 2, generator=torch.Generator().manual_seed(0)):
        leaf.grad = -towards
        torchs.step()
        mean = {"w": ours["w"] + towards}
        ours, moments = ServerStep("momentum", lr=0.5).step(ours, mean, moments, ALL)
    torch.testing.assert_close(ours["w"], leaf.detach())


@pytest.mark.parametrize(("kind", "second"), [("adam", 0.5 * 0.01 + 0.5 * 4.0), ("yogi", 0.01 + 0.5 * 4.0)])
def test_a_step_by_hand(kind: str, second: float) -> None:
    """D = 2, tau = 0.1, so v starts at 0.01, and m = 0.1 * 2."""
    step = ServerStep(kind, lr=3.0, beta=0.9, beta2=0.5, tau=0.1)  # type: ignore[arg-type]
    values, moments = step.step({"w": torch.tensor([[1.0]])}, {"w": torch.tensor([[3.0]])}, {}, ALL)
    assert float(moments["first/w"]) == pytest.approx(0.2)
    assert float(moments["second/w"]) == pytest.approx(second)
    assert float(values["w"]) == pytest.approx(1 + 3 * 0.2 / (second**0.5 + 0.1))


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_a_slot_that_nobody_trained_stands_still(kind: str) -> None:
    step = ServerStep(kind)  # type: ignore[arg-type]
    models, mean = {"w": torch.tensor([[1.0], [1.0]])}, {"w": torch.tensor([[2.0], [2.0]])}
    moved, moments = step.step(models, mean, {}, torch.tensor([True, True]))
    again, kept = step.step(moved, {"w": moved["w"] + 1}, moments, torch.tensor([True, False]))
    assert float(again["w"][1]) == float(moved["w"][1])
    assert float(kept["first/w"][1]) == float(moments["first/w"][1])
    assert float(again["w"][0]) != float(moved["w"][0])


def test_no_momentum_is_fedavg() -> None:
    plain = FedAvg(rounds=3, local=LOCAL)
    stepped = play(replace(plain, server_step=ServerStep("momentum", beta=0.0)), CLIENTS, MODEL)
    for name, leaf in play(plain, CLIENTS, MODEL).state.published.values.items():
        torch.testing.assert_close(stepped.state.published.values[name], leaf, rtol=1e-5, atol=1e-6)


def test_sums_that_are_sealed_cannot_be_stepped_on() -> None:
    with pytest.raises(InvalidInput, match="the sums in the clear, for the server's optimiser"):
        play(FedAvg(rounds=1, server_step=ServerStep("adam")), CLIENTS, MODEL, defence=SecureSums())


@pytest.mark.parametrize("wrong", [{"kind": "lion"}, {"lr": 0.0}, {"beta": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        ServerStep(**wrong)  # type: ignore[arg-type]


def all_but(client: int) -> Callable[[Down], list[int]]:
    return lambda asked: [other for other in range(3) if other != client]


def test_alone_is_a_federation_of_one() -> None:
    """Each client's slot is what FedAvg makes of that client alone."""
    alone = play(LocalOnly(rounds=3, local=LOCAL), CLIENTS, MODEL)
    for client in range(3):
        one = play(FedAvg(rounds=3, local=LOCAL), CLIENTS, MODEL, lost=all_but(client))
        for name, leaf in one.state.published.values.items():
            torch.testing.assert_close(alone.state.published.values[name][client], leaf[0], rtol=1e-5, atol=1e-6)


def test_fine_tuning_begins_with_each_client_s_own_model() -> None:
    models = {name: torch.stack([leaf, 2 * leaf, 3 * leaf]) for name, leaf in MODEL.init(1).items()}
    done = play(LocalOnly(rounds=1, local=LOCAL, begins=Given(given=models)), CLIENTS, MODEL)
    assert all(torch.equal(done.asks[0].published.values[name], leaf) for name, leaf in models.items())


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_large_updates_are_undone_too(kind: str, size: float) -> None:
    """Where the new update rules the second moment, an iteration for it diverges; of yogi's two signs less is left."""
    step, draws = ServerStep(kind, lr=0.05), torch.Generator().manual_seed(0)  # type: ignore[arg-type]
    common, models = size * torch.randn(1, 500, generator=draws), {"w": 0.1 * torch.randn(1, 500, generator=draws)}
    kept, followed, cosines = {}, {}, []  # type: ignore[var-annotated]
    for _ in range(30):
        towards = common / 2 + size * torch.randn(1, 500, generator=draws)
        moved, kept = step.step(models, {"w": models["w"] + towards}, kept, ALL)
        found, followed = step.undone({"w": (moved["w"] - models["w"])[0]}, followed)
        cosines.append(float(torch.cosine_similarity(found["w"], towards[0], 0)))
        models = moved
    assert sum(cosines) / len(cosines) > (0.9 if kind == "adam" else 0.65)
    assert min(cosines) > (0.999 if size == 1e-3 else 0.8 if kind == "adam" else 0.1)
