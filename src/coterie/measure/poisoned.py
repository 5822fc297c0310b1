"""What a client that answers as it likes takes from the others."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.errors import require
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.utility import ACCURACY, Scores


def accuracy_lost(honest: Scores, attacked: Scores | None, bad: int, attack: str, knew: str) -> Finding:
    """The mean over the other clients of what each loses on its own test data; None: training came to an end."""
    require(honest.measure == ACCURACY, "measure", honest.measure, "is no accuracy, of which something could be lost")
    after = torch.zeros_like(honest.values) if attacked is None else attacked.values
    others = torch.arange(len(honest.values)) != bad
    lost = (honest.values - after)[others & ~honest.values.isnan()]
    finding = Finding.of(attack, "accuracy lost", Sample.average(lost.tolist(), -1.0, 1.0), 0.0, "clients", knew)
    return replace(finding, perfect=honest.mean)
