"""Proofs that a hidden whole number lies in a range, on a random sample of a message's numbers.

A number v is committed to as v G + r H (Pedersen 1991) in the prime-order group of ed25519, where nobody knows the
logarithm of H. To show that it has so many bits, each bit gets a commitment of its own, which add up to the number's,
and a proof that it hides 0 or 1 without saying which (Cramer, Damgaard and Schoenmakers 1994, by Fiat and Shamir's
hash): 160 bytes a bit.

Commitments add up as numbers do, so they may stand beside masked sums: where the blinding factors of all parties add
up to nothing (``zero_sum_blinds``), the commitments add up to the total times G, and whoever has proven another number
than it sent is noticed. To prove every number of a message would take hours at a million records; the server draws a
sample of its own once numbers cannot be changed, and a liar with many wrong ones is caught with the chance that
``chance`` states.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_from_uniform,
    crypto_core_ed25519_scalar_add,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_scalar_sub,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import RuntimeError as NaClError

from coterie.errors import require
from coterie.wire.codec import register

ONE = (1).to_bytes(32, "little")
G = bytes(crypto_scalarmult_ed25519_base_noclamp(ONE))
H = bytes(crypto_core_ed25519_from_uniform(hashlib.sha512(b"coterie, range proofs, H").digest()[:32]))
MOST_BITS = 32
ORDER = (1 << 252) + 27742317777372353535851937790883648493  # of the group
NOTHING = (1).to_bytes(32, "little")  # the neutral point, encoded


@register
@dataclass(frozen=True)
class BitProof:
    """That a commitment hides 0 or 1: two challenges that add up to the hash, and an answer to each."""

    point: bytes
    challenges: tuple[bytes, bytes]
    answers: tuple[bytes, bytes]


RangeProof = tuple[BitProof, ...]
"""One a bit, the lowest first."""


@dataclass(frozen=True)
class Committed:
    """A party's side: numbers of at most ``bits`` bits that it has committed to."""

    values: Sequence[int]
    bits: int
    _blinds: tuple[bytes, ...] = field(default=(), repr=False)  # none: drawn at random

    def __post_init__(self) -> None:
        require(1 <= self.bits <= MOST_BITS, "bits", self.bits, f"must lie in 1..{MOST_BITS}")
        if not self._blinds:
            object.__setattr__(self, "_blinds", tuple(_random() for _ in self.values))
        require(len(self._blinds) == len(self.values), "blinding factors", len(self._blinds), "must be one a number")

    @property
    def points(self) -> list[bytes]:
        """What is sent with the message. A liar can commit to any number, also to one outside of the range."""
        return [_commitment(value, blind) for value, blind in zip(self.values, self._blinds, strict=True)]

    def proof(self, place: int, context: bytes) -> RangeProof:
        """Of the number at this place; of one outside of the range it is a proof that fails."""
        value = self.values[place]
        blinds = [_random() for _ in range(self.bits)]
        rest = self._blinds[place]
        for power, blind in enumerate(blinds[1:], 1):
            rest = crypto_core_ed25519_scalar_sub(rest, crypto_core_ed25519_scalar_mul(_scalar(1 << power), blind))
        blinds[0] = rest
        return tuple(_bit_proof(value >> power & 1, blind, context) for power, blind in enumerate(blinds))


def holds(point: bytes, proof: RangeProof, bits: int, context: bytes) -> bool:
    """Whether the number behind this commitment is proven to have at most so many bits."""
    if len(proof) != bits:
        return False
    try:
        total = proof[-1].point
        for one in reversed(proof[:-1]):
            total = crypto_core_ed25519_add(crypto_core_ed25519_add(total, total), one.point)
        return bytes(total) == point and all(_bit_holds(one, context) for one in proof)
    except (NaClError, TypeError, ValueError):  # points that are none, or of small order
        return False


