"""Which labels the others hold: read off what they moved, so that whoever is imagined in their place holds the same.

A label mix moves a model farther than any property does, and clients that train one cluster's model are alike in it.
Imagined with mixes drawn blindly, their means lie away from the real one, and what tells those apart does not carry
over to it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.learn.params import Params, flatten

Mix = NDArray[np.float64]  # (..., classes), a share of each
PENALTY = 0.01  # of the mean squared length of what is learnt from
LEAST = 1e-9  # that a class has


def label_mixes(labels: Tensor, rows: Tensor, classes: int) -> Mix:
    """(clients, classes): of each client's rows (clients, ...); a negative row is none."""
    counts = torch.stack([torch.bincount(labels[row[row >= 0]], minlength=classes) for row in rows.flatten(1)])
    return of_counts(counts.double().numpy())


def of_counts(counts: NDArray[np.float64]) -> Mix:
    kept = counts.clip(LEAST)
    shares: Mix = kept / kept.sum(-1, keepdims=True)
    return shares


def mix_read(updates: Params, mixes: Mix, seen: Params) -> Mix:
    """(classes,): the mix of whoever moved a model so, by ridge regression on clients (clients, ...) of known mixes."""
    made, middle = flatten(updates).double(), mixes.mean(0)
    centre = made.mean(0)
    rows, real = made - centre, flatten(seen, 0).double() - centre
    inner = (rows @ rows.T).numpy()
    ridge = PENALTY * np.trace(inner) / len(inner) * np.eye(len(inner))
    found = np.linalg.lstsq(inner + ridge, mixes - middle, rcond=None)[0]
    return of_counts(middle + (rows @ real).numpy() @ found)


def of_strangers(read: Mix, like: Mix, count: int) -> Mix:
    """The mix of all but one of so many, where all together have ``read`` and that one ``like``."""
    return of_counts(count * read - like)
