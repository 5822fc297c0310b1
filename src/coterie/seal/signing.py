"""Long-lived keys by which clients know each other again, whatever the server says (Bonawitz et al., CCS 2017).

A client signs its keys of a round, and what it was told of the round before it helps to open the sums. Others remember
the key that they saw first under its number, and take no other. Who is new can still be impersonated; after that the
server can neither put keys of its own in somebody's place nor tell two clients different things.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = 64


def verify_key(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, said: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(said)


def signed_by(key: bytes, signature: bytes, said: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, said)
    except (InvalidSignature, ValueError):
        return False
    return True
