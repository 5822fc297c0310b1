"""Which of two records is in a weighted grid, for a server that knows all the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.attacks.all_but_one import ALL_BUT_ONE, AllButOne
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

PAIRS = 24
ATTACK, CONTROL = "which of two records is there", "which of two, neither of which is left out"


class AllButOneFamily(Family):
    name = "a record among all others"
    limit = "replaced_accuracy"
    chance = 0.5
    paper = "Li, Wang and Li 2023, whose guarantee is against this adversary"
    question = "Does a server that knows all records but one, and two that it may be, tell which of them it is?"
    threat = "A curious server that knows every record but one: the adversary of differential privacy."
    method = (
        "The server published the centres, so it knows in which cluster of each party every record was counted. With "
        "each of the two records in turn it computes what parties would have told without noise, and takes the one "
        f"that comes nearer. {PAIRS} pairs of records, each of the two left out in turn; a half are guessed right by "
        "chance. In the control both records of a pair are other people's, and one is called right by a coin."
    )

    def admits(self, subject: Subject) -> str:
        return "" if isinstance(subject.launched, WeightedGrid) else "needs a grid of parties' centres (weighted_grid)"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("private_grid", epsilon=8.0)]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return (ALL_BUT_ONE,)

    def read(self, run: ReferenceRun) -> Evidence:
        federation, grid = run.case.federation, run.case.protocol
        assert isinstance(federation, VerticalFederation)
        assert isinstance(grid, WeightedGrid)
        return run.evidence([*findings(federation, grid, run.view(ALL_BUT_ONE), run.rng)])

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        return "" if recording.has_uploads else "needs what parties sent, and none of it was recorded"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """``[data]`` and ``[partition]`` say what the records really are; the attack is given all but one."""
        federation, grid = recording.subject.federation(), recording.subject.launched
        assert isinstance(federation, VerticalFederation)
        assert isinstance(grid, WeightedGrid)
        view, rng = recording.view(ALL_BUT_ONE, training=False), Rng.seeded(seed).child("attack")
        return Evidence.of_recording([*findings(federation, grid, view, rng)], [])


def findings(federation: VerticalFederation, grid: WeightedGrid, view: View, rng: Rng) -> Iterator[Finding]:
    """The noise of a run is one for all pairs, so both of each are tried: without a leak, one of the two is right."""
    truth = torch.cat(federation.parts, 1)
    widths = tuple(len(own) for own in federation.columns)
    drawn = torch.randperm(len(truth), generator=rng.child("pairs").torch())
    pairs = drawn[: min(2 * PAIRS, len(truth) // 2 * 2)].view(-1, 2)

    def right(candidates: Tensor, left_out: int) -> float:
        """The share of a hit, for the first of the candidates; what cannot be told apart is half of one."""
        attack = AllButOne(candidates, widths, grid.low, grid.high)
        misfits = attack.infer(view, _others(truth, left_out), rng).misfits
        return float(misfits[0] < misfits[1]) + 0.5 * float(misfits[0] == misfits[1])

    hits = [(right(truth[[one, other]], one) + right(truth[[other, one]], other)) / 2 for one, other in pairs.tolist()]
    coins = torch.randint(2, (len(pairs),), generator=rng.child("coins").torch()).tolist()
    turned = pairs.roll(1, 0).tolist()
    missed = [
        right(truth[[pair[coin], pair[1 - coin]]], left)
        for pair, coin, left in zip(turned, coins, pairs[:, 0].tolist(), strict=True)
    ]
    yield _finding(ATTACK, hits)
    yield replace(_finding(CONTROL, missed), control=True)


def _others(truth: Tensor, victim: int) -> Auxiliary:
    rest = torch.cat([truth[:victim], truth[victim + 1 :]])
    return Auxiliary(Examples(rest, torch.zeros(len(rest), dtype=torch.int64), 1, "all others"))


def _finding(attack: str, hits: list[float]) -> Finding:
    found = Finding.of(attack, "accuracy", Sample.average(hits, 0.0, 1.0), 0.5, "pairs", ALL_BUT_ONE.knows)
    return replace(found, adversary="server")


FAMILY = AllButOneFamily()
