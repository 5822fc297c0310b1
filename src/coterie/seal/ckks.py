"""Encrypted sums with CKKS at depth 0 (MingledPie, Zhang et al., NDSS 2025, Eq. 4-6), on TenSEAL's SEAL.

Sums need no multiplication, so there is no rescaling chain: one 60-bit prime, where the tutorials take four.
Two values ride in each complex slot (addition keeps them apart). All clients share the secret key in this
design, so they encrypt symmetrically, which is faster and lets half of a fresh ciphertext travel as a seed.
The server holds no key at all, not even a public one; it adds.

One client that colludes with the server opens everything: that is the paper's trust model (``secure_sum``
does without a shared key). Nor does CKKS authenticate: a message names its key, which catches mistakes; a sum made
under another key all the same opens to noise, and this is noticed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tenseal import sealapi
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal.cipher import Cipher, DamagedCiphertexts, Floats, Grid, as_cells, binary
from coterie.seal.ckks_wire import (
    DEGREE,
    MODULUS_BITS,
    SLICE,
    Message,
    Scratch,
    SealObject,
    pack,
    scratch,
    seal_context,
)
from coterie.wire.codec import register
from coterie.wire.sealed import SealedBatch, SealedSum, SecretKey

NOISE = 3.2 * math.sqrt(DEGREE / 2)
"""Standard deviation of a fresh ciphertext's noise in one value, in units of 1 / scale."""


@register
@dataclass(frozen=True)
class Ckks(Cipher):
    """Settings that clients and server share; they are public.

    In a sum of at most ``members`` ciphertexts half a step of the grid is seven standard deviations of the
    noise, so that it opens exactly.
    """

    members: int = 512
    scale_bits: int = 40
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self) -> None:
        require(self.members >= 1, "members", self.members, "must be at least 1")
        noise = 7 * NOISE * math.sqrt(self.members)
        require(
            noise <= 2.0 ** (self.scale_bits - self.grid.bits - 1),
            "members",
            self.members,
            f"add up to too much noise for scale_bits={self.scale_bits} and a grid of {self.grid.bits} bits; "
            "raise scale_bits or take a coarser grid",
        )
        require(
            self.largest >= 1,
            "scale_bits",
            self.scale_bits,
            "leaves no room below the 60-bit modulus; lower it",
        )

    @property
    def largest(self) -> float:
        """The largest value a client may seal, so that no sum of ``members`` wraps around the modulus."""
        return float(2.0 ** (MODULUS_BITS - 1 - self.scale_bits) / math.sqrt(2) / self.members)

    def keygen(self) -> CkksKey:
        return CkksKey(self, sealapi.KeyGenerator(seal_context()).secret_key())

    def seal(self, values: Tensor, key: CkksKey, ids: Sequence[int], membership: Tensor | None = None) -> CkksBatch:
        cells, sealed = as_cells(values, ids, membership)
        steps = self.grid.round(cells, self.largest)
        with scratch() as files:
            messages = tuple(
                tuple(key._encrypt(steps[i, j], files) if sealed[i, j] else None for j in range(steps.shape[1]))
                for i in range(len(steps))
            )
        return CkksBatch(key.context, tuple(ids), messages, cells.shape[-1])


@register
@dataclass(frozen=True)
class CkksContext:
    """All that the server holds: the settings and the name of the key. It neither encrypts nor decrypts."""

    settings: Ckks
    key_id: bytes