def chance(numbers: int, wrong: int, sampled: int) -> float:
    """With which a message with so many wrong numbers is caught by a sample of its numbers: 1 - C(n-w, s) / C(n, s)."""
    require(0 <= wrong <= numbers, "wrong", wrong, f"must lie in 0..{numbers}, the numbers that there are")
    require(0 <= sampled <= numbers, "sampled", sampled, f"must lie in 0..{numbers}, the numbers that there are")
    if sampled > numbers - wrong:
        return 1.0
    missed = (
        math.lgamma(numbers - wrong + 1)
        - math.lgamma(numbers - wrong - sampled + 1)
        - math.lgamma(numbers + 1)
        + math.lgamma(numbers - sampled + 1)
    )
    return -math.expm1(missed)


def drawn(numbers: int, sampled: int) -> list[int]:
    """Which are to be proven, by the server's own secret draw, once the commitments are there."""
    return sorted(secrets.SystemRandom().sample(range(numbers), min(sampled, numbers)))


def zero_sum_blinds(
    secret: Callable[[int, int], bytes], party: int, parties: int, places: Sequence[int]
) -> list[bytes]:
    """The party's blinding factors of the numbers at these places: over all parties they add up to nothing.

    ``secret``: 64 bytes for a place and a party, which all parties can compute and nobody else.
    """

    def factor(place: int, at: int) -> bytes:
        return bytes(crypto_core_ed25519_scalar_reduce(secret(place, at % parties)))

    return [bytes(crypto_core_ed25519_scalar_sub(factor(at, party), factor(at, party + 1))) for at in places]


def added(points: Sequence[bytes]) -> bytes:
    """The sum of commitments; of what is no point, nothing that any number has."""
    total = NOTHING
    try:
        for point in points:
            total = bytes(crypto_core_ed25519_add(total, point))
    except (NaClError, TypeError, ValueError):
        return b""
    return total


def bare(value: int) -> bytes:
    """What commitments to numbers add up to whose total is this, if their blinding factors add up to nothing."""
    return bytes(crypto_scalarmult_ed25519_base_noclamp(_scalar(value))) if value else NOTHING


def _commitment(value: int, blind: bytes) -> bytes:
    hidden = crypto_scalarmult_ed25519_noclamp(blind, H)
    if value == 0:
        return bytes(hidden)
    return bytes(crypto_core_ed25519_add(crypto_scalarmult_ed25519_base_noclamp(_scalar(value)), hidden))


def _bit_proof(bit: int, blind: bytes, context: bytes) -> BitProof:
    """The branch that is true is answered honestly; the other's challenge is chosen first, which makes it easy."""
    point = _commitment(bit, blind)
    nonce, made_up, answer = _random(), _random(), _random()
    other = point if bit else bytes(crypto_core_ed25519_sub(point, G))
    mine = bytes(crypto_scalarmult_ed25519_noclamp(nonce, H))
    theirs = _shown(answer, made_up, other)
    whole = _challenge(context, point, *((theirs, mine) if bit else (mine, theirs)))
    own = bytes(crypto_core_ed25519_scalar_sub(whole, made_up))
    honest = bytes(crypto_core_ed25519_scalar_add(nonce, crypto_core_ed25519_scalar_mul(own, blind)))
    if bit:
        return BitProof(point, (made_up, own), (answer, honest))
    return BitProof(point, (own, made_up), (honest, answer))


def _bit_holds(proof: BitProof, context: bytes) -> bool:
    zero = _shown(proof.answers[0], proof.challenges[0], proof.point)
    one = _shown(proof.answers[1], proof.challenges[1], bytes(crypto_core_ed25519_sub(proof.point, G)))
    return _challenge(context, proof.point, zero, one) == bytes(crypto_core_ed25519_scalar_add(*proof.challenges))


def _shown(answer: bytes, challenge: bytes, point: bytes) -> bytes:
    """What was shown at first, if the answer is right: answer H - challenge point."""
    spent = crypto_scalarmult_ed25519_noclamp(challenge, point)
    return bytes(crypto_core_ed25519_sub(crypto_scalarmult_ed25519_noclamp(answer, H), spent))


def _challenge(context: bytes, *points: bytes) -> bytes:
    told = hashlib.sha512(len(context).to_bytes(8, "little") + context + b"".join(points)).digest()
    return bytes(crypto_core_ed25519_scalar_reduce(told))


def _random() -> bytes:
    return bytes(crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64)))


def _scalar(value: int) -> bytes:
    return (value % ORDER).to_bytes(32, "little")
