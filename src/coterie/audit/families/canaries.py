"""Measured epsilon for networks: canaries in one run of the configured federation, white box and black box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coterie.attacks.shadows import Seat
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.config.built import Case
from coterie.config.schema import Choice
from coterie.defences.dpsgd import DpSgd
from coterie.flow.guard import Defence
from coterie.flow.stack import member_of
from coterie.measure.claims import judge_guarantee
from coterie.measure.cost import peak_memory
from coterie.measure.findings import Finding
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.judge import judge_scores
from coterie.measure.planted import SEATS, Found, Noise, Planted, bounds
from coterie.measure.utility import evaluate
from coterie.protocols.base import Trainer
from coterie.rng import Rng

KNEW = "all other records, and how canaries look; not which of them were taken"


class CanaryAudit(Family):
    name = "canaries"
    limit = "canary_auc"
    chance = 0.5
    paper = "Steinke, Nasr and Jagielski, NeurIPS 2023"
    question = "How much privacy is really lost by a record that nobody would take for a real one?"
    threat = "The server, which sees what clients send (white box), or a recipient of the final models (black box)."
    method = (
        "Each of many made-up records is planted among a client's own by a coin. The adversary, which knows everything "
        "but the coins, answers for the surest fifth; so many right answers prove a lower bound on epsilon, with 95 % "
        "confidence over all seats and seeds. Beside it stands what would have been proven had all been right."
    )

    def admits(self, subject: Subject) -> str:
        return "" if isinstance(subject.launched, Trainer) else "needs a trainer of models"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("dpsgd", clip=1.0, noise_multiplier=1.0)]

    def differs(self, subject: Subject) -> str:
        count = subject.audit.canaries.count
        return (
            f"about half of {count} made-up records are planted among the clients' own, for an epsilon to be measured"
        )

    def measure(self, subject: Subject, defence: Choice, seed: int) -> Evidence:
        case, rng = sampled(subject.case_of(defence, seed)), Rng.seeded(seed)
        assert isinstance(case.protocol, Trainer)
        assert case.model is not None
        count = subject.audit.canaries.count
        planted = Planted.run(case.protocol, case.federation, case.model, case.defence, count, rng)
        found = planted.found(noise_of(case.defence), case.protocol.local)
        error = (1 - CONFIDENCE) / 2 ** (1 + seed - subject.seed)  # all seeds' together, however many there are
        claim = replace(case, federation=planted.federation).promise
        promise = claim and judge_guarantee(claim.guarantee, bounds(found, case.delta, 1 - error))
        scores = evaluate(planted.ring, planted.state)
        return Evidence(
            findings=[_finding(seat, found, coins) for seat in SEATS for coins in (None, rng.child("control"))],
            utility_measure=scores.measure,
            utility=scores.sample(),
            seconds=planted.seconds,
            upload_bytes=planted.ring.traffic.up_a_client,
            memory_bytes=peak_memory(),
            promise=promise,
        )


def sampled(case: Case) -> Case:
    """DP-SGD's claim needs batches that every record enters by a coin of its own."""
    protocol = case.protocol
    private = member_of(case.defence, DpSgd) is not None
    if private and isinstance(protocol, Trainer) and protocol.local.epochs is None:
        return replace(case, protocol=replace(protocol, local=replace(protocol.local, poisson=True)))
    return case


def noise_of(defence: Defence) -> Noise:
    private = member_of(defence, DpSgd)
    return Noise() if private is None else Noise(private.clip, private.noise_multiplier)


def _finding(seat: Seat, found: Sequence[Found], coins: Rng | None) -> Finding:
    """How well those that were taken are told from those that were not; the control's coins are others."""
    name = SEATS[seat] + ("" if coins is None else ", by other coins")
    finding = Finding.unscored(name, "AUC", 0.5, KNEW, "what it reads is sealed from this seat")
    for one in found:
        if one.seat is seat:
            scores = np.concatenate([one.scores.inside, one.scores.outside])
            taken = np.arange(len(scores)) < len(one.scores.inside)
            taken = taken if coins is None else coins.numpy().permutation(taken)
            finding = judge_scores(scores, taken, [None] * len(scores), name, KNEW, "canaries")
    of = "" if coins is None else SEATS[seat]
    return replace(finding, adversary=seat.value, control=coins is not None, control_of=of)


FAMILY = CanaryAudit()