class CkksKey(SecretKey):
    """The clients' shared secret key."""

    def __init__(self, settings: Ckks, secret: SealObject) -> None:
        context = seal_context()
        self._secret = secret
        self._encoder = sealapi.CKKSEncoder(context)
        self._encryptor = sealapi.Encryptor(context, secret)
        self._decryptor = sealapi.Decryptor(context, secret)
        name = hashlib.blake2b(self.to_bytes(), digest_size=16, person=b"coterie ckks id").digest()
        self.context = CkksContext(settings, name)

    def to_bytes(self) -> bytes:
        """The secret itself: for a client's key store, never for the server."""
        with scratch() as files:
            return files.dump(self._secret)

    @staticmethod
    def from_bytes(settings: Ckks, data: bytes) -> CkksKey:
        with scratch() as files:
            return CkksKey(settings, files.load(sealapi.SecretKey(), data))

    def __repr__(self) -> str:
        return f"CkksKey({self.context.key_id.hex()[:8]})"

    def _encrypt(self, steps: Floats, files: Scratch) -> bytes:
        settings = self.context.settings
        plain, slices = sealapi.Plaintext(), []
        for start in range(0, len(steps), SLICE):
            part = np.zeros(SLICE)
            part[: len(steps) - start] = steps[start : start + SLICE]
            pairs = part[: SLICE // 2] + 1j * part[SLICE // 2 :]
            self._encoder.encode((pairs * 2.0**-settings.grid.bits).tolist(), 2.0**settings.scale_bits, plain)
            slices.append(files.dump(self._encryptor.encrypt_symmetric(plain)))
        return pack(self.context.key_id, len(steps), slices)

    def _decrypt(self, message: Message, what: str, files: Scratch) -> Floats:
        """The sum in steps of the grid, exactly."""
        plain, parts = sealapi.Plaintext(), []
        for data in message.slices:
            self._decryptor.decrypt(_ciphertext(data, self.context.settings, files), plain)
            pairs = np.array(self._encoder.decode_complex(plain), dtype=np.complex128)
            parts += [pairs.real, pairs.imag]
        noisy = np.concatenate(parts) * 2.0**self.context.settings.grid.bits
        steps: Floats = np.rint(noisy)
        off = float(np.abs(noisy - steps).max())
        require(
            off < 0.45,
            f"noise in {what}",
            off,
            "steps is too much: something in it was sealed with another key",
        )
        return steps[: message.length]


@register
@dataclass(frozen=True)
class CkksBatch(SealedBatch):
    """Messages of clients as they came over the wire: one a client, or one a client and slot."""

    context: CkksContext
    ids: tuple[int, ...]
    messages: tuple[tuple[bytes | None, ...], ...]  # (clients, 1 | slots)
    length: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return sum(len(message) for row in self.messages for message in row if message is not None)

    def pick(self, positions: Sequence[int]) -> CkksBatch:
        rows = tuple(self.messages[i] for i in positions)
        return CkksBatch(self.context, tuple(self.ids[i] for i in positions), rows, self.length)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> CkksBatch:
        batches = [part for part in parts if isinstance(part, CkksBatch)]
        first = batches[0]
        require(
            len(batches) == len(parts) and all((b.context, b.length) == (first.context, first.length) for b in batches),
            "batches",
            len(parts),
            "must all be CKKS of the same key and length to be joined",
        )
        ids = tuple(client for batch in batches for client in batch.ids)
        return cls(first.context, ids, tuple(row for batch in batches for row in batch.messages), first.length)

    def add(self, membership: Tensor) -> CkksSum:
        """Eq. 5 and 6: the sum of each slot. Slice by slice, so that little is unpacked at a time."""
        flags = binary(membership, self.ids)
        targets = len(self.messages[0]) if self.messages else 1
        require(targets in (1, flags.shape[1]), "slots", flags.shape[1], f"must be the {targets} that were sealed")
        most = int(flags.sum(0).max()) if flags.numel() else 0
        _require_members(most, self.context.settings)
        parsed, damaged = self._parse(flags)
        sums = [_SlotSums(flags.shape[1]) for _ in range(-(-self.length // SLICE))]
        wanted = [flags[i].nonzero().flatten().tolist() for i in range(len(flags))]
        packed: list[list[bytes]] = [[] for _ in range(flags.shape[1])]
        with scratch() as files:
            for index, totals in enumerate(sums):
                for i in set(parsed) - set(damaged):
                    try:
                        totals.add(parsed[i], wanted[i], index, self.context.settings, files)
                    except InvalidInput as problem:
                        damaged[i] = str(problem)
                for slot, total in totals.dump(files).items():
                    packed[slot].append(total)
        if damaged:
            raise DamagedCiphertexts(damaged, self.ids)
        key_id = self.context.key_id
        messages = tuple(pack(key_id, self.length, slices) if slices else None for slices in packed)
        return CkksSum(self.context, messages, self.length, tuple(flags.sum(0).tolist()))

    def open(self, key: object) -> Tensor:
        """Each client's values, (clients, length) or (clients, slots, length); a shared key can do that."""
        opened = [
            _open(key, self.context, row, self.length, f"client {i}")
            for i, row in zip(self.ids, self.messages, strict=True)
        ]
        return torch.stack([rows[0] if len(rows) == 1 else rows for rows in opened])

    def _parse(self, flags: Tensor) -> tuple[dict[int, list[Message | None]], dict[int, str]]:
        parsed: dict[int, list[Message | None]] = {}
        damaged: dict[int, str] = {}
        for i, row in enumerate(self.messages):
            try:
                require(len(row) in (1, flags.shape[1]), "ciphertexts", len(row), "must be one, or one a slot")
                needed = flags[i].tolist() if len(row) > 1 else [bool(flags[i].any())]
                for slot, (message, used) in enumerate(zip(row, needed, strict=True)):
                    require(message is not None or not used, "ciphertext for slot", slot, "is missing; ask for it")
                parsed[i] = [None if m is None else _expected(Message.parse(m), self.context, self.length) for m in row]
            except InvalidInput as problem:
                damaged[i] = str(problem)
        return parsed, damaged


@register
@dataclass(frozen=True)
class CkksSum(SealedSum):
    """Encrypted sums, one a slot; a slot that nobody joined has none and opens to zeros."""

    context: CkksContext
    messages: tuple[bytes | None, ...]
    length: int
    members: tuple[int, ...]  # how many ciphertexts are in each sum

    @property
    def slots(self) -> int:
        return len(self.messages)

    @property
    def nbytes(self) -> int:
        return sum(len(message) for message in self.messages if message is not None)

    def __add__(self, other: SealedSum) -> CkksSum:
        if not isinstance(other, CkksSum) or self._kind != other._kind:
            raise InvalidInput(f"sum={other!r} must be CKKS of the same key, length and slots to be added")
        members = tuple(a + b for a, b in zip(self.members, other.members, strict=True))
        _require_members(max(members, default=0), self.context.settings)
        with scratch() as files:
            messages = tuple(self._merge(a, b, files) for a, b in zip(self.messages, other.messages, strict=True))
        return CkksSum(self.context, messages, self.length, members)

    @property
    def _kind(self) -> tuple[CkksContext, int, int]:
        return self.context, self.length, self.slots

    def _merge(self, a: bytes | None, b: bytes | None, files: Scratch) -> bytes | None:
        if a is None or b is None:
            return b if a is None else a
        evaluator, settings, slices = sealapi.Evaluator(seal_context()), self.context.settings, []
        for left, right in zip(Message.parse(a).slices, Message.parse(b).slices, strict=True):
            total = _ciphertext(left, settings, files)
            evaluator.add_inplace(total, _ciphertext(right, settings, files))
            slices.append(files.dump(total))
        return pack(self.context.key_id, self.length, slices)

    def open(self, key: object) -> Tensor:
        return _open(key, self.context, self.messages, self.length, "the sums")


class _SlotSums:
    """Running sums of one slice for all slots."""

    def __init__(self, slots: int) -> None:
        self._evaluator = sealapi.Evaluator(seal_context())
        self._sums: list[SealObject] = [None] * slots
        self._borrowed = [False] * slots  # a slot's first ciphertext is shared with other slots: not to be changed

    def add(self, row: list[Message | None], slots: list[int], index: int, settings: Ckks, files: Scratch) -> None:
        shared = row[0] if len(row) == 1 and slots else None
        loaded = _ciphertext(shared.slices[index], settings, files) if shared else None
        for slot in slots:
            own = row[slot] if len(row) > 1 else None
            one = loaded if own is None else _ciphertext(own.slices[index], settings, files)
            if self._sums[slot] is None:
                self._sums[slot], self._borrowed[slot] = one, True
            elif self._borrowed[slot]:
                total = sealapi.Ciphertext()
                self._evaluator.add(self._sums[slot], one, total)
                self._sums[slot], self._borrowed[slot] = total, False
            else:
                self._evaluator.add_inplace(self._sums[slot], one)

    def dump(self, files: Scratch) -> dict[int, bytes]:
        dumped = {slot: files.dump(total) for slot, total in enumerate(self._sums) if total is not None}
        self._sums.clear()
        return dumped


def _ciphertext(data: memoryview, settings: Ckks, files: Scratch) -> SealObject:
    loaded = files.load(sealapi.Ciphertext(), data)
    require(loaded.size() == 2, "polynomials in ciphertext", loaded.size(), "must be 2; ask for it again")
    require(
        loaded.scale == 2.0**settings.scale_bits,
        "ciphertext scale",
        loaded.scale,
        f"must be 2^{settings.scale_bits}; seal with the settings that all share",
    )
    return loaded


def _expected(message: Message, context: CkksContext, length: int) -> Message:
    require(
        message.key_id == context.key_id,
        "key",
        message.key_id.hex()[:8],
        f"must be {context.key_id.hex()[:8]}; seal with the key of this federation",
    )
    require(
        message.length == length,
        "length",
        message.length,
        f"must be {length}; seal the model that was asked for",
    )
    return message


def _require_members(most: int, settings: Ckks) -> None:
    require(
        most <= settings.members,
        "clients in one sum",
        most,
        f"must be at most {settings.members}; raise Ckks(members=...)",
    )


def _open(key: object, context: CkksContext, row: Sequence[bytes | None], length: int, what: str) -> Tensor:
    if not isinstance(key, CkksKey):
        raise NotPermitted(f"key={type(key).__name__} cannot open {what}; only the clients' CkksKey does")
    if key.context.key_id != context.key_id:
        raise NotPermitted(f"key={key!r} cannot open {what}, sealed with {context.key_id.hex()[:8]}; use that key")
    with scratch() as files:
        steps = [
            np.zeros(length) if m is None else key._decrypt(_expected(Message.parse(m), context, length), what, files)
            for m in row
        ]
    return context.settings.grid.values(np.stack(steps))
