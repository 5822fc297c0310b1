"""Section 5.3: membership tests on whole runs, and the audit of one release."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.attacks import membership
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.data.partition.gaussians import GaussianClients
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.plan import SHARES, plan_noise
from coterie.defences.noisy_sums.published import PublishedNoise
from coterie.estimators import federate, run_clustering
from coterie.flow.guard import Defence
from coterie.learn.clusters.points import Points
from coterie.measure.epsilon import Scores
from coterie.measure.membership import Membership, Releases, measure_membership, optimal_scores
from coterie.privacy.accounting import guarantee_of
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings import feddp_kmeans
from coterie.protocols.clusterings.base import Clusterer
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd as LloydProtocol
from coterie.protocols.clusterings.scott_kmeans import ScottKMeans
from coterie.recipes.federated_kmeans.runs.problems import DELTA, Problem
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

CASE_CLUSTERS, CASE_BOUND = 4, 1.0


@dataclass(frozen=True)
class Case:
    """A small federation with and without one record that lies far out: the worst case, clipped to the bound.

    Ten features and four clusters, so that thousands of runs can be made.
    """

    record: Tensor
    parts: list[Tensor]
    server: Tensor

    @staticmethod
    def draw(seed: int) -> Case:
        maker, rng = (
            GaussianClients(10, 100, components=CASE_CLUSTERS, dimensions=10, variance=0.05),
            Rng.seeded(seed).child("data"),
        )
        given = Problem(maker.make(rng), maker.server(rng).whole().x)
        middle = given.x.mean(0)
        return Case(middle + 3 * (given.x[0] - middle), given.parts, given.server)

    def federation(self, inside: bool) -> Federation:
        first, *rest = self.parts
        return federate([torch.cat([first, self.record[None]]) if inside else first, *rest])

    def views(self, protocol: Clusterer, defence: Defence, inside: bool, count: int, rng: Rng) -> list[View]:
        """What whoever is given the result has seen, run by run."""
        federation, found = self.federation(inside), []
        for number in range(count):
            tape = Tape([membership.GIVEN_THE_RESULT])
            run_clustering(protocol, federation, rng.child(str(inside), number), defence, tape)
            found.append(tape.view(membership.GIVEN_THE_RESULT))
        return found


def member_tests(epsilon: float | None, runs: int, shadows: int, seed: int) -> Result:
    """The three tests on whole runs of FedDP-KMeans with and without the record."""
    case, rng = Case.draw(seed), Rng.seeded(seed).child("membership")
    level = None if epsilon is None else Level.RECORD
    protocol = feddp_kmeans.FedDPKMeans(CASE_CLUSTERS, level, server_data=case.server, bound=CASE_BOUND)
    noise = {} if epsilon is None else plan_noise(protocol.releases(), epsilon, DELTA, SHARES[Level.RECORD])
    defence = CentralNoise(noise) if noise else Defence()
    inside, outside = (
        torch.stack(
            [
                membership.published_centres(view)
                for view in case.views(protocol, defence, there, shadows, rng.child("shadow"))
            ]
        )
        for there in (True, False)
    )
    tests: dict[str, Any] = {
        "cost": membership.CostTest(case.record),
        "shadow": membership.ShadowTest(case.record, inside, outside),
    }
    if noise:
        tests["sums"] = membership.SumsTest(case.record[None], Points.of(case.parts), noise)
    seen = [case.views(protocol, defence, there, runs, rng.child("run")) for there in (True, False)]
    promise = defence.guarantee(protocol.facts(case.federation(True), DELTA))
    results: Result = {"claim": promise.epsilon if promise is not None else math.inf}
    for name, test in tests.items():
        said = ([test.infer(view, Auxiliary(), rng).scores[membership.TARGET] for view in views] for views in seen)
        results[name] = _plain(measure_membership(Scores(*map(np.array, said)), DELTA, promise, rng.child(name)))
    return results


def one_release(epsilon: float, part_of_the_noise: float, trials: int, seed: int) -> Result:
    """The optimal test on one noisy sum. A ``part_of_the_noise`` below 1 breaks the promise, for the audit to find."""
    case, rng = Case.draw(seed), Rng.seeded(seed).child("audit")
    start = case.server[:: len(case.server) // CASE_CLUSTERS][:CASE_CLUSTERS]
    protocol = LloydProtocol(CASE_CLUSTERS, Level.RECORD, centres=start, steps=1, bound=CASE_BOUND)
    stated = plan_noise(protocol.releases(), epsilon, DELTA, SHARES[Level.RECORD])
    real = CentralNoise({name: part_of_the_noise * deviation for name, deviation in stated.items()})
    inside, outside = (Releases.of(protocol, case.federation(there), real, rng) for there in (True, False))
    scores = optimal_scores(inside, outside, stated, trials, rng.child("trials"))
    promise = CentralNoise(stated).guarantee(protocol.facts(case.federation(True), DELTA))
    return {"claim": promise.epsilon, "sums": _plain(measure_membership(scores, DELTA, promise, rng))}


def published_outer_products(trials: int, seed: int) -> Result:
    """The optimal test on the outer products as published, of one record at the clipping bound; epsilon 1 is stated."""
    case, rng = Case.draw(seed), Rng.seeded(seed).child("outer products")
    protocol = ScottKMeans(CASE_CLUSTERS, server_data=case.server)
    far = replace(case, record=case.record * (2 * protocol.bound / case.record.norm()))
    real = PublishedNoise.planned(protocol.releases(), protocol.bound, DELTA)
    inside, outside = (Releases.of(protocol, far.federation(there), real, rng) for there in (True, False))
    scores = optimal_scores(inside, outside, real.noise, trials, rng.child("trials"))
    stated = guarantee_of(real.stated[:1], DELTA, Level.RECORD, real.trust, protocol.bound)
    return {"claim": stated.epsilon, "sums": _plain(measure_membership(scores, DELTA, stated, rng))}


def _plain(found: Membership) -> Result:
    return {
        "auc": [found.auc.estimate, found.auc.low, found.auc.high],
        "tpr at 1 %": found.at_1_percent.tpr.estimate,
        "tpr at 0.1 %": found.at_0_1_percent.tpr.estimate if found.at_0_1_percent.is_resolved else None,
        "epsilon": found.bound.epsilon,
    }
