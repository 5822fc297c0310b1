"""Columns as functions of what an attacker sees, fitted on the records that it knows.

How much a fit is shrunk, and whether it is linear, is what would have guessed each known record best from the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-7  # of the largest singular value: what is smaller is rounding
RIDGES = torch.logspace(-9, 3, 49, dtype=torch.float64)
WIDTHS = (0.5, 1.0, 2.0)  # of the kernel, in median distances between known records
ENOUGH = 30  # known records: with fewer, leaving one out does not tell a curve from a line


@dataclass(frozen=True)
class Fit:
    guesses: Tensor  # (records, columns)
    errors: Tensor  # (columns,): squared, of guessing each known record from the others


def fitted(features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(records, columns): each column as a linear function of the features (records, m), by ridge regression."""
    return _ridge(features, rows, columns).guesses


def best_fitted(features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """As ``fitted``, or as a smooth function where that would have guessed a column better."""
    spread = features.std(0)
    alike = features[:, spread > 0] / spread[spread > 0]
    fits = [_ridge(features, rows, columns), _ridge(alike, rows, columns)]
    if len(rows) >= ENOUGH and alike.shape[1]:
        gaps = torch.cdist(alike, alike[rows])
        typical = float(gaps[rows].median().clamp_min(1e-12))
        fits += [_kernel_ridge(gaps / (width * typical), rows, columns) for width in WIDTHS]
    chosen = torch.stack([fit.errors for fit in fits]).argmin(0)
    every = torch.stack([fit.guesses for fit in fits])
    return every.gather(0, chosen.expand(1, every.shape[1], -1))[0]


def _ridge(features: Tensor, rows: Tensor, columns: Tensor) -> Fit:
    middle, mean = features[rows].mean(0), columns.mean(0)
    left, sizes, right = torch.linalg.svd(features[rows] - middle, full_matrices=False)
    real = sizes > TOLERANCE * sizes.amax(0).clamp_min(1e-300) if len(sizes) else sizes > 0
    left, sizes, right = left[:, real], sizes[real], right[real]
    target = left.T @ (columns - mean)  # (rank, columns)
    if not len(sizes):  # nothing that differs was seen, or nothing at all
        return Fit(mean.expand(len(features), -1).clone(), (columns - mean).square().sum(0))
    shrunk = sizes.square() / (sizes.square() + RIDGES.unsqueeze(1) * sizes.square().mean())  # (ridges, rank)
    errors = torch.stack([_left_out(left, one, target, columns - mean) for one in shrunk])  # (ridges, columns)
    best = shrunk[errors.argmin(0)].T  # (rank, columns)
    guesses = mean + (features - middle) @ (right.T @ (best * target / sizes.unsqueeze(1)))
    return Fit(guesses, errors.min(0).values)


def _left_out(left: Tensor, shrunk: Tensor, target: Tensor, columns: Tensor) -> Tensor:
    """(columns,): the squared error of guessing each known record from the others."""
    leverage = (left.square() @ shrunk + 1 / len(left)).clamp_max(1 - 1e-9)
    missed = columns - left @ (shrunk.unsqueeze(1) * target)
    return (missed / (1 - leverage).unsqueeze(1)).square().sum(0)


def _kernel_ridge(gaps: Tensor, rows: Tensor, columns: Tensor) -> Fit:
    """From distances (records, known records) in units of the kernel's width."""
    kernel, mean = torch.exp(-0.5 * gaps.square()), columns.mean(0)
    sizes, vectors = torch.linalg.eigh(kernel[rows])
    target = vectors.T @ (columns - mean)
    inverses = 1 / (sizes.clamp_min(0) + RIDGES.unsqueeze(1) * sizes.mean())  # (ridges, known)
    diagonal = inverses @ vectors.square().T  # (ridges, known): of the inverse of kernel + ridge
    errors = torch.stack(
        [
            ((vectors @ (one.unsqueeze(1) * target)) / own.unsqueeze(1)).square().sum(0)
            for one, own in zip(inverses, diagonal, strict=True)
        ]
    )
    best = inverses[errors.argmin(0)].T  # (known, columns)
    return Fit(mean + kernel @ (vectors @ (best * target)), errors.min(0).values)
