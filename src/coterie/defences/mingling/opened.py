"""Sums that the server could open, in the place of those that only clients can."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.errors import InvalidInput
from coterie.wire.codec import register
from coterie.wire.sealed import SealedSum


@register
@dataclass(frozen=True)
class OpenedSum(SealedSum):
    """Sums that the server has opened and hands to the clients as they are: no secret from anybody."""

    values: Tensor  # (slots, length)

    @property
    def slots(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def __add__(self, other: SealedSum) -> OpenedSum:
        if not isinstance(other, OpenedSum):
            raise InvalidInput(f"sum={type(other).__name__} must be opened too to be added")
        return OpenedSum(self.values + other.values)

    def open(self, key: object = None) -> Tensor:
        return self.values
