"""Models on another device, as far as a machine without one goes.

What is tested: on the device "meta", which holds shapes and no numbers, that gradients are computed there and nowhere
else (torch refuses to mix devices); and with a stand-in that only notes what is moved, that results are the same and
come home. No CUDA or MPS device has seen this code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.ring import batch, blobs, play
from torch import Tensor

from coterie.defences.dpsgd import DpSgd
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.models.device import OnDevice, usable
from coterie.learn.params import Params, stack
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.run.training import train

META = torch.device("meta")


@pytest.mark.parametrize("clip", [None, 1.0])
def test_gradients_are_computed_where_they_should_be(clip: float | None) -> None:
    """Of a dense network alone: a module looks for padding in the numbers, which meta tensors have none of."""
    model = Dense((9, 5, 3), dropout=0.3)
    there = OnDevice(model, META)
    start = there.placed(stack(model.init(seed) for seed in range(2)))
    one = batch(torch.zeros(2, 4, 9), torch.zeros(2, 4, dtype=torch.int64), seeds=(1, 2))
    found = there.gradients(start, one, clip)
    assert {name: leaf.shape for name, leaf in found.items()} == {name: leaf.shape for name, leaf in start.items()}
    assert all(leaf.device == META for leaf in found.values())


@dataclass(frozen=True)
class Noted(OnDevice):
    """Counts what is moved; "there" is the CPU."""

    moves: dict[str, int] = field(default_factory=lambda: {"there": 0, "home": 0}, compare=False)

    def placed(self, leaves: Params) -> dict[str, Tensor]:
        self.moves["there"] += 1
        return super().placed(leaves)

    def home(self, leaves: Params) -> dict[str, Tensor]:
        self.moves["home"] += 1
        return super().home(leaves)


@pytest.mark.parametrize(
    ("local", "defence"),
    [
        (Local(steps=3, batch_size=4), Defence()),
        (Local(steps=3, batch_size=4, optimizer="adam", carry=True), Defence()),
        (Local(steps=3, whole=True), Defence()),
        (Local(steps=3, batch_size=4, poisson=True), DpSgd(clip=1.0, noise_multiplier=1.0)),
    ],
    ids=["plain", "adam", "whole", "dp-sgd"],
)
@pytest.mark.parametrize("clusters", [1, 2])
def test_the_same_bytes_come_home(local: Local, defence: Defence, clusters: int) -> None:
    model = Dense((4, 5, 3))
    protocol: Any = Ifca(rounds=2, local=local, clusters=2) if clusters == 2 else FedAvg(rounds=2, local=local)
    there = Noted(model, torch.device("cpu"))
    expected = play(protocol, blobs([6, 4, 7]), model, defence=defence)
    assert play(protocol, blobs([6, 4, 7]), there, defence=defence).bytes == expected.bytes
    rounds = 2
    least = rounds * (1 + 3 * isinstance(defence, DpSgd))  # under a guard, in every step
    assert there.moves["home"] >= least


def test_devices_that_are_not_there() -> None:
    assert usable("cpu").type == "cpu"
    for wrong, word in (("cuda:7" if not torch.cuda.is_available() else "xpu", "is not there"), ("gpu", "torch knows")):
        with pytest.raises(InvalidInput, match=word):
            train(FedAvg(rounds=1), blobs([6, 4]), Dense((4, 3)), device=wrong)
