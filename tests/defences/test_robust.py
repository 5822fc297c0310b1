"""Robust aggregation: what ten kinds of bad clients do to a federation of twenty, and what it costs an honest one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.ring import play

from coterie.attacks.poisoning import HOW, Poisoning, poisoner
from coterie.config.registry import build_defence
from coterie.config.schema import Choice
from coterie.data.partition import Iid
from coterie.data.sources.embedded import Digits
from coterie.defences.dpsgd import DpSgd
from coterie.defences.robust import CLIPPED, LEFT_OUT, Krum, Median, NormClip, TrimmedMean
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.ask import Sums
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.flow.turn import Metrics, Roots, Turn
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.measure.utility import evaluate
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.codec import decode
from coterie.wire.messages import TRAIN, Contributions, Kind

BAD = 3
FEDERATION = Iid(20).split(Digits().load(), Rng.seeded(0))  # all ten digits
MODEL = Dense((64, 10))
PROTOCOL = FedAvg(rounds=25, local=Local(steps=4, batch_size=10, lr=0.3))
SHIELDS: dict[str, Defence] = {
    "norm clipping": NormClip(1.0),
    "median": Median(),
    "trimmed mean": TrimmedMean(0.15),
    "Krum": Krum(bad=2),
    "both": Stack(NormClip(1.0), TrimmedMean(0.15)),
}


@cache
def accuracy(shield: str | None = None, how: str | None = None) -> float:
    adversaries = [Poisoning(poisoner(BAD), how)] if how else []
    defence = SHIELDS[shield] if shield else Defence()
    done = play(PROTOCOL, FEDERATION, MODEL, defence=defence, adversaries=adversaries)
    values = evaluate(done.ring, done.state).values
    return float(values[torch.arange(20) != BAD].mean())


@pytest.mark.parametrize("how", HOW)
def test_one_bad_client_of_each_kind(how: str) -> None:
    """Within one point of the honest accuracy under at least one defence, and trained under every one of them."""
    honest = accuracy()
    under = {shield: accuracy(shield, how) for shield in SHIELDS}
    assert max(under.values()) >= honest - 0.01, under
    assert min(under.values()) > 0.5, under  # a start that was never trained has 0.1


def test_without_a_defence_one_client_ruins_it() -> None:
    assert len(HOW) == 10
    assert accuracy(None, "reversed") < 0.5 < 0.85 < accuracy()


def test_what_they_cost_an_honest_federation() -> None:
    assert min(accuracy(shield) for shield in SHIELDS) > accuracy() - 0.05


def _turn(kind: Kind = TRAIN) -> Turn:
    return Turn(0, Roots.seeded(0), kind, metrics=Metrics())


def _sent(rows: list[list[float]], clusters: list[int], slots: int) -> Contributions:
    membership = torch.nn.functional.one_hot(torch.tensor(clusters), slots).float()
    values = {"w": torch.tensor(rows).unsqueeze(1)}
    return Contributions(torch.arange(len(rows)), values, torch.ones(len(rows)), membership)


def test_means_are_taken_within_clusters_and_for_training_alone() -> None:
    sent = _sent([[1.0], [2.0], [90.0], [5.0], [7.0]], [0, 0, 0, 2, 2], 3)
    turn = _turn()
    sums = Median().server.aggregate([sent.pick(torch.tensor([0, 1])), sent.pick(torch.tensor([2, 3, 4]))], turn)
    assert sums.counts.tolist() == [3, 0, 2]
    assert (sums.values["w"][:, 0] / sums.weights.clamp_min(1)).tolist() == [2.0, 0.0, 6.0]
    votes = Median().server.aggregate([sent], _turn(Kind("choose")))
    assert torch.equal(votes.values["w"], Sums.over([sent]).values["w"])


def test_krum_leaves_out_the_one_that_is_unlike_the_others() -> None:
    rows = [[1.0], [1.1], [0.9], [1.05], [0.95], [400.0]]
    turn = _turn()
    sums = Krum(bad=1).server.aggregate([_sent(rows, [0] * 6, 1)], turn)
    assert float(sums.values["w"][0, 0] / sums.weights[0]) == pytest.approx(1.0)
    assert turn.metrics.means()[LEFT_OUT] == pytest.approx(1 / 6)
    single = Krum(bad=1, keep=1).server.aggregate([_sent(rows, [0] * 6, 1)], _turn())
    assert float(single.values["w"][0, 0] / single.weights[0]) == pytest.approx(1.0, abs=0.051)  # 3 are as near
    few = Krum(bad=1).server.aggregate([_sent(rows[:2] + rows[-1:], [0] * 3, 1)], _turn())  # too few: the median
    assert float(few.values["w"][0, 0] / few.weights[0]) == pytest.approx(1.1)


def test_longer_moves_are_shortened_and_shorter_ones_stay_to_the_bit() -> None:
    done = play(PROTOCOL, FEDERATION, MODEL, defence=NormClip(1e6))
    assert done.ring.metrics.means()[CLIPPED] == 0.0
    clipped = play(replace(PROTOCOL, rounds=1), FEDERATION, MODEL, defence=NormClip(0.01))
    assert clipped.ring.metrics.means()[CLIPPED] == 1.0
    states = (decode(clipped.states[0]), clipped.state)
    before, after = (flatten(clipped.ring.protocol.result(state).values) for state in states)
    assert 0 < float((after - before).norm()) <= 0.01 * (1 + 1e-6)


def test_who_must_read_has_no_place_under_a_seal() -> None:
    with pytest.raises(InvalidInput, match="must read the answers that"):
        Stack(NormClip(1.0), SecureSums())
    with pytest.raises(InvalidInput, match="each add up in a way of their own"):
        _ = Stack(Median(), Krum()).server
    Stack(DpSgd(1.0, 1.0), NormClip(1.0), Median())


def test_a_configuration_can_name_them() -> None:
    def built(**options: object) -> Defence:
        return build_defence(Choice.model_validate(options))

    assert built(kind="robust") == Median()
    assert built(kind="robust", rule="krum", bad=2, bound=1.5) == Stack(NormClip(1.5), Krum(2))
    stacked = built(kind="stack", members=[{"kind": "dpsgd", "clip": 1.0}, {"kind": "robust"}])
    assert isinstance(stacked, Stack)
    assert stacked.members[1] == Median()
    with pytest.raises(InvalidInput, match="must have a kind"):
        built(kind="stack", members=[{"clip": 1.0}])


@pytest.mark.parametrize("wrong", [lambda: NormClip(0), lambda: TrimmedMean(0.6), lambda: Krum(-1), lambda: Krum(1, 0)])
def test_bad_settings_are_named(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="must"):
        wrong()  # type: ignore[operator]
    assert math.isinf(NormClip(math.inf).bound)
