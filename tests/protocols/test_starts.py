"""Which models a trainer begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.ring import blobs, play
from torch import nn

from coterie.data.federation import Examples, Federation
from coterie.errors import CoterieError, InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import as_model
from coterie.learn.params import pick
from coterie.learn.sgd import Local
from coterie.protocols.base import Trainer
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import JUDGE, VOTERS, Ifca
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.sattler import Sattler
from coterie.protocols.starts import Given, Pretrained, Start
from coterie.wire.messages import CHOOSE, TRAIN

MODEL = Dense((4, 5, 3))
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
CLIENTS = blobs([6, 5, 7, 6])
ONE: list[Trainer[Any]] = [
    FedAvg(rounds=1, local=LOCAL),
    Sattler(rounds=1),
    CosineKMeans(rounds=1),
    LocalOnly(rounds=1),
]
SEVERAL: list[Trainer[Any]] = [
    Ifca(rounds=1, local=LOCAL, clusters=2),
    Ifca(rounds=1, local=LOCAL, clusters=2, candidates=0),
    FedEM(rounds=1, local=LOCAL, components=2),
]
named = pytest.mark.parametrize("protocol", ONE, ids=lambda one: type(one).__name__)
several = pytest.mark.parametrize("protocol", SEVERAL, ids=lambda one: type(one).__name__)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def pretrained() -> nn.Module:
    module = net()
    with torch.no_grad():
        for number, leaf in enumerate(module.parameters()):
            leaf.fill_(0.1 * number)
    return module


@named
def test_a_module_s_own_weights_are_kept(protocol: Trainer[Any]) -> None:
    asked = play(protocol, CLIENTS, as_model(pretrained())).asks[0].published.values
    for name, leaf in pretrained().named_parameters():
        assert all(torch.equal(slot, leaf) for slot in asked[name])


@several
def test_one_set_of_weights_is_not_silently_replaced(protocol: Trainer[Any]) -> None:
    with pytest.raises(InvalidInput, match="one set of weights, and this trainer begins with 2 models that differ"):
        play(protocol, CLIENTS, as_model(pretrained()))
    with pytest.raises(InvalidInput, match="the same weights whatever the seed, and 2 equal models never come apart"):
        play(protocol, CLIENTS, as_model(pretrained))
    play(protocol, CLIENTS, as_model(net))  # a class or function draws them


@several
def test_one_module_a_slot(protocol: Trainer[Any]) -> None:
    modules = [net(), net()]
    done = play(replace(protocol, begins=Given(given=modules)), CLIENTS, as_model(net))
    assert [ask.kind for ask in done.asks] == [TRAIN]  # nothing is voted on
    for slot, module in enumerate(modules):
        for name, leaf in module.named_parameters():
            assert torch.equal(done.asks[0].published.values[name][slot], leaf)


def test_given_parameters_are_copied() -> None:
    models = {name: leaf.unsqueeze(0).clone() for name, leaf in MODEL.init(3).items()}
    before = {name: leaf.clone() for name, leaf in models.items()}
    done = play(FedAvg(rounds=2, local=LOCAL, begins=Given(given=models)), CLIENTS, MODEL)
    assert all(torch.equal(models[name], leaf) for name, leaf in before.items())
    assert all(torch.equal(done.asks[0].published.values[name], leaf) for name, leaf in before.items())


@pytest.mark.parametrize(
    ("begins", "message"),
    [
        (Given(given=[Dense((4, 6, 3)).init(0)] * 2), r"leaf '0.weight'=\(6, 4\) must be \(5, 4\) as in the model"),
        (Given(given=[MODEL.init(0)]), "begins: models=1 must be 2, one a slot"),
        (Given(given=[{"x": torch.zeros(1)}] * 2), "leaf '0.weight'=None must be"),
        (Given(given=[]), "given"),
        (Start(run="nowhere"), "nowhere has no models.npz; name the folder of a finished run"),
        (Pretrained(), r"len\(public\)=0 must be one set of examples a slot"),
    ],
    ids=["shape", "count", "names", "nothing", "run", "public"],
)
def test_refused(begins: Start, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        play(Ifca(rounds=1, local=LOCAL, clusters=2, begins=begins), CLIENTS, MODEL)


def test_a_run_s_models(tmp_path: Path) -> None:
    models = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in MODEL.init(5).items()}
    np.savez(tmp_path / "models.npz", allow_pickle=False, **{name: leaf.numpy() for name, leaf in models.items()})
    done = play(Ifca(rounds=1, local=LOCAL, clusters=2, begins=Start(run=str(tmp_path))), CLIENTS, MODEL)
    assert all(torch.equal(done.asks[0].published.values[name], leaf) for name, leaf in models.items())


def test_pre_training_on_public_data_separates_the_groups(two_groups: Federation) -> None:
    """Public data of each group, a slot each: every client chooses its own group's model in the first round."""
    x, y = two_groups.examples.x, two_groups.examples.y
    public = []
    for group in range(2):
        rows = torch.cat([two_groups.test[client] for client in (two_groups.groups == group).nonzero().flatten()])
        public.append(Examples(x[rows], y[rows], 3, "public"))
    begins = Pretrained(public=tuple(public), local=Local(epochs=20, batch_size=6, lr=0.3))
    done = play(Ifca(rounds=1, local=LOCAL, clusters=2, begins=begins), two_groups, MODEL)
    chosen = done.ring.protocol.choose(done.asks[0].published.values, done.ring.everyone(done.state)).argmax(1)
    assert torch.equal(chosen, two_groups.groups)
    assert play(Ifca(rounds=1, local=LOCAL, clusters=2, begins=begins), two_groups, MODEL).bytes == done.bytes


