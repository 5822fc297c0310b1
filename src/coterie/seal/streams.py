"""Keys, keystreams and words: what masks and veils are made of.

Values are whole numbers modulo 2^64 while they are computed with, or 2^32 where four bytes are enough. On the wire the
low ``width`` bytes of each are: sums modulo 2^(8 width) are what is left of the others. Keystreams are AES-256 in
counter mode, which processors have instructions for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher as StreamCipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from coterie.errors import InvalidInput

Words = npt.NDArray[np.uint64] | npt.NDArray[np.uint32]
Packed = npt.NDArray[np.uint8]  # (length * width,)
KEY = 32  # bytes of a key
WORD = 8  # bytes of a word, at most
_BLOCK = 1 << 17  # bytes masked at a time, so that they stay in the cache
_ZEROS = bytes(_BLOCK)


def derive(data: bytes, purpose: bytes, key: bytes = b"") -> bytes:
    """Thirty-two bytes that follow from the data (and the key) for this purpose alone."""
    return hashlib.blake2b(data, digest_size=KEY, key=key, person=b"coterie " + purpose).digest()


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes | X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """What the two owners of these keys can compute and nobody else. Reading a key from bytes takes as long again."""
    own = X25519PrivateKey.from_private_bytes(private) if isinstance(private, bytes) else private
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise InvalidInput(
            f"public key={other.hex()} has a low order and agrees on nothing; leave its owner out"
        ) from None
    return derive(shared, purpose)


def word_bytes(width: int) -> int:
    """Of the words that are computed with, where so many bytes of each travel."""
    return 4 if width <= 4 else WORD


def add_stream(words: Words, key: bytes, slot: int, subtract: bool) -> None:
    """Add (or subtract) the keystream of this key for this cluster, in place."""
    add_streams(words, [(key, subtract)], slot)


def add_streams(words: Words, keys: Iterable[tuple[bytes, bool]], slot: int) -> None:
    """The same with several keys, each with whether it is subtracted: all of them block by block."""
    start_at = CTR(slot.to_bytes(8, "big") + bytes(8))
    streams = [(StreamCipher(AES(key), start_at).encryptor(), np.subtract if less else np.add) for key, less in keys]
    size = words.dtype.itemsize
    step = _BLOCK // size
    block = np.empty(min(step, len(words)), dtype=words.dtype.newbyteorder("<"))
    for start in range(0, len(words), step):
        part = words[start : start + step]
        here, zeros = block[: len(part)], memoryview(_ZEROS)[: size * len(part)]
        for stream, change in streams:
            stream.update_into(zeros, here.data.cast("B"))
            change(part, here, out=part)


def pack(words: Words, width: int) -> Packed:
    """The low bytes of each word."""
    size = words.dtype.itemsize
    plain = words.astype(f"<u{size}", copy=False)
    low: Packed = plain.view(np.uint8).reshape(-1, size)[:, :width].reshape(-1)
    return low


def unpack(packed: Packed, width: int) -> Words:
    """Words of their own, that may be changed."""
    size = word_bytes(width)
    words = np.zeros((len(packed) // width, size), dtype=np.uint8)
    words[:, :width] = packed.reshape(-1, width)
    found: Words = words.view(f"<u{size}")[:, 0]
    return found


def add_packed(words: Words, packed: Packed, width: int) -> None:
    """Add packed words in place; where all bytes of a word travel, without a copy of them."""
    size = words.dtype.itemsize
    np.add(words, packed.view(f"<u{size}") if width == size else unpack(packed, width), out=words)


def signed(words: Words, width: int) -> npt.NDArray[np.signedinteger[Any]]:
    """Words of which the low bytes count, as numbers of either sign."""
    size = words.dtype.itemsize
    numbers = words.view(f"<i{size}")
    unused = 8 * (size - width)
    return np.right_shift(np.left_shift(numbers, unused), unused) if unused else numbers
