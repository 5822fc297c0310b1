"""Reconstruction of one record from the sums of federated k-means (paper 002), by a curious server."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from coterie.attacks.reconstruction import CURIOUS_SERVER, OTHERS, REST, RecordReconstruction
from coterie.audit.case import Subject
from coterie.audit.clustering_scene import ClusteringFamily, Scene, as_examples
from coterie.audit.curves import PRIVATE, REBUILT
from coterie.audit.evidence import Evidence
from coterie.audit.scene import claimed
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.learn.clusters.clipping import Unclipped
from coterie.measure.cost import peak_memory
from coterie.measure.intervals import Sample
from coterie.measure.reconstruction import Originals, cosines, finding
from coterie.rng import Rng
from coterie.wire.tape import Tape


class Reconstruction(ClusteringFamily):
    name = "reconstruction from k-means"
    limit = "reconstruction_cosine"
    paper = "Gupta and Maheshwari 2025, on FedDP-KMeans (Scott et al. 2025)"
    question = "Does the server rebuild a client's record from the sums of federated k-means?"
    threat = "A curious server that knows all other records."
    method = (
        "What is known of the other records is taken off the sums that the server can read: the client's message where "
        "it is sent in the open, else the noisy total. Scored by the cosine with the record, both measured from the "
        "public centre; 0 says nothing and 1 everything. One Lloyd step."
    )

    gallery = (
        "One record of each of several clients, and what a curious server makes of it. Noise that the server adds "
        "itself comes too late; noise that is there before it reads the sums is all that it sees."
    )

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        scene, rng = Scene.of(subject, seed), Rng.seeded(seed)
        tape = Tape([CURIOUS_SERVER])
        ring, state, seconds = scene.run(defence, rng, tape)
        view = tape.view(CURIOUS_SERVER)
        protocol, guard = scene.protocol(defence), scene.defence(defence)
        unit = Unclipped if protocol.level is None else protocol.unit
        train = scene.federation.train
        victims = train.sizes.nonzero().flatten()[: subject.audit.kmeans_reconstruction.victims].tolist()
        found: list[float] = []
        private: list[Tensor] = []
        rebuilt: list[Tensor] = []
        for victim in victims:
            rows = train[victim]
            others = torch.cat([train[client] for client in range(len(train)) if client != victim])
            known = {REST: as_examples(scene.points[rows[1:]]), OTHERS: as_examples(scene.points[others])}
            guess = RecordReconstruction(victim, unit=unit).infer(view, Auxiliary(parts=known), rng)
            found += cosines(guess, Originals(dict.fromkeys(guess.vectors, scene.points[rows[0]])))
            private.append(scene.points[rows[0]])
            rebuilt += [vector + guess.origins[key] for key, vector in guess.vectors.items()]
        made = finding(found, "record reconstruction", CURIOUS_SERVER.knows)
        return Evidence(
            findings=[replace(made, adversary="curious server")],
            utility_measure="k-means cost",
            utility=Sample.average([scene.cost(state)], 0.0, math.inf),
            seconds=seconds,
            upload_bytes=ring.traffic.up_a_client,
            memory_bytes=peak_memory(),
            promise=claimed(guard.guarantee(protocol.facts(scene.federation, 1e-6))),
            pictures=scene.pictures({PRIVATE: private, REBUILT: rebuilt}),
        )


FAMILY = Reconstruction()
