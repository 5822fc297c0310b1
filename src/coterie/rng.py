"""Randomness as streams by name, not by turn.

``rng.child("client", 7, "round", 3, "noise")`` is the same stream whatever was drawn before it, so results do
not depend on the order, the chunk size or the engine. The name states the draw's lifetime: what contains no
round is drawn once for all rounds.

There are two trees. ``Rng`` is for draws that must come out the same again: batches, starts, simulated data.
``Secrets`` is for draws on whose being unknown a privacy claim rests. A generator of numpy or torch must never serve
for these: torch's keeps 32 bits of its seed, and all of them can be tried in minutes.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import NoReturn, cast

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from coterie.errors import NotPermitted, require


@dataclass(frozen=True)
class Rng:
    """A node in the tree of streams."""

    key: bytes

    @staticmethod
    def seeded(seed: int) -> Rng:
        require(seed >= 0, "seed", seed, "must be a whole number of at least 0")
        return Rng(hashlib.blake2b(f"coterie/{seed}".encode(), digest_size=16).digest())

    @staticmethod
    def from_entropy() -> Rng:
        """A root that nobody can know: what a deployed client takes its privacy noise from."""
        return Rng(secrets.token_bytes(16))

    def child(self, *names: str | int) -> Rng:
        path = "/".join(map(str, names))
        return Rng(hashlib.blake2b(path.encode(), key=self.key, digest_size=16).digest())

    def seed(self) -> int:
        """A 63-bit number, for libraries that want one."""
        return int.from_bytes(self.key[:8], "little") >> 1

    def torch(self) -> torch.Generator:
        generator = torch.Generator()
        generator.manual_seed(self.seed())
        return generator

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(cast(np.random.SeedSequence, _Key(self.key))))


class _Key(ISeedSequence):
    """Philox(key=...) for a fraction of its time: that one first gathers entropy which it then does not use."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.uint64]:
        """The two words of 64 bits that Philox asks for."""
        return np.frombuffer(self._key, "<u8").astype(np.uint64)


KEY_BYTES = 32
_PERSON = b"coterie/secrets"
_ZEROS = memoryview(bytes(1 << 20))  # what is enciphered to get the keystream, piece by piece
_TAGGED = 1 << 30  # bytes that are tagged at once


