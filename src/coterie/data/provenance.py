"""Where an array comes from, where a guarantee depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.errors import require


@dataclass(frozen=True, eq=False)
class Public:
    """An array that does not depend on the data to be protected. Whoever wraps it vouches for that.

    Nothing can check it. What is not wrapped may be used all the same, and the result then has no guarantee.
    """

    values: Any  # an array, or a DataFrame

    def __post_init__(self) -> None:
        require(not isinstance(self.values, Public), "Public", "Public", "must wrap an array, and be used once")
        require(self.values is not None, "Public", None, "must wrap an array; leave the argument out instead")

    def __repr__(self) -> str:
        shape = getattr(self.values, "shape", None)
        return f"Public({self.values!r})" if shape is None else f"Public(<array of shape {tuple(shape)}>)"
