"""Rows of reals as rows of whole numbers whose L2 norm is bounded for certain; sums of these are exact in any order.

Sums of floats are not what a claim assumes: on data of an adversary's choice, one record of norm 1 moves a float32 sum
over 348,096 records by 1,278 (what was added before it decides how everything after it is rounded). Whole numbers
have no such memory: a unit changes their sum by its own row and nothing else.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import require

STEP_BITS = 20
UNITS = 1 << STEP_BITS
STEP = 2.0**-STEP_BITS
"""What is sent to be noised is in multiples of STEP, and one unit (a record, or a client) moves it by at most 1, which
are UNITS steps, in L2 norm, exactly. Doubles hold such sums exactly up to 2^33, in any order."""

BOUNDS = (2.0**-50, 2.0**50)
"""Clipping bounds within which no square that matters is lost below the smallest float, or beyond the largest."""

SINGLE_UNITS = 1 << 22
"""Rows with a larger bound are scaled in double precision: in single, whole numbers end at 2^24."""


def require_bound(bound: float) -> None:
    low, high = BOUNDS
    require(low <= bound <= high, "clipping bound", bound, f"must lie in [{low:.3g}, {high:.3g}]; rescale the data")


def radius(units: int, length: int, dtype: torch.dtype) -> float:
    """The norm, in steps, to which rows are scaled down in floats so that on the grid none is longer than ``units``.

    Rounding to the nearest whole number moves a row by at most sqrt(length) / 2. What floats lose on the way there is
    below (length / 2 + 8) u relative, for any order of summation (Higham 2002, section 3.1): the sum of squares is
    right to a factor (1 + u)^length, and its root, the quotient and the product each to 1 + u. Twice that is taken off.
    """
    lost = (length + 16) * torch.finfo(dtype).eps / 2
    require(lost < 0.1, "length of a row", length, f"is too large for {dtype}; pass rows in double precision")
    inner = (units - math.sqrt(length) / 2) * (1 - lost)
    require(
        inner >= 0.5,
        "units",
        units,
        f"must be at least {math.sqrt(length) / 2 + 1:.0f} for rows of {length} entries, or rounding is all there is",
    )
    return inner


def row_factors(rows: Tensor, bound: float, inner: float, cleared: bool = False) -> Tensor:
    """What scales each row so that ``bound`` becomes ``inner`` and nothing is longer, (rows,) of the rows' dtype."""
    return torch.from_numpy(inner / np.maximum(lengths(rows, cleared), bound)).to(rows.dtype)


def lengths(rows: Tensor, cleared: bool = False) -> NDArray[np.float64]:
    """The norm of each row, from a kernel that sees one row at a time, so that it does not depend on those around it.

    Where squares overflow they are taken in double precision. Rows with NaN or infinity, whose norm is neither finite,
    are overwritten by zeros if they may be ``cleared``, and refused if not.
    """
    plain = rows.numpy()
    squared = row_squares(plain).astype(np.float64)
    for row in np.flatnonzero(~np.isfinite(squared)):
        squared[row] = np.square(plain[row], dtype=np.float64).sum()
        if cleared and not np.isfinite(squared[row]):
            plain[row], squared[row] = 0, 0
    require(bool(np.isfinite(squared).all()), "rows", "NaN or infinity", "cannot be put on a grid; clean the data")
    return np.sqrt(squared)


def row_squares(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """The squared norm of each row, of its own precision, by a kernel in which rows do not meet.

    numpy adds up a row of more than 8,192 in another order if it is the only one, so it is never that.
    """
    several = rows if len(rows) != 1 else np.concatenate([rows, rows])
    found: NDArray[np.floating] = np.einsum("ij,ij->i", several, several)
    return found[: len(rows)]


def whole_rows(rows: Tensor, bound: float, units: int, out: Tensor | None = None, cleared: bool = False) -> Tensor:
    """Rows (rows, length) clipped to ``bound``, in steps of about bound / units: whole numbers, still as floats.

    Each row's L2 norm is at most ``units``, for certain. A row becomes rint(row * f) with f = inner / max(norm,
    bound), so it is a function of itself alone. ``out`` may be ``rows``. For ``cleared`` see ``lengths``.
    """
    require_bound(bound)
    if rows.dtype != torch.float64 and (units > SINGLE_UNITS or rows.dtype != torch.float32):
        rows = rows.double()
        out = None
    factors = row_factors(rows, bound, radius(units, rows.shape[1], rows.dtype), cleared)
    scaled = torch.mul(rows, factors.unsqueeze(1), out=out)
    return scaled.round_()


def tight_rows(
    rows: Tensor, bound: float, units: int, out: Tensor | None = None, shares: Tensor | None = None
) -> tuple[Tensor, float]:
    """As ``whole_rows`` where ``units`` are so few that half a root of the length off them would be felt.

    Rows are scaled to nearly ``units``, and those few whose exact norm is longer after rounding are rounded towards
    zero instead. Also returns what one step is worth. ``out`` must not be ``rows``; ``shares`` (rows,), at most 1,
    shorten them further.
    """
    require_bound(bound)
    length = rows.shape[1]
    require(rows.dtype == torch.float32, "dtype of rows", rows.dtype, "must be torch.float32; call .float() on them")
    require(1 <= units <= 1 << 11, "units", units, "must lie in 1..2048: squares are added in single precision")
    aim = tight_aim(units, length)
    factors = row_factors(rows, bound, aim).unsqueeze(1)
    factors = factors if shares is None else factors * shares.unsqueeze(1)
    steps = torch.mul(rows, factors, out=out).round_()
    over = np.flatnonzero(exact_squares(steps) > units**2)
    if len(over):
        places = torch.from_numpy(over)
        steps[places] = (rows[places] * factors[places]).trunc()
    return steps, bound / aim


def tight_aim(units: int, length: int) -> float:
    """The norm to which ``tight_rows`` scales: ``units`` less three deviations of what rounding does, and its mean."""
    lost = (length + 16) * torch.finfo(torch.float32).eps / 2
    aim = (units - 1 - length / (24 * units)) * (1 - lost)
    require(aim > units / 2, "units", units, f"are too few for rows of {length} entries; take more")
    return aim


def exact_squares(steps: Tensor) -> NDArray[np.float64]:
    """Squared norms of whole rows (rows, length): exact, or infinity.

    In single precision a sum of squares of whole numbers is exact as long as it is below 2^24. Once past it, it stays
    past it however it is rounded, so that a result below proves itself.
    """
    plain = steps.numpy()
    found = np.vecdot(plain, plain).astype(np.float64)
    limit = 2.0**24 if steps.dtype == torch.float32 else 2.0**53
    return np.where(found < limit, found, np.inf)  # NaN is not below either


def step_of(bound: float, units: int, length: int, dtype: torch.dtype) -> float:
    """What one step of ``whole_rows`` is worth."""
    wide = dtype != torch.float32 or units > SINGLE_UNITS
    return bound / radius(units, length, torch.float64 if wide else torch.float32)
