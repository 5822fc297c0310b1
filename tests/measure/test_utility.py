"""Accuracy by hand, and what counts as a client's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.ring import Halves, blobs, play

from coterie.data.federation import Examples, Federation, Shards
from coterie.flow.guard import ServerGuard
from coterie.flow.ring import Ring
from coterie.flow.turn import Turn
from coterie.learn.models.dense import Dense
from coterie.learn.params import map_leaves
from coterie.learn.sgd import Local
from coterie.measure import utility
from coterie.measure.intervals import pooled, student
from coterie.measure.utility import COST, Scores, evaluate, scored
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.wire.messages import Published

MODEL = Dense((1, 2))
SIGN = {"0.weight": torch.tensor([[-10.0], [10.0]]), "0.bias": torch.zeros(2)}  # class 1 for positive numbers
ALWAYS_0 = {"0.weight": torch.zeros(2, 1), "0.bias": torch.tensor([1.0, 0.0])}
BOTH = {name: torch.stack([SIGN[name], ALWAYS_0[name]]) for name in SIGN}


@pytest.fixture
def numbers() -> Federation:
    """Five numbers; the clients test on [-2, -1], [1, 2, 3 (wrongly labelled)], nothing, and all five."""
    examples = Examples(torch.tensor([[-2.0], [-1.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1, 0]), 2, "n")
    test = [torch.tensor(rows, dtype=torch.int64) for rows in ([0, 1], [2, 3, 4], [], [0, 1, 2, 3, 4])]
    return Federation(examples, Shards.of([torch.arange(5)] * 4), Shards.of(test), torch.zeros(4, dtype=torch.int64))


@pytest.fixture(params=[1, 3, 200_000])
def any_span(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "ROWS_AT_ONCE", request.param)


@pytest.mark.usefixtures("any_span")
def test_accuracy_by_hand(numbers: Federation) -> None:
    first, second = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([[0.0, 1.0]] * 4)
    sign, zero = (scored(MODEL, BOTH, choice, numbers) for choice in (first, second))
    torch.testing.assert_close(sign, torch.tensor([1.0, 2 / 3, torch.nan, 4 / 5]), equal_nan=True)
    torch.testing.assert_close(zero, torch.tensor([1.0, 1 / 3, torch.nan, 3 / 5]), equal_nan=True)


def test_mixtures_weigh_probabilities(numbers: Federation) -> None:
    """For 3, the first says class 1 with certainty and the second class 0 with 0.73: the mean says class 1.

    At weights 0.3 and 0.7 it says class 0: 0.7 * 0.73 = 0.51.
    """
    even = scored(MODEL, BOTH, torch.tensor([[0.5, 0.5]] * 4), numbers)
    assert float(even[1]) == pytest.approx(2 / 3)
    leaning = scored(MODEL, BOTH, torch.tensor([[0.3, 0.7]] * 4), numbers)
    assert float(leaning[1]) == pytest.approx(1 / 3)


def test_the_mean_leaves_out_who_cannot_be_tested() -> None:
    scores = Scores(torch.tensor([1.0, torch.nan, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.0, 1.0]]))
    assert scores.mean == 0.75
    assert scores.sizes == [1, 2]


def test_a_score_that_all_have_between_them_is_one_unit() -> None:
    """Two parties' cost of one clustering is no two costs that agree."""
    runs = [Scores(torch.full((2,), cost), torch.ones(2, 1), COST, joint=True).sample() for cost in (3.0, 4.0, 5.0)]
    assert [run.units for run in runs] == [1, 1, 1]
    assert not pooled(runs[:1]).is_known
    assert pooled(runs).ends == pytest.approx(student([3.0, 4.0, 5.0]).ends)


def test_ifca_s_clients_are_scored_with_their_choice(two_groups: Federation) -> None:
    protocol = Ifca(rounds=10, local=Local(steps=5, batch_size=6, lr=0.3), clusters=2)
    done = play(protocol, two_groups, Dense((4, 5, 3)))
    scores = evaluate(done.ring, done.state)
    choice = scores.choices.argmax(1)
    assert scores.choices.sum(1).tolist() == [1.0] * 6
    assert scores.sizes == [3, 3]
    swapped = scored(Dense((4, 5, 3)), done.state.published.values, 1 - scores.choices, two_groups)
    assert scores.mean > 0.9
    assert float(swapped.mean()) < 0.5
    assert choice[::2].unique().numel() == 1


@dataclass(frozen=True)
class Erase(ServerGuard):
    def publish(self, published: Published, turn: Turn) -> Published:
        return replace(published, values=map_leaves(torch.zeros_like, published.values))


def test_clients_are_scored_with_what_the_server_publishes() -> None:
    federation, protocol = blobs(groups=1), FedAvg(rounds=10, local=Local(steps=5, batch_size=6, lr=0.3))
    done = play(protocol, federation, Dense((4, 5, 3)))
    assert evaluate(done.ring, done.state).mean > 0.9
    erased = Ring(protocol, federation, done.ring.model, Halves(servers=Erase()), done.ring.roots)
    labels = federation.examples.y[federation.test.rows]
    expected = float((labels == 0).float().mean())  # a model of zeros says class 0
    assert evaluate(erased, done.state).mean == pytest.approx(expected)
