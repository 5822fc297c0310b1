"""What every cipher for sums has in common: the interface, the grid of values, and damaged ciphertexts.

All ciphers round the values to the same grid before sealing and open to the exact sum of the rounded values.
So CKKS, secure sums and the mock give the same bits, and a run can be replayed although keys, masks and
encryption noise come from the operating system's entropy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import InvalidInput, require
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum

Floats = npt.NDArray[np.float64]
Key = Any
"""A cipher's own, which only it understands."""
BLOCK = 1 << 15  # values rounded at a time
CLIENTS_AT_ONCE = 8  # whose vectors for all slots are made at a time


class DamagedCiphertexts(InvalidInput):
    """Some clients' ciphertexts cannot be used. ``pick`` the other positions and add again."""

    def __init__(self, damaged: Mapping[int, str], ids: Sequence[int]) -> None:
        self.positions = tuple(sorted(damaged))
        self.reasons = {ids[position]: damaged[position] for position in self.positions}
        listed = "; ".join(f"client {client}: {reason}" for client, reason in self.reasons.items())
        super().__init__(f"ciphertexts={len(self.reasons)} are damaged ({listed}); drop these clients or ask again")


@register
@dataclass(frozen=True)
class Grid:
    """Multiples of 2^-bits. Rounding moves a value by at most 2^-(bits+1), a sum of n by n times that."""

    bits: int = 24

    def round(self, values: Tensor, largest: float) -> Floats:
        """The nearest points of the grid, as whole numbers of steps."""
        self._require_within(values, largest)
        steps: Floats = values.detach().to(torch.float64).numpy() * 2.0**self.bits
        return np.rint(steps, out=steps)

    @staticmethod
    def _require_within(values: Tensor, largest: float) -> None:
        if not values.numel():
            return
        low, high = values.detach().aminmax()  # one pass, for models are large; NaN survives both extremes
        worst = max(float(high), -float(low), 0.0) if bool(low == low) else math.nan
        require(np.isfinite(worst), "values", "NaN or infinity", "cannot be sealed; check the training")
        require(
            worst <= largest,
            "largest value",
            worst,
            f"must be at most {largest:.6g}, or sums could wrap around; scale the values down, or let the "
            "cipher expect fewer members",
        )

    def words(self, values: Tensor, largest: float, size: int) -> npt.NDArray[Any]:
        """The same as words of so many bytes, modulo 2^(8 size), (..., length): block by block, in the cache."""
        self._require_within(values, largest)
        flat = values.detach().reshape(-1).numpy()
        found, steps = np.empty(len(flat), dtype=f"i{size}"), np.empty(min(BLOCK, len(flat)))
        for start in range(0, len(flat), BLOCK):
            part = flat[start : start + BLOCK]
            here = np.multiply(part, 2.0**self.bits, out=steps[: len(part)], dtype=np.float64)
            found[start : start + BLOCK] = np.rint(here, out=here)
        return found.view(f"u{size}").reshape(values.shape)

    def values(self, steps: Floats) -> Tensor:
        return torch.from_numpy(steps * 2.0**-self.bits)


class Cipher(ABC):
    """Seals one vector a client (or one a client and slot), so that only sums open, and only with the key."""

    @abstractmethod
    def keygen(self) -> Key:
        """A new key from the operating system's entropy."""

    @abstractmethod
    def seal(self, values: Tensor, key: Key, ids: Sequence[int], membership: Tensor | None = None) -> SealedBatch:
        """Seal (clients, length), to be added to any slot, or (clients, slots, length), slot by slot.

        With slots, only the pairs in ``membership`` (clients, slots) get a ciphertext.
        """

    def seal_for_one(
        self, values: Tensor, one_hot: Tensor, key: Key, ids: Sequence[int], membership: Tensor
    ) -> SealedBatch:
        """Seal (clients, length) for one slot each, and zeros for its other slots in ``membership``: exact mingling."""
        parts = []
        for rows in torch.arange(len(ids)).split(CLIENTS_AT_ONCE):
            cells = values[rows].unsqueeze(1) * one_hot[rows].unsqueeze(2)  # (clients, slots, length)
            parts.append(self.seal(cells, key, [ids[row] for row in rows.tolist()], membership[rows]))
        return SealedBatch.join(parts)


def as_cells(values: Tensor, ids: Sequence[int], membership: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values as (clients, 1 | slots, length), and which of these cells are to be sealed."""
    require(
        (values.dim() == 2 and membership is None) or (values.dim() == 3 and membership is not None),
        "values of shape",
        tuple(values.shape),
        "must be (clients, length), or (clients, slots, length) together with a membership",
    )
    cells = values.unsqueeze(1) if membership is None else values
    require(cells.shape[-1] > 0, "length", 0, "must be at least 1: there is nothing to seal")
    require(len(ids) == len(cells) == len(set(ids)), "ids", list(ids), f"must name {len(cells)} different clients")
    sealed = torch.ones(cells.shape[:2], dtype=torch.bool) if membership is None else binary(membership, cells)
    return cells, sealed


def binary(membership: Tensor, clients: Sequence[object] | Tensor) -> Tensor:
    """A membership of zeros and ones as flags; a cipher cannot weigh what it cannot see."""
    require(
        membership.dim() == 2 and len(membership) == len(clients),
        "membership of shape",
        tuple(membership.shape),
        f"must be ({len(clients)}, slots)",
    )
    flags = membership != 0
    require(
        bool((membership == flags).all()),
        "membership",
        membership[membership != flags][:1].tolist(),
        "must be zeros and ones; weigh the values before they are sealed",
    )
    return flags


def add_intact(batch: SealedBatch, membership: Tensor) -> tuple[SealedSum, dict[int, str]]:
    """The sums over the clients whose ciphertexts are intact, and why others were left out, by client."""
    try:
        return batch.add(membership), {}
    except DamagedCiphertexts as damage:
        intact = [position for position in range(len(batch)) if position not in damage.positions]
        require(len(intact) > 0, "intact ciphertexts", 0, f"are left to add: {damage}")
        total, more = add_intact(batch.pick(intact), membership[intact])
        return total, {**damage.reasons, **more}


class ByForm:
    """Sums of what is alike: whoever sends something of another form than most is left out, whenever it comes."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[SealedSum, list[int]]] = {}

    def add(self, form: str, total: SealedSum, ids: Iterable[int]) -> None:
        before, whose = self._sums.get(form, (None, []))
        self._sums[form] = total if before is None else before + total, [*whose, *ids]

    def most(self, dropped: dict[int, str]) -> tuple[SealedSum | None, list[int]]:
        """The sum over those who are most, and who they are; why the others are left out is written down."""
        if not self._sums:
            return None, []
        usual = max(self._sums, key=lambda form: len(self._sums[form][1]))
        for form, (_, whose) in self._sums.items():
            if form != usual:
                dropped |= dict.fromkeys(whose, f"it sent {form}, unlike most, who sent {usual}")
        return self._sums[usual]
