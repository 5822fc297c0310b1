"""A federation of twenty with one malicious client of each of ten kinds, under each robust way of adding up.

No paper has this table; what it shows is that a defence can be had against each kind, and that none of them freezes it.
"""

from __future__ import annotations

import logging

import torch

from coterie.attacks.poisoning import Poisoning, poisoner
from coterie.data.partition import Iid
from coterie.data.sources.embedded import Digits
from coterie.defences.robust import Krum, Median, NormClip, TrimmedMean
from coterie.flow import admission
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
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
