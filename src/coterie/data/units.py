"""Public facts about the columns: in which unit each is measured, and between which values its centres lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.data.holdings import UserData, as_floats
from coterie.data.provenance import Public
from coterie.errors import InvalidInput, require

Array = NDArray[np.float64]
Box = tuple[ArrayLike, ArrayLike] | Public
Scale = ArrayLike | str | Public | None
BY_BOX = "box"


@dataclass(frozen=True, eq=False)
class Units:
    """Columns are divided by ``scales`` before distances are taken."""

    scales: Array  # (features,)
    limits: tuple[Array, Array] | None  # low and high, (features,), in the data's own units

    @staticmethod
    def of(scale: Scale, box: Box | None, features: int) -> Units:
        """``scale`` is (features,), or "box" for the box's width; ``box`` is (low, high), numbers or (features,).

        Both may be wrapped as ``Public``.
        """
        scale = scale.values if isinstance(scale, Public) else scale
        box = box.values if isinstance(box, Public) else box
        limits = None if box is None else _limits(box, features)
        if scale is None:
            return Units(np.ones(features), limits)
        if isinstance(scale, str):
            require(
                scale == BY_BOX and limits is not None,
                "scale",
                scale,
                'must be one number a column, or "box" and a box',
            )
            assert limits is not None
            return Units(limits[1] - limits[0], limits)
        scales = np.asarray(scale, dtype=np.float64)
        require(scales.shape == (features,), "scale of shape", scales.shape, f"must be ({features},), one a column")
        positive = bool(np.isfinite(scales).all() and (scales > 0).all())
        require(positive, "scale", scales.tolist()[:5], "must be positive and finite")
        return Units(scales, limits)

    def scaled(self, x: NDArray[np.number]) -> Tensor:
        return as_floats(x / self.scales)

    def own(self, centres: NDArray[np.number]) -> NDArray[np.float32]:
        """In the data's own units, and in the box: rounding may lead out of it."""
        found = (centres * self.scales).astype(np.float32)
        return found if self.limits is None else np.clip(found, *(side.astype(np.float32) for side in self.limits))

    @property
    def box(self) -> tuple[Tensor, Tensor] | None:
        return None if self.limits is None else (self.scaled(self.limits[0]), self.scaled(self.limits[1]))


def of_unknown_origin(scale: Scale, box: Box | None) -> list[str]:
    """Which of the two are numbers a column for which nobody vouches: who has such numbers has mostly read them off.

    Two numbers for all columns are a setting like any other.
    """
    plain = isinstance(box, tuple) and all(np.ndim(side) == 0 for side in box)
    doubtful = {
        "scale": not isinstance(scale, str | Public | None),
        "box": not (plain or isinstance(box, Public | None)),
    }
    return [name for name, doubt in doubtful.items() if doubt]


def _limits(box: UserData, features: int) -> tuple[Array, Array]:
    try:
        low, high = (np.broadcast_to(np.asarray(side, dtype=np.float64), (features,)) for side in box)
    except (TypeError, ValueError):
        raise InvalidInput(f"box={box!r} must be (low, high), two numbers or two arrays of {features}") from None
    require(bool((low < high).all()), "box", (low.tolist()[:3], high.tolist()[:3]), "must have low < high throughout")
    return low, high