class TestVote:
    def test_voters_are_drawn(self) -> None:
        """600 clients in two halves by group: of 256 drawn voters both halves have about 128 (deviation 6.1)."""
        many = blobs([1] * 600)
        done = play(Ifca(rounds=0, clusters=2, candidates=4), many, MODEL)
        voters = next(ask.clients for ask in done.asks if ask.kind == CHOOSE)
        assert len(voters.unique()) == VOTERS
        assert 90 < int((voters < 300).sum()) < 166  # beyond six deviations on either side


class TestTrials:
    PROTOCOL = Ifca(rounds=8, local=LOCAL, clusters=2, candidates=0, starts=3, trial=2)

    def test_the_start_with_the_least_loss_goes_on(self) -> None:
        done = play(self.PROTOCOL, CLIENTS, MODEL)
        judged = [ask for ask in done.asks if ask.kind == JUDGE]
        assert [ask.round for ask in judged] == [2, 4, 6]
        everyone = done.ring.everyone(done.state)
        losses = [float(everyone.losses(ask.published.values).min(1).values.mean()) for ask in judged]
        best = judged[losses.index(min(losses))].published.values
        following = next(ask for ask in done.asks if ask.kind == TRAIN and ask.round == 6)
        assert all(torch.equal(following.published.values[name], leaf) for name, leaf in best.items())
        firsts = [next(ask for ask in done.asks if ask.kind == TRAIN and ask.round == at) for at in (0, 2, 4)]
        assert len({tuple(pick(first.published.values, 0)["0.bias"].tolist()) for first in firsts}) == 3
        assert done.state.round == 8

    def test_one_start_is_what_it_always_was(self) -> None:
        plain = Ifca(rounds=4, local=LOCAL, clusters=2, candidates=0)
        assert play(replace(plain, trial=3), CLIENTS, MODEL).bytes == play(plain, CLIENTS, MODEL).bytes

    def test_nobody_judges(self) -> None:
        """Then the first start goes on."""
        done = play(self.PROTOCOL, CLIENTS, MODEL, lost=lambda asked: asked.clients.tolist())
        first = done.asks[0].published.values
        assert all(torch.equal(done.state.published.values[name], leaf) for name, leaf in first.items())

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"starts": 0}, "starts=0"),
            ({"starts": 5}, "starts=5 x trial=2 must fit in rounds=8"),
            ({"trial": 0}, "trial=0"),
            ({"begins": Given(given=[MODEL.init(0)])}, "starts=3 must be 1 where begins gives the models"),
        ],
    )
    def test_refused(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            replace(self.PROTOCOL, **wrong)
