"""A veil over sums: a keystream that all clients can compute and the server cannot.

Each member of a cluster, at place p of its m members, adds G(p + 1) - G(p) to what it sends, where G is a keystream of
the clients' common key for this round. In the sum over everybody the veil is G(m) - G(0), whatever the number of
members: added once, and nothing more to send. Where members are missing, the ends of the gaps are left as well; who was
in is public, so clients take off what is left. (If everybody added the same stream, m times it would leave the low bits
of the sum bare for even m.)

The common key opens nothing but sums: single answers are hidden by masks that no common key opens (``pairwise``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as StreamCipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal import shamir
from coterie.seal.cipher import Grid
from coterie.seal.streams import KEY, Packed, Words, add_stream, derive, signed, unpack
from coterie.wire.codec import register
from coterie.wire.sealed import SealedSum, SecretKey


@dataclass(frozen=True)
class GroupKey(SecretKey):
    """What all clients share and the server lacks. With it the sums open, and no client's answer does."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(KEY), repr=False)

    def __post_init__(self) -> None:
        require(len(self.secret) == KEY, "bytes of the group key", len(self.secret), f"must be {KEY}")

    @staticmethod
    def after(secret: bytes) -> GroupKey:
        """One that follows from another secret of the clients."""
        return GroupKey(derive(secret, b"group"))

    @property
    def context(self) -> bytes:
        """By which the key is known again by those who lack it."""
        return derive(self.secret, b"group id")[:16]

    def to_bytes(self) -> bytes:
        return self.secret

    def of_round(self, context: bytes) -> bytes:
        """The round's own key. The context holds everybody's fresh public keys, so that none comes twice."""
        return derive(context, b"veil", self.secret)


def veil(words: Words, key: bytes, slot: int, place: int) -> None:
    """What the member at this place adds, under the round's key, in place."""
    add_stream(words, _at(key, place + 1), slot, subtract=False)
    add_stream(words, _at(key, place), slot, subtract=True)


def unveil(words: Words, key: bytes, slot: int, places: Iterable[int]) -> None:
    """Take off what the members at these places added, in place: two streams for each run of them."""
    here = set(places)
    for place in here:
        if place + 1 not in here:
            add_stream(words, _at(key, place + 1), slot, subtract=True)
        if place - 1 not in here:
            add_stream(words, _at(key, place), slot, subtract=False)


def _at(key: bytes, place: int) -> bytes:
    return derive(place.to_bytes(8, "little"), b"place", key)


def pads(key: bytes, count: int) -> shamir.Shares:
    """What hides a tally of so many numbers from the server, under the round's key."""
    stream = StreamCipher(ChaCha20(derive(b"", b"tally", key), bytes(16)), mode=None).encryptor()
    return shamir.uniform(stream.update(bytes(8 * count)))


@register
@dataclass(frozen=True)
class HiddenSlot:
    """One cluster's sum, with all that a client needs to know to open it."""

    words: Packed = field(repr=False)
    slot: int
    context: bytes  # of the round that it is from
    places: tuple[int, ...]  # of the members that are in
    size: int  # how many of them are true members, hidden too


@register
@dataclass(frozen=True)
class HiddenSum(SealedSum):
    """Sums that the server holds and only clients open; a cluster may be from an earlier round, or have none yet."""

    sums: tuple[HiddenSlot | None, ...]
    shapes: Mapping[str, tuple[int, ...]]
    grid: Grid
    width: int
    newest: bytes = b""  # the context of the round that this is the outcome of

    def __post_init__(self) -> None:
        """Clusters that changed places would change a client's identity set, and two sets tell more than one."""
        places = [at if one is None else one.slot for at, one in enumerate(self.sums)]
        require(places == [*range(len(places))], "clusters of the sums", places, "must be in order; ask again")

    @property
    def fresh(self) -> list[bool]:
        """Which clusters' sums are of that round."""
        return [one is not None and one.context == self.newest for one in self.sums]

    @property
    def slots(self) -> int:
        return len(self.sums)

    @property
    def length(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @property
    def nbytes(self) -> int:
        return sum(one.words.nbytes for one in self.sums if one is not None)

    @property
    def known(self) -> list[bool]:
        """Which clusters have a sum at all."""
        return [one is not None for one in self.sums]

    def filled_from(self, before: SealedSum | None) -> HiddenSum:
        """With the earlier sums of those clusters that have none in this round."""
        if not isinstance(before, HiddenSum) or before.shapes != self.shapes:
            return self
        pairs = zip(self.sums, before.sums, strict=True)
        return replace(self, sums=tuple(old if new is None else new for new, old in pairs))

    def __add__(self, other: SealedSum) -> HiddenSum:
        raise InvalidInput(f"sum={type(other).__name__} cannot be added: it is of a whole round already")

    def open(self, key: object) -> Tensor:
        """The plain sums (slots, length); zeros where there is none."""
        if not isinstance(key, GroupKey):
            raise NotPermitted(f"key={type(key).__name__} cannot open the sums; only the clients' group key does")
        steps = np.zeros((self.slots, self.length))
        for at, one in self._present():
            words = unpack(one.words, self.width)
            unveil(words, key.of_round(one.context), one.slot, one.places)
            steps[at] = signed(words, self.width)
        return self.grid.values(steps)

    def leaves(self, key: object) -> dict[str, Tensor]:
        """The plain sums, leaf by leaf, (slots, ...)."""
        parts = self.open(key).split([int(np.prod(shape)) for shape in self.shapes.values()], dim=1)
        return {
            name: part.reshape(self.slots, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def sizes(self, key: GroupKey) -> list[int]:
        """How many true members each cluster had in the round that its sum is of; 0 where there is none."""
        found = [0] * self.slots
        for at, one in self._present():
            found[at] = (one.size - int(pads(key.of_round(one.context), self.slots)[one.slot])) % shamir.PRIME
        return found

    def _present(self) -> Iterator[tuple[int, HiddenSlot]]:
        for at, one in enumerate(self.sums):
            if one is not None:
                yield at, one
