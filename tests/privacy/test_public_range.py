"""Values on the grid of a public range, their distances from its middle, and sums of them, are exact or refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from coterie.errors import InvalidInput
from coterie.privacy.public_range import HALF, PublicRange

BOUNDS = [
    (0.0, 1.0),
    (-6.0, 6.0),
    (0.0, 0.3),
    (-0.1, 1e-9),
    (1900.0, 2026.0),
    (1e9, 1e9 + 0.3),
    (1e11 / 3, 1e11 / 3 + 0.1),
    (-1e11 - 1 / 3, -1e11),
    (-1e200, 3e200),
    (1e-250, 3e-250),
]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_distances_from_the_middle_are_whole_steps(low: float, high: float) -> None:
    span = PublicRange.of(low, high)
    assert HALF / 2 <= span.half <= HALF
    draws = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = span.on_grid(torch.cat([low + (high - low) * (3 * draws - 1), torch.tensor([low, high])]).double())
    assert torch.equal(values, values.clamp(low, high))  # what the protocol cuts to the bounds stays on the grid
    about = values - span.middle
    exact = [(Fraction(value) - Fraction(span.middle)) / Fraction(span.step) for value in values.tolist()]
    assert all(one.denominator == 1 and abs(one) <= span.half for one in exact)
    assert span.steps(about).tolist() == exact
    assert int(span.steps(about.sum())) == sum(exact)


@pytest.mark.parametrize("far", [2.0**53, -(2.0**53) - 6, 1e15])
def test_bounds_between_which_floats_are_too_few_are_refused(far: float) -> None:
    """They passed, and a record between 2^53 and 2^53 + 6 moved a sum by 4 and not by the 3 that it was priced at."""
    with pytest.raises(InvalidInput, match=r"is so far from 0 .* subtract a public number from the columns"):
        PublicRange.of(far, far + 6 if abs(far) > 1e15 else far + 0.375)


def test_what_is_no_range() -> None:
    for low, high in ((1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(InvalidInput, match="must be less than high"):
            PublicRange.of(low, high)
    with pytest.raises(InvalidInput, match="high=inf must be finite"):
        PublicRange.of(0.0, float("inf"))
    for low, high in ((-1.7e308, 1.7e308), (0.0, 5e-324)):
        with pytest.raises(InvalidInput, match="is no range of data; rescale the columns"):
            PublicRange.of(low, high)
