"""Federations that predict numbers, or several labels at once, from the data to modules and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.config.schema import parse
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition import Dirichlet, Iid, LabelPermutations, LabelSets
from coterie.defences.dpsgd import DpSgd
from coterie.errors import InvalidInput
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.stopping import Patience
from coterie.measure.utility import ERROR, F1, tally
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.run.training import Outcome, train

LOCAL = Local(steps=8, batch_size=10, lr=0.1)
MODEL = Dense((3, 2))


def federation(kind: str) -> Federation:
    """Six clients in two groups: what one group's numbers are, the other's are with the opposite sign."""
    draws = torch.Generator().manual_seed(0)
    x, slopes = torch.randn(6 * 30, 3, generator=draws), torch.tensor([[1.0, -1.0], [2.0, 0.0], [0.0, 1.0]])
    groups = torch.arange(6) % 2
    numbers = x @ slopes * (1 - 2 * groups).repeat_interleave(30).unsqueeze(1)
    y = numbers if kind == "numbers" else numbers > 0
    starts = torch.arange(6) * 30
    train_rows = Shards.of([torch.arange(20) + start for start in starts])
    test_rows = Shards.of([torch.arange(20, 30) + start for start in starts])
    return Federation(Examples(x, y, 2, kind), train_rows, test_rows, groups)


def constant(outcome: Outcome, numbers: Federation) -> float:
    """The error of always answering 0."""
    return float(numbers.examples.y[numbers.test.rows].square().mean())


@pytest.mark.parametrize(
    "protocol", [Ifca(rounds=30, local=LOCAL, clusters=2), FedEM(rounds=30, local=LOCAL, components=2)]
)
@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_two_groups_are_served_and_modules_predict_as_they_were_scored(protocol: Any, kind: str) -> None:
    here = federation(kind)
    outcome = train(protocol, here, MODEL, seed=1)
    assert outcome.scores.measure == (ERROR if kind == "numbers" else F1)
    assert outcome.clusters.recovered
    if kind == "numbers":
        assert outcome.scores.mean < 0.05 * constant(outcome, here)
    else:
        assert outcome.scores.mean > train(FedAvg(rounds=30, local=LOCAL), here, MODEL).scores.mean + 0.1
    for client in range(6):
        x, y = (part[here.test[client]] for part in (here.examples.x, here.examples.y))
        outputs = outcome.module(client)(x)
        above, below = tally(outputs if kind == "numbers" else outputs.sigmoid(), y).sum(0).tolist()
        assert above / below == pytest.approx(float(outcome.scores.values[client]), rel=1e-4, abs=1e-8)


def test_one_model_cannot_serve_both() -> None:
    here = federation("numbers")
    outcome = train(FedAvg(rounds=8, local=LOCAL), here, MODEL)
    assert outcome.scores.mean > 0.5 * constant(outcome, here)
    with pytest.raises(InvalidInput, match="measure='mean squared error' is no accuracy"):
        _ = outcome.accuracy


def test_f1_by_hand() -> None:
    """Of the first row one of two labels is found and one is made up; the second has none, and none is said."""
    y = torch.tensor([[True, True, False], [False, False, False]])
    said = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.3, 0.4]])
    assert tally(said, y).tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_a_client_without_any_label_is_right_to_say_none() -> None:
    here = federation("labels")
    none = replace(here, examples=replace(here.examples, y=torch.zeros_like(here.examples.y)))
    assert train(FedAvg(rounds=12, local=LOCAL), none, MODEL).scores.mean == 1.0


def test_an_error_that_no_longer_falls_ends_the_run() -> None:
    still = FedAvg(rounds=50, local=Local(steps=1, lr=1e-9))
    assert train(still, federation("numbers"), MODEL, evaluate_every=2, stop=Patience(2)).state.round == 6
    falls = train(
        FedAvg(rounds=6, local=replace(LOCAL, lr=0.01)),
        federation("numbers"),
        MODEL,
        evaluate_every=1,
        stop=Patience(2),
    )
    assert falls.state.round == 6


def test_dp_sgd_clips_and_noises_them() -> None:
    private = FedAvg(rounds=2, local=replace(LOCAL, poisson=True))
    outcome = train(private, federation("numbers"), MODEL, defence=DpSgd(1.0, 2.0))
    assert len(outcome.ledger.rows) > 0


def test_a_metric_of_one_s_own_is_handed_numbers() -> None:
    def largest(predicted: Tensor, y: Tensor) -> float:
        assert predicted.shape == y.shape == (10, 2)
        return float((predicted - y).abs().max())

    outcome = train(FedAvg(rounds=1, local=LOCAL), federation("numbers"), MODEL, metrics={"largest": largest})
    assert outcome.history[-1]["largest"] > 0


@pytest.mark.parametrize(
    "partition", [LabelSets(3, 2), Dirichlet(3), LabelPermutations(3, 2)], ids=["sets", "dirichlet", "permutations"]
)
def test_partitions_by_class_say_that_there_are_none(partition: Any) -> None:
    for kind, words in (("numbers", "numbers to predict"), ("labels", "several labels")):
        with pytest.raises(InvalidInput, match=f"goes by classes, and {kind} has {words}"):
            partition.split(federation(kind).examples, Rng.seeded(0))


def test_iid_needs_no_classes() -> None:
    split = Iid(5).split(federation("numbers").examples, Rng.seeded(0))
    assert split.train.sizes.tolist() == [29, 29, 29, 29, 28]
    assert split.test.sizes.tolist() == [7] * 5  # a fifth of the rows, to rounding
    assert not torch.isin(split.train.rows, split.test.rows).any()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(4), r"shape of y=\(4,\) must be \(4, 2\), a column a label or number"),
        (torch.zeros(4, 3, dtype=torch.bool), r"shape of y=\(4, 3\) must be \(4, 2\)"),
        (torch.full((4, 2), torch.nan), "NaN or infinity"),
    ],
)
def test_bad_targets(y: Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Examples(torch.zeros(4, 3), y, 2, "bad")


def test_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of numbers, trained by the command line with a server's optimiser and patience."""
    from coterie.commands import training

    draws = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=draws)
    rows = [f"{a},{b},{100 * a - 50 * b}" for a, b in x.tolist()]
    (tmp_path / "houses.csv").write_text("\n".join(["size,age,price", *rows]))
    (tmp_path / "c.toml").write_text(
        """
        name = "houses"
        evaluate_every = 2
        stop = { measurements = 2, least = 0.5 }
        [data]
        kind = "table"
        path = "houses.csv"
        label = "price"
        predicts = "numbers"
        [partition]
        kind = "iid"
        clients = 4
        [model]
        kind = "dense"
        sizes = [2, 1]
        [trainer]
        kind = "fedavg"
        rounds = 40
        local = { steps = 4, batch_size = 8, lr = 0.1 }
        server_step = { kind = "momentum", beta = 0.5 }
        """
    )
    training.train(tmp_path / "c.toml", tmp_path / "runs", None)
    said = capsys.readouterr().out
    assert "mean squared error" in said
    assert "clients a model: 4 (" in said
    folder = tmp_path / "runs" / "houses-fedavg-001"
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert history[-1]["round"] < 40  # it had enough
    assert history[-1][ERROR] < 0.2
    again = parse(json.loads((folder / "run.json").read_text())["config"], "again")
    assert again.stop == Patience(2, 0.5)


def test_what_a_file_says_of_stopping_is_checked() -> None:
    with pytest.raises(InvalidInput, match="measurements=0 must be at least 1"):
        parse({"stop": {"measurements": 0}}, "c.toml")
