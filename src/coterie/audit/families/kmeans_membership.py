"""Membership of one record in a federated clustering (paper 002), and the epsilon that it proves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from coterie.audit.case import Subject
from coterie.audit.clustering_scene import DELTA, ClusteringFamily, Scene
from coterie.audit.evidence import Evidence
from coterie.audit.fitting import NOISY_SUMS
from coterie.audit.scene import claimed
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.learn.clusters import lloyd
from coterie.measure.cost import peak_memory
from coterie.measure.intervals import CONFIDENCE, Sample
from coterie.measure.judge import judge_scores
from coterie.measure.membership import Releases, measure_membership, optimal_scores
from coterie.rng import Rng

NO_NOISE = 1e-6  # what the test takes for the deviation where nothing is added


class KMeansMembership(ClusteringFamily):
    name = "membership in a clustering"
    limit = "membership_auc"
    paper = "Gupta and Maheshwari 2025, on FedDP-KMeans; audit after Nasr et al. 2021"
    question = "Does whoever is given the sums learn whether a record was among the points?"
    threat = "Whoever is given the released sums and knows all other records."
    method = (
        "The optimal (likelihood ratio) test on many releases with the record that lies farthest out and as many "
        "without it, under fresh noise each. Its scores also give a lower bound on epsilon with 95 % confidence."
    )

    def misfit(self, subject: Subject, choice: Choice) -> str:
        if why := super().misfit(subject, choice):
            return why
        if choice.kind != NOISY_SUMS and registry.build_defence(choice).seals:
            return "it hides answers from the server, and the sums that this attack reads are the same with it"
        return ""

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        scene, rng = Scene.of(subject, seed), Rng.seeded(seed)
        ring, state, seconds = scene.run(defence, rng)
        protocol, guard = scene.protocol(defence), scene.defence(defence)
        trials = subject.audit.kmeans_membership.trials
        client, position = farthest(scene)
        inside = Releases.of(protocol, scene.federation, guard, rng)
        outside = Releases.of(protocol, scene.without(client, position), guard, rng)
        planned = getattr(guard, "noise", None) or dict.fromkeys(protocol.releases(), NO_NOISE)
        scores = optimal_scores(inside, outside, planned, trials, rng.child("trials"))
        error = (1 - CONFIDENCE) / 2 ** (1 + seed - subject.seed)  # all seeds' together, however many there are
        promise = guard.guarantee(protocol.facts(scene.federation, DELTA))
        found = measure_membership(scores, DELTA, promise, rng.child("bounds"), error)
        knew = "all other records, and how the noise was drawn"
        drawn, answers = np.concatenate([scores.inside, scores.outside]), np.arange(2 * trials) < trials
        finding = judge_scores(drawn, answers, [None] * len(drawn), "membership test", knew, "releases")
        return Evidence(
            findings=[replace(finding, adversary="holder of the result")],
            utility_measure="k-means cost",
            utility=Sample.average([scene.cost(state)], 0.0, math.inf),
            seconds=seconds,
            upload_bytes=ring.traffic.up_a_client,
            memory_bytes=peak_memory(),
            promise=claimed(promise, [found.bound]),
        )


def farthest(scene: Scene) -> tuple[int, int]:
    """The client and position of the record farthest from its centre: the one that the sums tell most about."""
    rows = scene.federation.train.rows
    points = scene.points[rows]
    distances = lloyd.squared_distances(points, scene.centres, lloyd.nearest(points, scene.centres))
    place = int(distances.argmax())
    client = int(torch.searchsorted(scene.federation.train.offsets, place, right=True)) - 1
    return client, place - int(scene.federation.train.offsets[client])


FAMILY = KMeansMembership()
