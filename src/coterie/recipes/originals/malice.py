"""A federation of twenty with one malicious client of each of ten kinds, under each robust way of adding up.

No paper has this table; what it shows is that a defence can be had against each kind, and that none of them freezes it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from coterie.attacks.poisoning import HOW, Poisoning, poisoner
from coterie.data.partition import Iid
from coterie.data.sources.embedded import Digits
from coterie.defences.robust import Krum, Median, NormClip, TrimmedMean
from coterie.flow import admission
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.reproduced import Claim, Decision, Key, Rows
from coterie.protocols.fedavg import FedAvg
from coterie.recipes.originals.tables import Entry
from coterie.recipes.settings import Settings
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import train

CLIENTS, BAD = 20, 3
HONEST, UNDEFENDED = "honest", "none"
SHIELDS: dict[str, Defence] = {
    UNDEFENDED: Defence(),
    "norm clipping 1": NormClip(1.0),
    "median": Median(),
    "trimmed mean 0.15": TrimmedMean(0.15),
    "Krum of 2": Krum(bad=2),
    "clipping and trimmed mean": Stack(NormClip(1.0), TrimmedMean(0.15)),
}
POINT = 1.0  # of accuracy, in per cent, that a malicious client may cost
FROZEN = 50.0  # a start that was never trained has 10


def malice(sends: str, defence: str, rounds: int, *, data: str | None, seed: int) -> Result:
    """The mean accuracy of the nineteen others."""
    rng = Rng.seeded(seed)
    federation = Iid(CLIENTS).split(Digits().load(), rng.child("split"))
    protocol = FedAvg(rounds, Local(steps=4, batch_size=10, lr=0.3))
    adversaries = [] if sends == HONEST else [Poisoning(poisoner(BAD), sends)]
    door = logging.getLogger(admission.__name__)
    level = door.level
    door.setLevel(logging.ERROR)  # which would tell of every answer that it leaves out
    try:
        outcome = train(
            protocol,
            federation,
            Dense((64, 10)),
            seed=seed,
            evaluate_every=rounds,
            defence=SHIELDS[defence],
            adversaries=adversaries,
        )
    finally:
        door.setLevel(level)
    return {"accuracy": 100 * float(outcome.scores.values[torch.arange(CLIENTS) != BAD].mean())}


def entries(settings: Settings) -> list[Entry]:
    return [
        Entry(
            Key.of(sends=sends, defence=defence),
            malice,
            {"sends": sends, "defence": defence, "rounds": 25},
            "accuracy",
        )
        for sends in (HONEST, *HOW)
        for defence in SHIELDS
    ]


def claims(rows: Rows) -> Sequence[Claim]:
    made = []
    honest = rows.get(Key.of(sends=HONEST, defence=UNDEFENDED))
    for sends in HOW:
        shields = [row for row in rows.where(sends=sends) if row.key["defence"] != UNDEFENDED]
        if not shields:
            continue
        worst = min(value for row in shields for value in row.ours.by_seed.values())
        text = f"{sends}: nothing freezes under any robust defence"
        made.append(Claim(text, Decision.of(worst > FROZEN), f"{worst:.2f} % at the least"))
        if honest is not None:
            lost = {str(row.key["defence"]): row.ours.minus(honest.ours).among(len(shields)) for row in shields}
            decision = Decision.some(one.above(-POINT) for one in lost.values())
            best = max(lost, key=lambda name: lost[name].low)
            text = f"{sends}: within a point of the honest accuracy under at least one defence"
            made.append(Claim(text, decision, f"{best}: {lost[best]} points"))
    return made
