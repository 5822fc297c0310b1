"""What passes between the server and one client: sealed end to end, for one run and one place in it.

Flower's signature covers a timestamp alone, and its link keeps messages in the clear. So a message is enciphered and
authenticated (AES-256-GCM) under a key that only the two ends can compute, and the tag covers the run, the message's
number and which way it goes, and with the body the round and the kind. The link sees sizes and times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from secrets import token_bytes

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coterie.errors import NotPermitted
from coterie.wire.codec import decode, encode

MARK = b"CTE1"
RUN, NUMBER, NONCE, TAG = 16, 8, 12, 16
HEADER = len(MARK) + 1 + RUN + NUMBER
DOWN, UP = b"d", b"u"


@dataclass(frozen=True)
class Letter:
    """A message as its receiver reads it."""

    run: bytes
    number: int  # in the run, from this server to this client; an answer has its request's
    said: object


@dataclass(frozen=True)
class Channel:
    """Between the server and one client."""

    key: bytes

    def seal(self, way: bytes, run: bytes, number: int, said: object) -> bytes:
        head = MARK + way + run + number.to_bytes(NUMBER, "big")
        nonce = token_bytes(NONCE)
        return head + nonce + AESGCM(self._of(run)).encrypt(nonce, encode(said), head)

    def open(self, way: bytes, data: bytes) -> Letter:
        """Raises ``NotPermitted`` for what the other end has not written, and ``InvalidInput`` for what is no value."""
        run, number = self.address(way, data)
        head, nonce = data[:HEADER], data[HEADER : HEADER + NONCE]
        try:
            body = AESGCM(self._of(run)).decrypt(nonce, data[HEADER + NONCE :], head)
        except InvalidTag as error:
            raise NotPermitted(
                f"message {number} of run {run.hex()[:8]} was changed, or is not from who it says"
            ) from error
        return Letter(run, number, decode(body))

    @staticmethod
    def address(way: bytes, data: bytes) -> tuple[bytes, int]:
        """Of which run it says to be, and its number there; nobody has vouched for them yet."""
        if len(data) < HEADER + NONCE + TAG or data[: len(MARK) + 1] != MARK + way:
            raise NotPermitted(f"message of {len(data)} bytes is none of ours")
        return data[len(MARK) + 1 : -NUMBER + HEADER], int.from_bytes(data[HEADER - NUMBER : HEADER], "big")

    def _of(self, run: bytes) -> bytes:
        return hashlib.blake2b(run, key=self.key, digest_size=32, person=b"coterie run key").digest()
