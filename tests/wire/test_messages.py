"""Picking and joining keep clients together with what is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.messages import Contributions, Envelope, Published
from coterie.wire.sealed import SealedBatch, SealedSum


@dataclass
class Boxes(SealedBatch):
    """The plainest sealed thing: numbers behind a password."""

    numbers: Tensor  # (clients, length)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    def pick(self, positions: Sequence[int]) -> Boxes:
        return Boxes(self.numbers[list(positions)])

    def add(self, membership: Tensor) -> BoxSum:
        return BoxSum(membership.to(self.numbers.dtype).T @ self.numbers)

    def open(self, key: Any) -> Tensor:
        if key != "sesame":
            raise NotPermitted("wrong key; ask a client")
        return self.numbers

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> Boxes:
        return Boxes(torch.cat([part.open("sesame") for part in parts]))


@dataclass
class BoxSum(SealedSum):
    numbers: Tensor

    @property
    def slots(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    def __add__(self, other: SealedSum) -> BoxSum:
        return BoxSum(self.numbers + other.open("sesame"))

    def open(self, key: Any) -> Tensor:
        return self.numbers


def sent(ids: list[int]) -> Contributions:
    rows = torch.tensor(ids)
    return Contributions(
        rows,
        {"w": rows.float().view(-1, 1, 1)},
        10.0 * rows,
        torch.stack([rows == 1, rows != 1], 1).float(),
        {"s": Boxes(rows.float().view(-1, 1))},
    )


def test_pick_and_join_undo_each_other() -> None:
    whole = sent([1, 2, 3])
    parts = Contributions.join([whole.pick(torch.tensor([2])), whole.pick(torch.tensor([0, 1]))])
    assert parts.ids.tolist() == [3, 1, 2]
    assert parts.values["w"].flatten().tolist() == [3.0, 1.0, 2.0]
    assert parts.weights.tolist() == [30.0, 10.0, 20.0]
    assert parts.membership[:, 0].tolist() == [0.0, 1.0, 0.0]
    assert parts.sealed["s"].open("sesame").flatten().tolist() == [3.0, 1.0, 2.0]


def test_an_envelope_for_some() -> None:
    envelope = Envelope("train", 0, torch.tensor([5, 6]), Published({"w": torch.zeros(2, 1)}), torch.eye(2).bool())
    part = envelope.pick(torch.tensor([1]))
    assert part.clients.tolist() == [6]
    assert part.sees is not None
    assert part.sees.tolist() == [[False, True]]
    assert part.payload is envelope.payload


def test_some_slots_of_what_was_published() -> None:
    published = Published({"w": torch.tensor([[1.0], [2.0], [3.0]])}, torch.tensor([7, 8, 9]))
    part = published.pick(torch.tensor([2]))
    assert part.values["w"].tolist() == [[3.0]]
    assert part.sizes is not None
    assert part.sizes.tolist() == [9]
    sealed = Published({}, sealed={"s": BoxSum(torch.zeros(3, 1))})
    assert sealed.slots == 3
    with pytest.raises(InvalidInput, match=r"slots=\[1\] must be all 3: sealed sums cannot be cut"):
        sealed.pick(torch.tensor([1]))
