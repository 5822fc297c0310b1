"""How many records an attack read to the last digit: each guess beside the true record that is nearest to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.successive_centres import Exposed
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.judge import judge

EXACT = 1e-2  # of the columns' spread: a guess that is as near as that to a record is that record


@dataclass(frozen=True)
class TrueRecords:
    """(records, columns)."""

    columns: Tensor


def exact(guess: Exposed, truth: Tensor) -> Tensor:
    """(records,) bool: which of the true records were read."""
    x = truth.double()
    scale = (x - x.mean(0)).square().mean().sqrt().clamp_min(1e-12) * x.shape[1] ** 0.5
    read = torch.zeros(len(x), dtype=torch.bool)
    for guessed in guess.columns.double():
        gaps = (x - guessed).norm(dim=1)
        nearest = int(gaps.argmin())
        read[nearest] |= bool(gaps[nearest] <= EXACT * scale)
    return read


@judge.register
def _exposed(guess: Exposed, truth: TrueRecords, attack: str = "attack", knew: str = "") -> Finding:
    """The part of all records that were read."""
    read = exact(guess, truth.columns).double().tolist()
    return Finding.of(attack, "records read exactly", Sample.average(read, 0.0, 1.0), 0.0, "records", knew)