class Secrets:
    """A node in the tree of secret streams, with a key of 256 bits.

    A stream is read once: the same node always gives the same stream from its beginning, so whoever draws twice for two
    purposes takes two children. Under one key, noise that is drawn twice cancels in a difference; so what noise is put
    on is part of its name (``upon``).

    Children come from keyed BLAKE2b, the stream from AES-256 in counter mode under a key of its own (twice as fast
    here as ChaCha20). The key is in no repr and no pickle: a secret that reaches a log, a checkpoint or another
    process is none.
    """

    __slots__ = ("_key", "reproducible")

    def __init__(self, key: bytes, reproducible: bool) -> None:
        require(len(key) == KEY_BYTES, "len(key)", len(key), f"must be {KEY_BYTES} bytes; use Secrets.from_entropy()")
        self._key, self.reproducible = key, reproducible

    @staticmethod
    def from_entropy() -> Secrets:
        """A root that nobody can know, from the operating system."""
        return Secrets(os.urandom(KEY_BYTES), reproducible=False)

    @staticmethod
    def seeded(seed: int) -> Secrets:
        """For simulation alone: noise from it hides nothing from whoever has the seed, and ``reproducible`` says so."""
        require(seed >= 0, "seed", seed, "must be a whole number of at least 0")
        root = hashlib.blake2b(f"coterie/{seed}".encode(), digest_size=KEY_BYTES, person=_PERSON)
        return Secrets(root.digest(), reproducible=True)

    @staticmethod
    def behind(rng: Rng) -> Secrets:
        """For simulation alone: secrets that follow from a root of draws, and are none to whoever has that."""
        root = hashlib.blake2b(b"secrets", key=rng.key, digest_size=KEY_BYTES, person=_PERSON)
        return Secrets(root.digest(), reproducible=True)

    def child(self, *names: str | int) -> Secrets:
        """The node of this name below; ("a", "b") and "a/b" are different names, and so are 1 and "1"."""
        return Secrets(self._derived("child", *names), self.reproducible)

    def upon(self, *numbers: NDArray[np.generic]) -> Secrets:
        """The node for noise on these numbers: the same again on the same ones, and on all others unrelated noise.

        A run may be resumed twice, a process forked, a key copied, and data may have changed in between: without this,
        both releases had the same noise, and their difference would show the data. So they are two releases, each as
        private as the other, and what is made again as it was is still one. Numbers are told apart by GMAC under a key
        of its own: two of them share their noise with chance length / 2^128. Reproducible nodes stay what they
        are: they hide nothing, and a simulation's noise must not hang on the last bit of a float.
        """
        if self.reproducible:
            return self
        tagger = Cipher(algorithms.AES(self._derived("upon")), modes.GCM(bytes(12))).encryptor()
        shapes = ";".join(f"{part.dtype.str} {part.shape}" for part in numbers)  # how far each of them goes
        tagger.authenticate_additional_data(f"{shapes}\n".encode())
        for part in numbers:
            flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            for start in range(0, len(flat), _TAGGED):
                tagger.authenticate_additional_data(flat[start : start + _TAGGED].data)
        tagger.finalize()
        return self.child("upon", tagger.tag.hex())

    def stream(self) -> Keystream:
        """The node's stream, from its beginning, to be read piece by piece."""
        return Keystream(self._derived("stream"))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The first so many 64-bit words of the stream."""
        return self.stream().words(count)

    def bytes(self, count: int) -> bytes:
        """The first so many bytes of the stream."""
        return self.stream().read(count).tobytes()

    def number(self) -> int:
        """The first 256 bits of the stream as a whole number: a root for what takes one."""
        return int.from_bytes(self.bytes(KEY_BYTES), "little")

    def fingerprint(self) -> str:
        """By which the node is known again, and from which nothing of it follows."""
        return self._derived("fingerprint").hex()[:32]

    def coins(self, rate: float, count: int) -> NDArray[np.bool_]:
        """So many independent coins, each heads with probability ``rate``, or less by under 2^-64."""
        require(0 <= rate <= 1, "rate", rate, "must lie in [0, 1]")
        if rate == 1:
            return np.ones(count, dtype=np.bool_)
        return np.less(self.words(count), np.uint64(int(rate * 2**64)))

    def fine_coins(self, chance: int, count: int) -> NDArray[np.bool_]:
        """So many independent coins, each heads with probability chance / 2^128, exactly."""
        require(0 <= chance <= 1 << 128, "chance", chance, "must lie in 0..2^128")
        if chance == 1 << 128:
            return np.ones(count, dtype=np.bool_)
        high, low = (np.uint64(word) for word in divmod(chance, 1 << 64))
        words = self.words(count)
        shown = np.less(words, high)
        tied = np.flatnonzero(words == high)
        shown[tied] = self.child("low").words(len(tied)) < low
        return shown

    def rng(self) -> Rng:
        """A root of draws for what takes an ``Rng``: 128 bits that nobody knows, unless this node is reproducible."""
        return Rng(self.bytes(16))

    def _derived(self, *names: str | int) -> builtins.bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=KEY_BYTES, person=_PERSON)
        for name in names:
            text = str(name).encode()
            digest.update(b"%c%d:" % (b"is"[isinstance(name, str)], len(text)) + text)
        return digest.digest()

    def __repr__(self) -> str:
        return f"Secrets(reproducible={self.reproducible})"

    def __reduce__(self) -> NoReturn:
        raise NotPermitted("Secrets cannot be pickled or copied; hand the party that needs one a child, or a new root")


class Keystream:
    """A stream of a node that is being read; what was read does not come again."""

    SPARE = 15  # bytes that a buffer must have beyond those that are asked for

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, buffer: NDArray[np.uint8], count: int) -> None:
        """The next ``count`` bytes into the front of the buffer."""
        view = buffer.data
        for start in range(0, count, len(_ZEROS)):
            size = min(len(_ZEROS), count - start)
            self._cipher.update_into(_ZEROS[:size], view[start : start + size + self.SPARE])

    def read(self, count: int) -> NDArray[np.uint8]:
        """The next ``count`` bytes."""
        buffer = np.empty(count + self.SPARE, dtype=np.uint8)
        self.fill(buffer, count)
        return buffer[:count]

    def word(self) -> int:
        """The next 64 bits."""
        return int(self.words(1)[0])

    def words(self, count: int) -> NDArray[np.uint64]:
        return self.read(8 * count).view("<u8").astype(np.uint64, copy=False)

    def __reduce__(self) -> NoReturn:
        raise NotPermitted("Keystream cannot be pickled or copied; read it where it was made")
