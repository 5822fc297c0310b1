"""Membership in a clustering: three tests from weak to optimal, and audits that broken mechanisms fail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.attacks.membership import (
    GIVEN_THE_RESULT,
    TARGET,
    CostTest,
    ShadowTest,
    SumsTest,
    log_ratios,
    published_centres,
)
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, NoisySums, plan_noise
from coterie.errors import InvalidInput
from coterie.estimators import federate, run_clustering
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.learn.clusters.clipping import ClientClip, RecordClip, Unclipped
from coterie.learn.clusters.lloyd import packed_outer_products
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import statistics
from coterie.learn.params import Params
from coterie.measure.claims import Outcome, Promise
from coterie.measure.epsilon import Scores, auc
from coterie.measure.membership import Releases, audit, measure_membership, optimal_scores
from coterie.privacy.guarantee import Guarantee, Level
from coterie.protocols.clusterings.base import Clusterer, contribution, points_of
from coterie.protocols.clusterings.feddp_kmeans import FedDPKMeans
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Kind
from coterie.wire.tape import Tape
from coterie.wire.view import View

DELTA, BOUND, FEATURES = 1e-6, 2.0, 5
CENTRES = torch.tensor([[2.0, 0, 0, 0, 0], [-2.0, 0, 0, 0, 0]])
RECORD = torch.tensor([1.0, 9.0, -6.0, 2.0, 3.0])  # far out, so that clipping matters


def lloyd(level: Level = Level.RECORD, steps: int = 1) -> FederatedLloyd:
    return FederatedLloyd(2, level, centres=CENTRES, steps=steps, bound=BOUND)


def others() -> list[Tensor]:
    draws = Rng.seeded(0).child("others").torch()
    return [torch.randn(12, FEATURES, generator=draws) for _ in range(3)]


def federation(inside: bool, level: Level = Level.RECORD) -> Federation:
    """At record level the first client has the target or not; at client level the target is a client of its own."""
    first, *rest = others()
    if level is Level.CLIENT:
        return federate([first, *rest, RECORD.expand(3, -1)] if inside else [first, *rest])
    return federate([torch.cat([first, RECORD[None]]) if inside else first, *rest])


def planned(protocol: Clusterer, epsilon: float, level: Level = Level.RECORD) -> dict[str, float]:
    return plan_noise(protocol.releases(), epsilon, DELTA, SHARES[level])


def claim(protocol: Clusterer, noise: dict[str, float]) -> Guarantee:
    return CentralNoise(noise).guarantee(protocol.facts(federation(True), DELTA))


# -- the optimal test proves what is claimed, and breaks are found ---------------------------------------------------


def audited(
    protocol: Clusterer, defence: NoisySums, stated: dict[str, float], level: Level, trials: int, seed: int
) -> tuple[Promise, float, float]:
    inside, outside = (
        Releases.of(protocol, federation(there, level), defence, Rng.seeded(seed)) for there in (True, False)
    )
    scores = optimal_scores(inside, outside, stated, trials, Rng.seeded(seed).child("trials"))
    promise = CentralNoise(stated).guarantee(protocol.facts(federation(True), DELTA))
    found = measure_membership(scores, DELTA, promise, Rng.seeded(seed)).bound
    return audit(scores, promise, Rng.seeded(seed)), found.epsilon, promise.epsilon


def test_the_optimal_test_comes_within_a_factor_of_two() -> None:
    """A Gaussian release at epsilon 1. The target adds its whole bound, so it is the worst case."""
    protocol = lloyd()
    noise = planned(protocol, 1.0)
    verdict, proven, promised = audited(protocol, CentralNoise(noise), noise, Level.RECORD, 16_000, 0)
    assert verdict.outcome is Outcome.HOLDS
    assert promised / 2 < proven <= promised <= 1.0


@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
@pytest.mark.parametrize("place", ["central", "distributed", "local"])
def test_correct_mechanisms_pass_wherever_the_noise_is_added(level: Level, place: str) -> None:
    protocol = lloyd(level)
    noise = planned(protocol, 4.0, level)
    count = 3 if level is Level.RECORD else 4
    places: dict[str, NoisySums] = {
        "central": CentralNoise(noise),
        "distributed": DistributedNoise(noise, clients=count, colluders=0),
        "local": LocalNoise(noise),
    }
    if place == "distributed" and level is Level.CLIENT:
        with pytest.raises(InvalidInput, match="noise is missing"):  # one client fewer
            audited(protocol, places[place], noise, level, 2, 0)
        return
    verdict, proven, promised = audited(protocol, places[place], noise, level, 400, 0)
    assert verdict.outcome is Outcome.HOLDS
    assert proven <= promised


@dataclass(frozen=True, eq=False)
class ForgetsToClip(FederatedLloyd):
    """Divides by the bound without having clipped to it."""

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind.name == "result":
            return super().answer(kind, models, cohort, guard)
        public = {name: leaf[0] for name, leaf in models.items()}
        leaves = statistics(kind.name, public, points_of(cohort), Unclipped)
        return contribution(cohort, {**leaves, "sums": leaves["sums"] / public["bound"]})


@dataclass(frozen=True, eq=False)
class TakesTheClipForTheSensitivity(FedDPKMeans):
    """Outer products of records of norm C have norm C squared; the public code scales its noise to C."""

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        if kind.name != "outer":
            return super().answer(kind, models, cohort, guard)
        found = packed_outer_products(points_of(cohort), RecordClip(BOUND), models["middle"][0])
        return contribution(cohort, {"outer": found.value / BOUND})


BROKEN: dict[str, tuple[Clusterer, float]] = {
    "half the noise": (lloyd(), 0.5),
    "no clipping": (ForgetsToClip(2, Level.RECORD, centres=CENTRES, steps=1, bound=BOUND), 1.0),
    "a sensitivity that is too small": (
        TakesTheClipForTheSensitivity(2, Level.RECORD, server_data=CENTRES.repeat(3, 1), steps=0, bound=BOUND),
        1.0,
    ),
}


@pytest.mark.parametrize(("protocol", "part"), BROKEN.values(), ids=BROKEN.keys())
def test_the_audit_fails_what_is_broken(protocol: Clusterer, part: float) -> None:
    """The first release alone is audited, and so is charged alone."""
    first = protocol.releases()[0].split("/")[0]
    names = [name for name in protocol.releases() if name.startswith(first)]
    stated = plan_noise(names, 1.0, DELTA, SHARES[Level.RECORD])
    real = CentralNoise({name: part * deviation for name, deviation in stated.items()})
    verdict, proven, promised = audited(protocol, real, stated, Level.RECORD, 3000, 1)
    assert verdict.outcome is Outcome.VIOLATED, verdict
    assert proven > promised


# -- the three tests on recorded runs --------------------------------------------------------------------------------

RUNS = 60


def view_of(inside: bool, noise: dict[str, float] | None, seed: int, steps: int = 1) -> View:
    tape = Tape([GIVEN_THE_RESULT])
    defence = None if noise is None else CentralNoise(noise)
    protocol = lloyd(steps=steps) if noise else FederatedLloyd(2, centres=CENTRES, steps=steps)
    run_clustering(protocol, federation(inside), Rng.seeded(seed).child(str(inside)), defence, tape)
    return tape.view(GIVEN_THE_RESULT)


def scored(test: Any, views: dict[bool, list[View]]) -> Scores:
    sides = [
        np.array([test.infer(view, Auxiliary(), Rng.seeded(0)).scores[TARGET] for view in views[inside]])
        for inside in (True, False)
    ]
    return Scores(*sides)


@pytest.fixture(scope="module")
def noisy() -> tuple[dict[bool, list[View]], dict[str, float]]:
    noise = planned(lloyd(steps=2), 6.0)
    return {inside: [view_of(inside, noise, seed, 2) for seed in range(RUNS)] for inside in (True, False)}, noise


def test_tests_on_recorded_runs(noisy: tuple[dict[bool, list[View]], dict[str, float]]) -> None:
    """Of the released sums the optimal test learns most; none proves more than was claimed."""
    views, noise = noisy
    shadows = {
        inside: torch.stack([published_centres(view_of(inside, noise, 1000 + seed, 2)) for seed in range(30)])
        for inside in (True, False)
    }
    tests = {
        "cost": CostTest(RECORD),
        "shadow": ShadowTest(RECORD, shadows[True], shadows[False]),
        "sums": SumsTest(RECORD[None], Points.of(others()), noise),
    }
    areas = {}
    for name, test in tests.items():
        scores = scored(test, views)
        areas[name] = auc(scores).estimate
        promise = claim(lloyd(steps=2), noise)
        assert audit(scores, promise, Rng.seeded(0)).outcome is Outcome.HOLDS, name
    assert areas["sums"] > 0.68  # 0.80 is due at epsilon 6, and 60 runs scatter by 0.04
    assert areas["sums"] >= max(areas["cost"], areas["shadow"]) - 0.1


def test_without_noise_one_look_is_enough() -> None:
    views = {inside: [view_of(inside, None, seed) for seed in range(3)] for inside in (True, False)}
    scores = scored(CostTest(RECORD), views)
    assert scores.inside.min() > scores.outside.max()
    found = measure_membership(scores, DELTA, None, Rng.seeded(0))
    assert found.auc.estimate == 1
    assert not found.at_0_1_percent.is_resolved  # three runs cannot show so small a rate


def test_a_client_is_told_apart_like_a_record() -> None:
    """Noise so small that the ratio has its sign in every run."""
    protocol = lloyd(Level.CLIENT)
    noise = dict.fromkeys(protocol.releases(), 0.02)
    test = SumsTest(RECORD.expand(3, -1), Points.of(others()), noise, ClientClip)
    for inside in (True, False):
        tape = Tape([GIVEN_THE_RESULT])
        run_clustering(protocol, federation(inside, Level.CLIENT), Rng.seeded(3), CentralNoise(noise), tape)
        ratio = test.infer(tape.view(GIVEN_THE_RESULT), Auxiliary(), Rng.seeded(0)).scores[TARGET]
        assert (ratio > 0) == inside


def test_the_ratio_by_hand() -> None:
    """In: N(3, 4), out: N(1, 4); at 2.5 the log ratio is (1.5^2 - 0.5^2) / 8 = 0.25."""
    assert log_ratios(torch.tensor([[2.5]]), torch.tensor([1.0]), torch.tensor([2.0]), 2.0).tolist() == [0.25]
    with pytest.raises(InvalidInput, match=r"deviation=0.0 must be positive"):
        log_ratios(torch.zeros(1, 1), torch.zeros(1), torch.ones(1), 0.0)


def test_shadow_runs_must_be_several() -> None:
    one = torch.zeros(1, 2, FEATURES)
    with pytest.raises(InvalidInput, match="inside shadow runs=1 must be at least 2"):
        ShadowTest(RECORD, one, one)
    assert math.isfinite(
        ShadowTest(RECORD, one.repeat(2, 1, 1), one.repeat(2, 1, 1))
        .infer(view_of(True, None, 0), Auxiliary(), Rng.seeded(0))
        .scores[TARGET]
    )
