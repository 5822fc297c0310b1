"""What families that rebuild pictures share: whether there are any, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from coterie.audit.case import Subject
from coterie.audit.curves import as_png
from coterie.data.federation import Examples
from coterie.protocols.base import Trainer

SMALLEST = 8  # pixels a side


def lacking(subject: Subject) -> str:
    """Why nobody could rebuild pictures here; empty if somebody could try."""
    if not isinstance(subject.launched, Trainer):
        return "needs a trainer of models"
    examples = subject.examples()
    shape = tuple(examples.x.shape[1:]) if examples.x.is_floating_point() else ()
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        return f"needs pictures of at least {SMALLEST} pixels a side, and an example here is of shape {shape}"
    return ""


def span(examples: Examples) -> tuple[float, float]:
    """The lowest and the highest value of a pixel, which everybody knows of pictures."""
    low, high = float(examples.x.min()), float(examples.x.max())
    return low, max(high, low + 1e-6)


def shown(rows: Mapping[str, Sequence[Tensor]], low: float, high: float) -> dict[str, list[str]]:
    """Pictures of one channel or three as PNG files."""
    if any(one.shape[0] not in (1, 3) for row in rows.values() for one in row):
        return {}
    return {name: [as_png((one - low) / (high - low)) for one in row] for name, row in rows.items()}
