"""Reconstruction from a federated clustering by a curious server (Gupta and Maheshwari 2025): a record, or a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from coterie.attacks.reconstruction import (
    CURIOUS_SERVER,
    OTHERS,
    REST,
    ClientReconstruction,
    MeansReconstruction,
    Rebuilt,
    RecordReconstruction,
    last_move,
)
from coterie.audit.case import Subject
from coterie.audit.clusterings import ClusteringFamily, as_pictures
from coterie.audit.curves import PRIVATE, REBUILT
from coterie.audit.evidence import Evidence
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation
from coterie.learn.clusters.clipping import Unclipped
from coterie.learn.clusters.lloyd import nearest
from coterie.measure.findings import Finding
from coterie.measure.reconstruction import client_shift, cosine, finding
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import Clusterer
from coterie.protocols.clusterings.kfed import KFed
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

ATTACK, CONTROL = "reconstruction", "reconstruction, compared with others"


@dataclass(frozen=True, eq=False)
class Pair:
    """What was rebuilt and what was private, both measured from what anybody who knows the others would guess."""

    rebuilt: Tensor  # (features,)
    private: Tensor
    origin: Tensor


class Reconstruction(ClusteringFamily):
    name = "reconstruction from k-means"
    limit = "reconstruction_cosine"
    paper = "Gupta and Maheshwari 2025, on FedDP-KMeans (Scott et al. 2025)"
    question = "Does the server rebuild a client's record from what clients send to be clustered?"
    threat = "A curious server that knows all other records."
    method = (
        "What is known of the other records is taken off what the server can read of the last step: the client's "
        "message where it is sent in the open, else the noisy total. Scored by the cosine with the record, both "
        "measured from the mean of the others in its cluster; 0 says nothing and 1 everything. Where clients and not "
        "records are bounded, a client's mean is rebuilt. The control compares what was rebuilt of one with another."
    )

    gallery = (
        "One record of each of several clients, and what a curious server makes of it. Noise that the server adds "
        "itself comes too late; noise that is there before it reads the sums is all that it sees."
    )

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (CURIOUS_SERVER,)

    def read(self, run: ReferenceRun) -> Evidence:
        view, case = run.view(CURIOUS_SERVER), run.case
        victims = run.subject.audit.kmeans_reconstruction.victims
        pairs = self.pairs(cast(Clusterer, case.protocol), case.federation, view, victims, run.rng)
        pictures = {
            PRIVATE: as_pictures(case.federation.examples, [pair.private + pair.origin for pair in pairs]),
            REBUILT: as_pictures(case.federation.examples, [pair.rebuilt + pair.origin for pair in pairs]),
        }
        shown = pictures if run.first and pictures[PRIVATE] else {}
        return run.evidence(self.findings(pairs), pictures=shown)

    def findings(self, pairs: Sequence[Pair]) -> list[Finding]:
        real = [cosine(pair.rebuilt, pair.private) for pair in pairs]
        found = [finding(real, ATTACK, CURIOUS_SERVER.knows)]
        if len(pairs) > 1:
            mixed = [
                sum(
                    cosine(pair.rebuilt, other.private + other.origin - pair.origin)
                    for other in pairs
                    if other is not pair
                )
                for pair in pairs
            ]
            others = [total / (len(pairs) - 1) for total in mixed]
            found.append(replace(finding(others, CONTROL, CURIOUS_SERVER.knows), control=True))
        return [replace(one, adversary="curious server") for one in found]

    def pairs(self, protocol: Clusterer, federation: Federation, view: View, victims: int, rng: Rng) -> list[Pair]:
        points, train = federation.examples.x.flatten(1), federation.train
        chosen = train.sizes.nonzero().flatten()[:victims].tolist()
        found = []
        for victim in chosen:
            rows = train[victim]
            others = torch.cat([train[client] for client in range(len(train)) if client != victim])
            known = {
                name: as_examples(points[here]) for name, here in ((REST, rows[1:]), (OTHERS, others)) if len(here)
            }
            guess = rebuilt(protocol, federation, view, victim, Auxiliary(parts=known), rng)
            vector, origin = guess.vectors[victim].float(), guess.origins[victim].float()
            if protocol.level is Level.CLIENT:
                kind = last_move(view)
                public = {name: leaf[0] for name, leaf in view.received(view.first(kind), kind).values.items()}
                found.append(Pair(vector, client_shift(points[rows], public), torch.zeros_like(vector)))
                continue
            middle = _mean_beside(vector + origin, points[torch.cat([rows[1:], others])], view)
            found.append(Pair(vector + origin - middle, points[rows[0]] - middle, middle))
        return found

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        return "" if recording.has_uploads else "needs what clients sent, and none of it was recorded"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """Whoever knows all other records is asked for the one that is missing: ``[data]`` and ``[partition]``."""
        subject, view = recording.subject, recording.view(CURIOUS_SERVER, training=False)
        unscored = replace(Finding.unscored(ATTACK, "cosine", 0.0, CURIOUS_SERVER.knows), adversary="curious server")
        if recording.options.truth is None:
            return Evidence.of_recording([unscored], [])
        victims, rng = subject.audit.kmeans_reconstruction.victims, Rng.seeded(seed).child("attack")
        protocol = cast(Clusterer, subject.launched)
        return Evidence.of_recording(self.findings(self.pairs(protocol, subject.federation(), view, victims, rng)), [])


def rebuilt(
    protocol: Clusterer, federation: Federation, view: View, victim: int, known: Auxiliary, rng: Rng
) -> Rebuilt:
    """By the attack that the protocol's messages admit."""
    if isinstance(protocol, KFed):
        return MeansReconstruction(victim).infer(view, known, rng)
    kind, unit = last_move(view), Unclipped if protocol.level is None else protocol.unit
    if protocol.level is not Level.CLIENT:
        return RecordReconstruction(victim, kind, unit).infer(view, known, rng)
    points, train = federation.examples.x.flatten(1), federation.train
    others = tuple(points[train[client]] for client in range(len(train)) if client != victim and len(train[client]))
    return ClientReconstruction(victim, kind, unit, others).infer(view, known, rng)


def _mean_beside(guess: Tensor, others: Tensor, view: View) -> Tensor:
    """The mean of the other records in the cluster in which the guess lies; of all, where it is alone there."""
    result = view.received(view.last("result"), "result").values["centres"][0]
    here = nearest(others, result) == int(nearest(guess.unsqueeze(0), result))
    return others[here].mean(0) if bool(here.any()) else others.mean(0)


def as_examples(x: Tensor) -> Examples:
    return Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "known")


FAMILY = Reconstruction()
