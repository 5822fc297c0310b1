"""Columns of single records, read by a curious server out of a vertical clustering (paper 003)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import CURIOUS_SERVER, RECORD, DistanceGeometry, Seen
from coterie.attacks.party_inference import OWN, PartyInference, curious_party
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.errors import NotPermitted
from coterie.measure.columns import correlations
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

BEYOND = 3  # known records more than columns: as many as a fit without constraints needs, and two to check it by
TURNS = 8  # of the control
MEASURE, CONTROL = "correlation", "columns from totals, known records mixed up"
PARTY, BESIDE = curious_party(0), "another party's columns from the clusters, beyond what one's own columns tell"


class DistanceGeometryFamily(Family):
    name = "columns from distances"
    limit = "column_correlation"
    paper = "Fan and Guo 2025; the attack is announced there and spelt out here"
    question = "Does the server read parties' columns out of what it is told to cluster them?"
    threat = "A curious server that knows a few records: as many as there are columns, and three."
    method = (
        "Squared distances from centres whose make-up the server knows, because it made the assignments, are centred "
        "by rows and columns; that gives the records up to a rotation, and the known ones the rest. From one party's "
        "distances where they are sent in the open, from the totals that masked sums leave, from the shapes of blinded "
        "totals, and from the assignments alone, which are the floor. A party, too, is told the assignments, and "
        "guesses another's columns by them and its own. Scored by the correlation of every column that varies, over "
        "records that were not known: 0 says nothing, 1 everything. The control mixes known records up."
    )

    def admits(self, subject: Subject) -> str:
        return "" if subject.launched.tells_records else "needs a clustering of columns as trainer (vertical_kmeans)"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        choices = [
            Choice.of("secure_sums"),
            Choice.of("blinded_sums"),
            Choice.of("ckks_sums"),
            Choice.of("randomised_response", mechanism="gap_rr", epsilon=1.0),
            Choice.of("perturb_once", epsilon=4.0),
        ]
        return [choice for choice in choices if not subject.why_not(choice, subject.launched)]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (CURIOUS_SERVER, PARTY)

    def read(self, run: ReferenceRun) -> Evidence:
        federation = run.case.federation
        assert isinstance(federation, VerticalFederation)
        found = [*findings(federation, run.view(CURIOUS_SERVER), run.rng)]
        return run.evidence([*found, *beside(federation, run.view(PARTY), run.rng)])

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        return "" if recording.has_uploads else "needs what parties sent, and none of it was recorded"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """``[data]`` and ``[partition]`` say what the records really are; the attack is given a few of them."""
        view, rng = recording.view(CURIOUS_SERVER, training=False), Rng.seeded(seed).child("attack")
        federation = recording.subject.federation()
        assert isinstance(federation, VerticalFederation)
        party = recording.view(PARTY, training=False)
        return Evidence.of_recording([*findings(federation, view, rng), *beside(federation, party, rng)], [])


def findings(federation: VerticalFederation, view: View, rng: Rng) -> Iterator[Finding]:
    """What each kind of reading gives, where there is anything to read, and the control."""
    whole = federation.examples.x.flatten(1)
    for seen in Seen:
        party = 0 if seen is Seen.PARTY else None
        truth = whole if party is None else federation.part(party)
        attack = f"columns from {seen.value}"
        try:
            guess = DistanceGeometry(seen, party).infer(view, known(truth, rng), rng)
        except NotPermitted:  # what this reading needs does not reach the server
            lost = Finding.unscored(
                attack, MEASURE, 0.0, CURIOUS_SERVER.knows, "what it reads does not reach the server"
            )
            yield replace(lost, adversary="curious server")
            continue
        yield _finding(attack, correlations(guess, truth))
        if seen is Seen.TOTALS:
            mixed = [DistanceGeometry().infer(view, known(truth, rng, turn), rng) for turn in range(1, TURNS + 1)]
            average = torch.stack([correlations(one, truth) for one in mixed]).mean(0)
            yield replace(_finding(CONTROL, average), control=True)


def beside(federation: VerticalFederation, view: View, rng: Rng) -> Iterator[Finding]:
    """What the first party learns of the second's columns: correlations with the clusters, less those without."""
    if federation.clients < 2:
        return
    own = replace(federation.examples, x=federation.part(0))
    truth = federation.part(1)
    held = replace(known(truth, rng), parts={OWN: own})
    try:
        told, alone = (
            correlations(PartyInference(PARTY, told).infer(view, held, rng), truth) for told in (True, False)
        )
    except NotPermitted:  # a recording of what the server sent may lack it
        yield replace(Finding.unscored(BESIDE, MEASURE, 0.0, PARTY.knows), adversary="curious party")
        return
    gained = (told - alone)[~told.isnan()].clamp(-1.0, 1.0).tolist()
    sample = Sample.average(gained, -1.0, 1.0)
    yield replace(Finding.of(BESIDE, MEASURE, sample, 0.0, "columns", PARTY.knows), adversary="curious party")


def known(truth: Tensor, rng: Rng, mixed: int = 0) -> Auxiliary:
    """A few records; ``mixed``: with their values dealt to each other."""
    count = min(truth.shape[1] + BEYOND, max(2, len(truth) // 2))
    rows = torch.randperm(len(truth), generator=rng.child("known").torch())[:count]
    values = truth[rows]
    if mixed:
        values = values[torch.randperm(count, generator=rng.child("mixed", mixed).torch())]
    return Auxiliary(Examples(values, torch.zeros(count, dtype=torch.int64), 1, "known", {RECORD: rows}))


def _finding(attack: str, scores: Tensor) -> Finding:
    varying = scores[~scores.isnan()].clamp(-1.0, 1.0).tolist()
    sample = Sample.average(varying, -1.0, 1.0)
    return replace(
        Finding.of(attack, MEASURE, sample, 0.0, "columns", CURIOUS_SERVER.knows), adversary="curious server"
    )


FAMILY = DistanceGeometryFamily()
