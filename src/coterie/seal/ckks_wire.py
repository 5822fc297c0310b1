"""CKKS ciphertexts as bytes: SEAL reads and writes files only, and a message is several ciphertexts."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tenseal import sealapi

from coterie.errors import InvalidInput, require

DEGREE = 8192
MODULUS_BITS = 60
SLICE = DEGREE  # real values a ciphertext: DEGREE / 2 complex slots, two values in each
SEEDED_BYTES = 65_740  # of one fresh ciphertext: a polynomial, and the seed of the other
FULL_BYTES = 131_200  # of one sum: both polynomials
_HEADER = struct.Struct("<4s16sI")  # magic, key id, length
_SIZE = struct.Struct("<I")
_MAGIC = b"CKS1"

SealObject = Any
"""Something of SEAL's: the library is untyped."""


@cache
def seal_context() -> SealObject:
    """Depth 0: one prime of 60 bits, 158 bits below what SEAL allows for 128-bit security at this degree."""
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(DEGREE, [MODULUS_BITS]))
    return sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)


class Scratch:
    """A file that SEAL writes to and reads from; in memory where the system has such files."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path = descriptor, path

    def dump(self, thing: SealObject) -> bytes:
        thing.save(self._path)
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def load(self, thing: SealObject, data: bytes | memoryview) -> SealObject:
        """Fill the object from bytes; SEAL checks sizes, parameters and that coefficients are in range."""
        os.ftruncate(self._descriptor, len(data))
        os.pwrite(self._descriptor, data, 0)
        try:
            thing.load(seal_context(), self._path)
        except (RuntimeError, ValueError) as problem:
            raise InvalidInput(
                f"ciphertext of {len(data)} bytes is not readable ({problem}); ask for it again"
            ) from None
        return thing


@contextmanager
def scratch() -> Iterator[Scratch]:
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("coterie-ckks")
        try:
            yield Scratch(descriptor, f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="coterie-ckks-") as folder:  # only this user may enter it
            path = os.path.join(folder, "scratch")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                yield Scratch(descriptor, path)
            finally:
                os.close(descriptor)


def slices_of(length: int) -> int:
    return -(-length // SLICE)


def message_bytes(length: int, fresh: bool) -> int:
    """Bytes of a whole message: a client's (fresh, seeded) or a sum's."""
    return _HEADER.size + slices_of(length) * (_SIZE.size + (SEEDED_BYTES if fresh else FULL_BYTES))


def pack(key_id: bytes, length: int, slices: list[bytes]) -> bytes:
    return b"".join([_HEADER.pack(_MAGIC, key_id, length), *(_SIZE.pack(len(s)) + s for s in slices)])


@dataclass(frozen=True)
class Message:
    """A parsed message; its slices are views into the bytes that came in."""

    key_id: bytes
    length: int
    slices: tuple[memoryview, ...]

    @staticmethod
    def parse(data: bytes) -> Message:
        require(
            len(data) >= _HEADER.size,
            "message bytes",
            len(data),
            "are too few for a header; ask for it again",
        )
        magic, key_id, length = _HEADER.unpack_from(data)
        require(magic == _MAGIC, "message magic", magic, f"must be {_MAGIC!r}; this is no CKKS message")
        view, at, slices = memoryview(data), _HEADER.size, []
        for index in range(slices_of(length)):
            require(at + _SIZE.size <= len(data), "truncated at slice", index, "must be whole; ask for it again")
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            require(at + size <= len(data), "truncated in slice", index, "must be whole; ask for it again")
            slices.append(view[at : at + size])
            at += size
        require(at == len(data), "bytes after the last slice", len(data) - at, "must be none; ask for it again")
        return Message(key_id, length, tuple(slices))
