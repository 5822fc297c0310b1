"""Training: what it takes, where it starts, what is measured, and when it stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.ring import blobs

from coterie.data.federation import Examples, Federation
from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.stopping import Patience
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.local_only import LocalOnly
from coterie.protocols.starts import Given
from coterie.run.training import train

FEDERATION = blobs([12] * 6)
LOCAL = Local(steps=2, batch_size=4, lr=0.2)
SHORT = Local(steps=3, batch_size=4, lr=0.2)


def test_patience() -> None:
    rule = Patience(measurements=2, least=0.01)
    assert not rule.enough([0.5, 0.6])
    assert not rule.enough([0.5, 0.505, 0.6])
    assert rule.enough([0.5, 0.6, 0.605, 0.6])


def test_a_run_may_stop_early(two_groups: Federation) -> None:
    """A rate of almost nothing improves nothing: three measurements are enough."""
    still = FedAvg(rounds=50, local=Local(steps=1, lr=1e-9))
    outcome = train(still, two_groups, Dense((4, 3)), evaluate_every=2, stop=Patience(2))
    assert outcome.state.round == 6
    assert [row["round"] for row in outcome.history] == [2, 4, 6]


def test_start_is_the_trainer_s_begins(two_groups: Federation) -> None:
    models = [Dense((4, 3)).init(7)]
    outcome = train(FedAvg(rounds=0), two_groups, Dense((4, 3)), start=Given(given=models))
    assert all(torch.equal(outcome.models[name][0], leaf) for name, leaf in models[0].items())


def test_fine_tuning_from_a_federation(two_groups: Federation) -> None:
    local = Local(steps=10, batch_size=6, lr=0.3)
    one = train(FedAvg(rounds=5, local=local), two_groups, Dense((4, 5, 3)))
    tuned = train(
        LocalOnly(rounds=5, local=local), two_groups, Dense((4, 5, 3)), start=Given(given=one.models_of_clients())
    )
    assert tuned.accuracy > one.accuracy + 0.1  # one model cannot serve two groups; fine-tuned, it can


@pytest.mark.parametrize(
    "protocol",
    [Ifca(rounds=2, local=SHORT, clusters=2), FedEM(rounds=2, local=SHORT, components=2)],
    ids=["hard", "soft"],
)
def test_a_measure_of_one_s_own(protocol: Any) -> None:
    """Accuracy written again is accuracy."""
    federation = blobs([9, 12, 8])
    seen: list[tuple[int, ...]] = []

    def accuracy(chances: torch.Tensor, y: torch.Tensor) -> float:
        seen.append(tuple(chances.shape))
        torch.testing.assert_close(chances.sum(1), torch.ones(len(y)))
        return float((chances.argmax(1) == y).float().mean())

    outcome = train(protocol, federation, Dense((4, 5, 3)), metrics={"mine": accuracy})
    assert outcome.history[-1]["mine"] == pytest.approx(outcome.accuracy)
    assert seen == [(6, 3)] * 3


def test_arrays_and_tables_are_taken_where_tensors_are() -> None:
    frame = pd.DataFrame({"a": [0.5, 1.0, 2.0], "b": [1, 2, 3]})
    examples = Examples.of(frame, ["yes", "no", "yes"], site=np.array(["x", "y", "x"]))
    assert examples.x.dtype == torch.float32
    assert (examples.y.tolist(), examples.label_names) == ([1, 0, 1], ("no", "yes"))
    assert examples.tag_names == {"site": ("x", "y")}
    plain = Examples(np.zeros((2, 3)), np.array([0, 1]), 2, "n", {"t": np.array([True, False])})  # type: ignore[arg-type, dict-item]
    assert (plain.x.dtype, plain.y.dtype) == (torch.float32, torch.int64)
    with pytest.raises(InvalidInput, match="must be numbers or truth values"):
        Examples(np.array([["a"]]), np.array([0]), 1, "n")  # type: ignore[arg-type]


def test_a_layer_of_a_wrong_size_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"give .* the data's shape"):
        train(FedAvg(rounds=1, local=LOCAL), FEDERATION, Dense((5, 3)))
    with pytest.raises(InvalidInput, match=r"must be \(examples, classes\) = \(4, 3\)"):
        train(FedAvg(rounds=1, local=LOCAL), FEDERATION, Dense((4, 7)))
