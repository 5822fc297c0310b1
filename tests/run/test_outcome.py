"""What an outcome offers: modules that predict as was scored, clusters beside known groups, words and plots."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.ring import blobs
from torch import nn

from coterie.data.federation import Federation
from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import as_model
from coterie.learn.params import pick
from coterie.learn.sgd import Local
from coterie.measure.groups import Clusters
from coterie.measure.utility import Scores
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.run.folder import RunFolder
from coterie.run.training import train

FEDERATION = blobs([12] * 6)
LOCAL = Local(steps=2, batch_size=4, lr=0.2)


class Shifted(nn.Module):
    """A module with a buffer that changes what it says."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor([5.0, 0.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift  # type: ignore[no-any-return]


SHORT = Local(steps=3, batch_size=4, lr=0.2)


@pytest.mark.parametrize("model", [Dense((4, 5, 3), dropout=0.5), Shifted], ids=["dense", "module with a buffer"])
@pytest.mark.parametrize(
    "protocol",
    [Ifca(rounds=3, local=SHORT, clusters=2), FedEM(rounds=3, local=SHORT, components=2)],
    ids=["hard", "soft"],
)
def test_modules_predict_as_the_federation_was_scored(protocol: Any, model: Any) -> None:
    federation = blobs([9, 12, 8, 10])
    outcome = train(protocol, federation, model)
    for client in range(4):
        rows = federation.test[client]
        module = outcome.module(client)
        right = (module(federation.examples.x[rows]).argmax(1) == federation.examples.y[rows]).float().mean()
        assert float(right) == pytest.approx(float(outcome.scores.values[client]))
    x = federation.examples.x[:5]
    for slot in range(2):
        expected = as_model(model).logits(pick(outcome.models, slot), x)
        torch.testing.assert_close(outcome.module(slot=slot)(x), expected)
    for wrong in ({}, {"client": 0, "slot": 0}, {"client": 4}, {"slot": 2}):
        with pytest.raises(InvalidInput, match=r"client|slot"):
            outcome.module(**wrong)


def test_clusters_beside_known_groups(two_groups: Federation, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    local = Local(steps=5, batch_size=6, lr=0.3)
    outcome = train(Ifca(rounds=15, local=local, clusters=3), two_groups, Dense((4, 5, 3)), folder=folder)
    clusters = outcome.clusters
    assert sum(clusters.sizes) == two_groups.clients
    assert clusters.empty == tuple(slot for slot, size in enumerate(clusters.sizes) if size == 0)
    newest = folder.history[-1]
    assert newest["ari"] == pytest.approx(clusters.ari)
    assert newest["starved"] == list(clusters.starved)
    assert outcome.accuracy > 0.9


def test_clusters_by_hand() -> None:
    """Four clients, three slots: two of the first group in slot 0, one of the second in each of 0 and 2."""
    choices = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]])
    found = Clusters.of(Scores(torch.tensor([0.5, 0.7, torch.nan, 1.0]), choices), torch.tensor([0, 0, 1, 1]))
    assert found.sizes == (3, 0, 1)
    assert found.values[0] == pytest.approx(0.6)
    assert math.isnan(found.values[1])
    assert found.empty == found.starved == (1,)
    assert found.warning == "nobody uses model 1 of the 3 (counted from 0)"
    assert found.words == f"clients a model: 3 (0.6), 1 (1); ARI {found.ari:.2f}; {found.warning}"
    alone = Clusters.of(Scores(torch.linspace(0.1, 1.0, 10), torch.eye(10)), torch.full((10,), -1))
    assert alone.words == "clients a model: 10 models of 1 to 1 (0.1 to 1)"
    assert found.ari == pytest.approx(0.0, abs=0.35)
    assert not found.recovered
    soft = Scores(torch.zeros(2), torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]]))
    starved = Clusters.of(soft, torch.tensor([-1, -1]))
    assert starved.starved == (2,)
    assert "components 2 starve: mean weight 0.10, where 0.33 would be even" in starved.warning
    assert math.isnan(starved.ari)
    assert "ari" not in starved.row()


def test_what_comes_out_can_be_read_and_used(tmp_path: Path) -> None:
    outcome = train(FedAvg(rounds=2, local=LOCAL), FEDERATION, Dense((4, 3)))
    assert re.fullmatch(
        r"Outcome\(accuracy 0\.\d{4}, 1 model for 6 clients, 2 rounds, \S+ MB up a client and round\)", repr(outcome)
    )
    assert repr(FEDERATION) == f"Federation({FEDERATION.describe()})"
    assert len(repr(FEDERATION.examples)) < 100
    x = FEDERATION.examples.x[:7]
    said = outcome.predict(x.numpy(), client=1)
    assert torch.equal(said, outcome.module(1)(x).argmax(1))
    fresh = outcome.module(2)
    fresh.load_state_dict(outcome.state_dict(1))
    assert torch.equal(fresh(x), outcome.module(1)(x))
    assert np.shape(outcome.plot().lines[0].get_xdata()) == (len(outcome.history),)
