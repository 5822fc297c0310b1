"""Ciphertexts that refuse to open without the key.

A cipher (CKKS, secure sums, a mock that only counts) subclasses these two. The ring never looks inside: it
picks, joins, adds and counts bytes. ``open`` takes the key as an argument, because whoever holds a sealed
object does not thereby hold the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NoReturn

from torch import Tensor

from coterie.errors import NotPermitted

SEALED = "sealed"
"""The name of the one sealed value in a message that has a single one."""

SHARED_KEY = "shared key"
"""What a threat model names to hold the key that all clients have."""


class SecretKey:
    """What opens ciphertexts. It goes where its owner puts it (``to_bytes``), and by no accident anywhere else."""

    def __reduce__(self) -> NoReturn:
        raise NotPermitted(
            f"{type(self).__name__} cannot be pickled or copied: a key in a log, a cache or another process is none; "
            "keep its bytes in a file of your own"
        )


class SealedBatch(ABC):
    """One ciphertext a client, all for the same named value."""

    stands_in: ClassVar[bool] = False  # not what would travel: it stands for something of ``nbytes``

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the wire."""

    @abstractmethod
    def pick(self, positions: Sequence[int]) -> SealedBatch: ...

    @abstractmethod
    def add(self, membership: Tensor) -> SealedSum:
        """The sums over clients, one a slot; membership is (clients, slots) of zeros and ones."""

    @abstractmethod
    def open(self, key: object) -> Tensor:
        """The plain values, (clients, length). Raises ``NotPermitted`` for any other key."""

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> SealedBatch:
        """Several batches as one; ciphers override it on their own class."""
        if len(parts) == 1:
            return parts[0]
        return type(parts[0]).join(parts)


class SealedSum(ABC):
    """One encrypted sum a slot."""

    stands_in: ClassVar[bool] = False

    @property
    @abstractmethod
    def slots(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def __add__(self, other: SealedSum) -> SealedSum:
        """Partial sums over disjoint groups of clients add up."""

    @abstractmethod
    def open(self, key: object) -> Tensor:
        """The plain sums, (slots, length). Raises ``NotPermitted`` for any other key."""
