"""Picking and joining keep clients together with what is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Published, Up
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
        tuple(f"note {client}".encode() for client in ids),
    )


def test_pick_and_join_undo_each_other() -> None:
    whole = sent([1, 2, 3])
    parts = Contributions.join([whole.pick(torch.tensor([2])), whole.pick(torch.tensor([0, 1]))])
    assert parts.ids.tolist() == [3, 1, 2]
    assert parts.values["w"].flatten().tolist() == [3.0, 1.0, 2.0]
    assert parts.weights.tolist() == [30.0, 10.0, 20.0]
    assert parts.membership[:, 0].tolist() == [0.0, 1.0, 0.0]
    assert parts.sealed["s"].open("sesame").flatten().tolist() == [3.0, 1.0, 2.0]
    assert parts.notes == (b"note 3", b"note 1", b"note 2")


def test_what_some_send_is_put_in_place_of_what_they_sent() -> None:
    whole, positions = sent([1, 2, 3, 4]), torch.tensor([3, 1])
    theirs = whole.pick(positions)
    changed = whole.put(positions, replace(theirs, values={"w": -theirs.values["w"]}, notes=(b"four", b"two")))
    assert changed.ids.tolist() == [1, 2, 3, 4]
    assert changed.values["w"].flatten().tolist() == [1.0, -2.0, 3.0, -4.0]
    assert changed.weights.tolist() == whole.weights.tolist()
    assert changed.sealed["s"].open("sesame").flatten().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert changed.notes == (b"note 1", b"two", b"note 3", b"four")
    everyone = whole.put(torch.arange(4), replace(whole, weights=torch.zeros(4)))
    assert everyone.weights.tolist() == [0.0] * 4
    with pytest.raises(InvalidInput, match=r"clients that answer=\[2, 3\] must be \[4, 2\]"):
        whole.put(positions, whole.pick(torch.tensor([1, 2])))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("train", TRAIN),
        ("lloyd 2", Kind("lloyd", 2)),
        ("train/masked", Kind("train", part="masked")),
        ("place 12/open", Kind("place", 12, "open")),
    ],
)
def test_kinds_are_written_and_read(text: str, kind: Kind) -> None:
    assert str(kind) == text
    assert Kind.of(text) == kind
    assert Kind.of(kind) is kind


@pytest.mark.parametrize("text", ["", "lloyd two", "train/", "/masked", "a b c", "lloyd 2 3"])
def test_what_is_no_kind(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a word, and where it applies a number and a part"):
        Kind.of(text)


def down() -> Down:
    models = Published({"w": torch.tensor([[1.0], [2.0]])}, torch.tensor([7, 8]))
    return Down(TRAIN, 0, torch.tensor([5, 6]), models, torch.eye(2).bool(), b"all", (b"five", b"six"))


def test_a_message_for_some() -> None:
    whole = down()
    part = whole.pick(torch.tensor([1]))
    assert part.clients.tolist() == [6]
    assert part.sees is not None
    assert part.sees.tolist() == [[False, True]]
    assert (part.common, part.each) == (b"all", (b"six",))
    assert part.published is whole.published
    assert replace(whole, sees=None).slots(torch.tensor([0])).tolist() == [0, 1]
    assert whole.slots(torch.tensor([0])).tolist() == [0]
    assert whole.slots(torch.tensor([0, 1])).tolist() == [0, 1]


def test_a_message_for_one_holds_nothing_of_the_other_s() -> None:
    one = down().to_one(1)
    assert one.clients.tolist() == [6]
    assert one.each == (b"six",)
    assert one.published.values["w"].tolist() == [[2.0]]
    assert one.published.sizes is not None
    assert one.published.sizes.tolist() == [8]


def test_a_message_from_some() -> None:
    up = Up(TRAIN, 2, sent([1, 2, 3])).pick(torch.tensor([2, 0]))
    assert up.clients.tolist() == up.sent.ids.tolist() == [3, 1]
    assert (up.kind, up.round) == (TRAIN, 2)


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
