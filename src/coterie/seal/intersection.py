"""Which identifiers parties share, without showing the others: Diffie-Hellman on the prime-order group of ed25519.

Every party hashes its identifiers to points and raises them to its secret; what it sends goes round until all parties
have done so. The order of secrets does not matter, so equal identifiers end as equal points, and nobody who lacks one
secret can tell which (Huberman, Franklin and Hogg 1999; Meadows 1986). Each party shuffles before it sends its own, and
others keep the order, so that it finds its identifiers again and nobody else does.

Whoever compares (a server, which may not collude with a party) learns how many identifiers each has and how many any of
them share. Against parties that follow the protocol; one that makes up identifiers learns who of them is there, as with
any intersection. PyNaCl has no ristretto255; points of its group are checked before they are multiplied.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from nacl.bindings import (
    crypto_core_ed25519_from_uniform,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import RuntimeError as NaClError

from coterie.errors import InvalidInput, require

POINT, SECRET = 32, 64
DOMAIN = b"coterie, identifiers, 1: "


def point(identifier: bytes) -> bytes:
    """Where an identifier lies in the group, by Elligator 2: nobody knows its logarithm."""
    return bytes(crypto_core_ed25519_from_uniform(hashlib.sha512(DOMAIN + identifier).digest()[:POINT]))


@dataclass(frozen=True)
class Joiner:
    """One party's side of the protocol; a new one for every join."""

    identifiers: Sequence[bytes]
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET), repr=False)
    _order: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        require(len(self._secret) == SECRET, "len(secret)", len(self._secret), f"must be {SECRET} random bytes")
        require(
            len(set(self.identifiers)) == len(self.identifiers), "identifiers", "twice", "must come once; merge them"
        )
        order = list(range(len(self.identifiers)))
        secrets.SystemRandom().shuffle(order)
        object.__setattr__(self, "_order", tuple(order))

    @property
    def _scalar(self) -> bytes:
        return bytes(crypto_core_ed25519_scalar_reduce(self._secret))

    def begin(self) -> list[bytes]:
        """Its own identifiers as points that say nothing, in an order that it alone knows."""
        return self.raised([point(self.identifiers[place]) for place in self._order])

    def raised(self, points: Sequence[bytes]) -> list[bytes]:
        """Another's points with its own secret on top, in the order in which they came."""
        scalar = self._scalar
        try:
            return [bytes(crypto_scalarmult_ed25519_noclamp(scalar, one)) for one in points]
        except (NaClError, TypeError, ValueError) as error:
            raise InvalidInput(
                "points=refused: some are not of the group, so that they could be used to learn a secret; end the join"
            ) from error

    def shared(self, positions: Sequence[int]) -> list[int]:
        """Which of its identifiers stand at these positions of what it began with."""
        return [self._order[position] for position in positions]


def compared(finished: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Of every party's points under all secrets, the positions of those that all have: one order for all parties."""
    places = [{one: position for position, one in enumerate(points)} for points in finished]
    common = sorted(set(places[0]).intersection(*places[1:]))
    return [[place[one] for one in common] for place in places]


def intersection(parties: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """All parties in one process: where each has the identifiers that all have, in the order of the first party's.

    The others learn in which order the first has them; the order of the points would tell not even that.
    """
    joiners = [Joiner(identifiers) for identifiers in parties]
    finished = []
    for sender, joiner in enumerate(joiners):
        points = joiner.begin()
        for other in (*joiners[sender + 1 :], *joiners[:sender]):
            points = other.raised(points)
        finished.append(points)
    found = compared(finished)
    shared = [joiner.shared(positions) for joiner, positions in zip(joiners, found, strict=True)]
    order = sorted(range(len(shared[0])), key=shared[0].__getitem__)
    return [[own[place] for place in order] for own in shared]
