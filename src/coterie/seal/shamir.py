"""Shamir's secret sharing of numbers below 2^31 - 1, and of 32-byte secrets, many at a time.

Products of such numbers fit into 64-bit words, so numpy evaluates the polynomials of all numbers for all holders
together. A secret is nine limbs of 30 bits, each shared on its own. Shares of numbers add up to shares of their sums.
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
PRIME = 2**31 - 1


def split_numbers(numbers: Shares, holders: Sequence[int], threshold: int) -> Shares:
    """One share a holder, (holders, *numbers.shape): any ``threshold`` of them give the numbers, fewer nothing.

    Holder h's share is the polynomial at h + 1.
    """
    require(
        1 <= threshold <= len(holders), "threshold", threshold, f"must lie in 1..{len(holders)}, the number of holders"
    )
    require(len(set(holders)) == len(holders), "holders", list(holders), "must be different")
    coefficients = uniform(secrets.token_bytes(8 * threshold * numbers.size)).reshape(threshold, *numbers.shape)
    coefficients[0] = numbers
    points = np.array(holders, dtype=np.int64).reshape(-1, *[1] * numbers.ndim) + 1
    shares = np.zeros((len(holders), *numbers.shape), dtype=np.int64)
    for coefficient in coefficients[::-1]:
        shares = (shares * points + coefficient) % PRIME
    return shares


def combine_numbers(holders: Sequence[int], shares: Shares) -> Shares:
    """The numbers, from the shares (holders, ...) of these holders; Lagrange's polynomial at 0."""
    require(
        len(set(holders)) == len(holders) == len(shares), "holders", list(holders), "must be different, one a share"
    )
    total = np.zeros(shares.shape[1:], dtype=np.int64)
    for holder, share in zip(holders, shares, strict=True):
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        total = (total + share * (above * pow(below, -1, PRIME) % PRIME)) % PRIME
    return total


def split(values: Sequence[bytes], holders: Sequence[int], threshold: int) -> Shares:
    """The shares of secrets, (holders, secrets, limbs)."""
    return split_numbers(np.array([_limbs(value) for value in values], dtype=np.int64), holders, threshold)


def combine(holders: Sequence[int], shares: Shares) -> list[bytes]:
    """The secrets, from the shares (holders, secrets, limbs) of these holders."""
    return [_bytes(limbs) for limbs in combine_numbers(holders, shares)]


def is_share(thing: object, count: int = LIMBS) -> bool:
    """Whether it can be one holder's share of one secret, or of so many numbers."""
    return (
        isinstance(thing, np.ndarray)
        and thing.shape == (count,)
        and thing.dtype == np.int64
        and bool(((thing >= 0) & (thing < PRIME)).all())
    )


def uniform(stream: bytes) -> Shares:
    """Numbers modulo the prime, one for each eight random bytes; uniform to within 2^-33."""
    return (np.frombuffer(stream, dtype="<u8") % PRIME).astype(np.int64)


def _limbs(value: bytes) -> list[int]:
    require(len(value) == SECRET, "secret bytes", len(value), f"must be {SECRET}")
    number = int.from_bytes(value, "little")
    return [number >> 30 * i & 0x3FFFFFFF for i in range(LIMBS)]


def _bytes(limbs: Shares) -> bytes:
    number = sum(int(limb) << 30 * i for i, limb in enumerate(limbs))
    require(number < 2 ** (8 * SECRET), "combined secret", "out of range", "means that a share is wrong or missing")
    return number.to_bytes(SECRET, "little")
