"""Shamir's secret sharing of 32-byte secrets, many at a time.

A secret is nine limbs of 30 bits, each shared on its own modulo 2^31 - 1: products fit into 64-bit words, so numpy
evaluates the polynomials of all secrets for all holders together.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coterie.errors import require

Shares = npt.NDArray[np.int64]  # (..., LIMBS)
SECRET = 32
LIMBS = 9
_PRIME = 2**31 - 1


def split(values: Sequence[bytes], holders: int, threshold: int) -> Shares:
    """One share a holder, (holders, secrets, limbs): any ``threshold`` of them give the secrets, fewer nothing.

    Holder h's share is the polynomial at h + 1.
    """
    require(1 <= threshold <= holders, "threshold", threshold, f"must lie in 1..{holders}, the number of holders")
    coefficients = _random(threshold, len(values))
    coefficients[0] = [_limbs(value) for value in values]
    points = np.arange(1, holders + 1, dtype=np.int64)[:, None, None]
    shares = np.zeros((holders, len(values), LIMBS), dtype=np.int64)
    for coefficient in coefficients[::-1]:
        shares = (shares * points + coefficient) % _PRIME
    return shares


def combine(holders: Sequence[int], shares: Shares) -> list[bytes]:
    """The secrets, from the shares (holders, secrets, limbs) of these holders; Lagrange's polynomial at 0."""
    require(
        len(set(holders)) == len(holders) == len(shares), "holders", list(holders), "must be different, one a share"
    )
    total = np.zeros(shares.shape[1:], dtype=np.int64)
    for holder, share in zip(holders, shares, strict=True):
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % _PRIME
                below = below * (other - holder) % _PRIME
        total = (total + share * (above * pow(below, -1, _PRIME) % _PRIME)) % _PRIME
    return [_bytes(limbs) for limbs in total]


def is_share(thing: object) -> bool:
    """Whether it can be one holder's share of one secret."""
    return (
        isinstance(thing, np.ndarray)
        and thing.shape == (LIMBS,)
        and thing.dtype == np.int64
        and bool(((thing >= 0) & (thing < _PRIME)).all())
    )


def _random(*shape: int) -> Shares:
    """Uniform modulo the prime, to within 2^-33 a limb."""
    count = int(np.prod(shape)) * LIMBS
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
    return (words % _PRIME).astype(np.int64).reshape(*shape, LIMBS)


def _limbs(value: bytes) -> list[int]:
    require(len(value) == SECRET, "secret bytes", len(value), f"must be {SECRET}")
    number = int.from_bytes(value, "little")
    return [number >> 30 * i & 0x3FFFFFFF for i in range(LIMBS)]


def _bytes(limbs: Shares) -> bytes:
    number = sum(int(limb) << 30 * i for i, limb in enumerate(limbs))
    require(number < 2 ** (8 * SECRET), "combined secret", "out of range", "means that a share is wrong or missing")
    return number.to_bytes(SECRET, "little")
