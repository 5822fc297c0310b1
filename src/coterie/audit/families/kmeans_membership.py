"""Membership of one record, or of one client, in a federated clustering, and the epsilon that it proves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from coterie.attacks.membership import RESULT
from coterie.audit.case import Subject
from coterie.audit.clusterings import ClusteringFamily
from coterie.audit.evidence import Evidence
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.config.built import Case
from coterie.config.schema import Choice
from coterie.data.federation import Federation, Shards
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.flow.guard import Defence
from coterie.flow.stack import member_of, members
from coterie.learn.clusters import lloyd
from coterie.measure.epsilon import Scores
from coterie.measure.findings import Finding
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.judge import judge_scores
from coterie.measure.membership import Releases, measure_membership, scores_of_all
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import Clusterer
from coterie.protocols.clusterings.kfed import KFed
from coterie.rng import Rng
from coterie.wire.messages import Kind, Published
from coterie.wire.view import ThreatModel, View

NO_NOISE = 1e-6  # what the test takes for the deviation where nothing is added
KNEW = "all other records, and how the noise was drawn"
LISTENER = ThreatModel("whoever is given the released sums", server=True, knows=KNEW)


class KMeansMembership(ClusteringFamily):
    name = "membership in a clustering"
    limit = "membership_auc"
    chance = 0.5
    paper = "Gupta and Maheshwari 2025, on FedDP-KMeans; audit after Nasr et al. 2021"
    question = "Does whoever is given the sums learn whether a record was among the points?"
    threat = "Whoever is given the released sums and knows all other records."
    method = (
        "The optimal (likelihood ratio) test on all releases of the run, answered again and again under fresh noise: "
        "with the record that lies farthest out (at the level of clients, with the largest client), and without it. "
        "Where clients add all noise themselves and nothing seals it, on that client's own messages. Its scores also "
        "give a lower bound on epsilon with 95 % confidence. The control draws both sides without it."
    )

    def admits(self, subject: Subject) -> str:
        if isinstance(subject.launched, KFed):
            return "k-FED releases centres and no sums, which this test is for"
        return super().admits(subject)

    def misfit(self, subject: Subject, choice: Choice) -> str:
        if why := super().misfit(subject, choice):
            return why
        guard = subject.built_defence(choice, subject.launched)
        if guard.seals and type(guard.unsealed) is Defence:
            return "it hides answers from the server, and the sums that this attack reads are the same with it"
        return ""

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (LISTENER,)

    def read(self, run: ReferenceRun) -> Evidence:
        case, rng = run.case, run.rng
        trials = run.subject.audit.kmeans_membership.trials
        tested = Tested.of(case, asked_in(run.view(LISTENER)))
        scores = tested.scores(trials, rng.child("trials"))
        placebo = replace(tested, inside=tested.outside).scores(trials, rng.child("placebo"), tested.inside)
        found = (
            self.finding(scores, "membership test"),
            replace(self.finding(placebo, "membership of none"), control=True),
        )
        promise, bounds = case.promise, []
        if promise is not None:
            error = (1 - CONFIDENCE) / 2 ** (1 + case.seed - run.subject.seed)  # all seeds' together
            claim = promise.guarantee
            bounds = [measure_membership(scores, case.delta, claim, rng.child("bounds"), error).bound]
        return run.evidence([replace(one, adversary="recipient of the released sums") for one in found], bounds)

    def finding(self, scores: Scores, name: str) -> Finding:
        drawn = np.concatenate([scores.inside, scores.outside])
        answers = np.arange(len(drawn)) < len(scores.inside)
        return judge_scores(drawn, answers, [None] * len(drawn), name, KNEW, "releases")

    def admits_recording(self, recording: Recording) -> str:
        return "needs to release the sums again and again, and what was written down is over"


def asked_in(view: View) -> dict[Kind, tuple[int, Published]]:
    """Every request of the run for sums, by what was published with it."""
    kinds = [kind for kind in view.kinds() if str(kind) != RESULT and not kind.part]
    return {kind: (view.first(kind), view.received(view.first(kind), kind).published) for kind in kinds}


@dataclass(frozen=True)
class Tested:
    """The releases with the target and without it."""

    inside: Sequence[Releases]
    outside: Sequence[Releases]
    noise: dict[str, float]

    @staticmethod
    def of(case: Case, asked: dict[Kind, tuple[int, Published]]) -> Tested:
        protocol, federation, guard = cast(Clusterer, case.protocol), case.federation, case.defence.unsealed
        inside = Releases.again(protocol, federation, guard, asked)
        if protocol.level is Level.CLIENT:
            client = int(federation.train.sizes.argmax())
            outside = [one.without(client) for one in inside]
        else:
            client, position = farthest(federation, asked)
            outside = Releases.again(protocol, less_one(federation, client, position), guard, asked)
        alone = member_of(guard, LocalNoise) is not None and not case.defence.seals
        if alone:
            inside, outside = ([one.only(client) for one in side] for side in (inside, outside))
        return Tested(inside, outside, deviations(protocol, guard, 1 if alone else federation.clients))

    def scores(self, trials: int, rng: Rng, change: Sequence[Releases] | None = None) -> Scores:
        """``change``: what the test looks for, where it is not what distinguishes the sides."""
        return scores_of_all(self.inside, self.outside, self.noise, trials, rng, change)


def deviations(protocol: Clusterer, guard: Defence, clients: int) -> dict[str, float]:
    """Of all the noise on each release that is read, which so many clients' messages are in."""
    variances = dict.fromkeys(protocol.releases(), 0.0)
    for one in members(guard):
        if isinstance(one, NoisySums):
            draws = clients if isinstance(one, LocalNoise) else 1
            for name, deviation in one.noise.items():
                variances[name] += draws * deviation**2
    return {name: math.sqrt(variance) or NO_NOISE for name, variance in variances.items()}


def farthest(federation: Federation, asked: dict[Kind, tuple[int, Published]]) -> tuple[int, int]:
    """The client and position of the record farthest from its centre, of those who hold more than one."""
    centres = next(one.values["centres"][0] for _, one in reversed(asked.values()) if "centres" in one.values)
    train = federation.train
    points = federation.examples.x.flatten(1)[train.rows]
    distances = lloyd.squared_distances(points, centres, lloyd.nearest(points, centres))
    owners = torch.repeat_interleave(torch.arange(len(train)), train.sizes)
    place = int(torch.where(train.sizes[owners] > 1, distances, -1.0).argmax())
    return int(owners[place]), place - int(train.offsets[owners[place]])


def less_one(federation: Federation, client: int, position: int) -> Federation:
    """The same federation less one record of one client."""
    parts = [federation.train[number] for number in range(federation.clients)]
    parts[client] = parts[client][torch.arange(len(parts[client])) != position]
    return replace(federation, train=Shards.of(parts))


FAMILY = KMeansMembership()
