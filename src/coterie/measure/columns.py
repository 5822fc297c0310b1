"""How well columns that an attack rebuilt agree with the true ones: their correlation, over records it did not know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import Recovered
from coterie.errors import require
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.judge import judge


@dataclass(frozen=True)
class TrueColumns:
    """(records, columns), in the order of the guess."""

    columns: Tensor


def correlations(guess: Recovered, truth: Tensor) -> Tensor:
    """(columns,): NaN for a true column that does not vary; 0 for a guess that does not."""
    require(guess.columns.shape == truth.shape, "guess", tuple(guess.columns.shape), f"must be {tuple(truth.shape)}")
    others = torch.ones(len(truth), dtype=torch.bool)
    others[guess.known] = False
    require(int(others.sum()) > 2, "records that the attack did not know", int(others.sum()), "must be more than 2")
    one, other = (x[others].double() - x[others].double().mean(0) for x in (guess.columns, truth))
    scale = one.norm(dim=0) * other.norm(dim=0)
    found = torch.where(scale > 0, (one * other).sum(0) / scale.clamp_min(1e-300), 0.0)
    return torch.where(other.norm(dim=0) > 0, found, torch.nan)


@judge.register
def _columns(guess: Recovered, truth: TrueColumns, attack: str = "attack", knew: str = "") -> Finding:
    """The mean over the columns that vary; 0 says nothing, and 1 everything."""
    found = correlations(guess, truth.columns)
    varying = found[~found.isnan()].clamp(-1.0, 1.0)
    return Finding.of(attack, "correlation", Sample.average(varying.tolist(), -1.0, 1.0), 0.0, "columns", knew)
