"""Keys, keystreams and words: what masks and veils are made of.

Values are whole numbers modulo 2^64 while they are computed with. On the wire the low ``width`` bytes of each are
enough: sums modulo 2^(8 width) are what is left of sums modulo 2^64.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher as StreamCipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from coterie.errors import InvalidInput

Words = npt.NDArray[np.uint64]
Packed = npt.NDArray[np.uint8]  # (length * width,)
KEY = 32  # bytes of a key
WORD = 8  # bytes of a word
_BLOCK = 1 << 15  # words masked at a time, so that they stay in the cache
_ZEROS = bytes(WORD * _BLOCK)


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


def add_stream(words: Words, key: bytes, slot: int, subtract: bool) -> None:
    """Add (or subtract) the keystream of this key for this cluster, in place, modulo 2^64."""
    stream = StreamCipher(ChaCha20(key, bytes(8) + slot.to_bytes(8, "little")), mode=None).encryptor()
    block = np.empty(min(_BLOCK, len(words)), dtype="<u8")
    change = np.subtract if subtract else np.add
    for start in range(0, len(words), _BLOCK):
        part = words[start : start + _BLOCK]
        stream.update_into(memoryview(_ZEROS)[: WORD * len(part)], block.data.cast("B")[: WORD * len(part)])
        change(part, block[: len(part)], out=part)


def pack(words: Words, width: int) -> Packed:
    """The low bytes of each word."""
    low: Packed = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, WORD)[:, :width].reshape(-1)
    return low


def unpack(packed: Packed, width: int) -> Words:
    words = np.zeros((len(packed) // width, WORD), dtype=np.uint8)
    words[:, :width] = packed.reshape(-1, width)
    return words.view("<u8")[:, 0]


def signed(words: Words, width: int) -> npt.NDArray[np.int64]:
    """Words of which the low bytes count, as numbers of either sign."""
    unused = np.int64(8 * (WORD - width))
    return np.right_shift(np.left_shift(words.view(np.int64), unused), unused)
