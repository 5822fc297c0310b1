"""Before the link's app reads a byte: whoever is not enrolled costs it no memory, whatever they send."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.deploy.flower.gate import FLEET, fleet_alone, signed

ENROLLED, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
MOST = 1000


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


KEYS = frozenset([public(ENROLLED)])


def headers(key: ec.EllipticCurvePrivateKey, says: bytes = b"", minutes: float = 0.0) -> dict[str, bytes]:
    stamp = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat().encode()
    signature = key.sign(stamp, ec.ECDSA(hashes.SHA256()))
    coded = {"flwr-public-key": b64encode(says or public(key)), "flwr-signature": b64encode(signature)}
    return {**coded, "flwr-timestamp": stamp, "content-length": b"5"}


GOOD = headers(ENROLLED)
BAD: dict[str, Mapping[str, bytes]] = {
    "nothing": {},
    "another key": headers(STRANGER),
    "an enrolled key, which is public, and another's signature": headers(STRANGER, public(ENROLLED)),
    "of yesterday": headers(ENROLLED, minutes=60 * 24),
    "of tomorrow": headers(ENROLLED, minutes=-60 * 24),
    "another time than was signed": {**GOOD, "flwr-timestamp": datetime.now(UTC).isoformat().encode()},
    "no time": {**GOOD, "flwr-timestamp": b"now"},
    "a time without a zone": {**GOOD, "flwr-timestamp": b"2026-01-01T00:00:00"},
    "no text": {**GOOD, "flwr-timestamp": b"\xff\xfe"},
    "no key": {**GOOD, "flwr-public-key": b"!!"},
    "rubbish for a key": {**GOOD, "flwr-public-key": b64encode(b"rubbish")},
    "no signature": {**GOOD, "flwr-signature": b""},
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_no_enrolled_key_has_signed_just_now_is_nobodys(name: str) -> None:
    assert signed(GOOD, KEYS)
    assert not signed(BAD[name], KEYS)


def answered(told: Mapping[str, bytes], path: str = min(FLEET)) -> tuple[int, int]:
    """The status, and how often anything of the body was taken."""
    said: list[MutableMapping[str, Any]] = []
    taken = 0

    async def receive() -> MutableMapping[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b"a part", "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    async def whole(scope: object, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})

    scope = {"type": "http", "method": "POST", "path": path}
    pairs = [(name.encode(), value) for name, value in told.items()]

    async def ask() -> None:
        await fleet_alone(whole, KEYS, MOST)({**scope, "headers": pairs}, receive, send)

    asyncio.run(ask())
    return said[0]["status"], taken


@pytest.mark.parametrize("name", list(BAD))
def test_of_a_stranger_no_byte_is_read(name: str) -> None:
    assert answered(BAD[name]) == (401, 0)


def test_of_an_enrolled_node_no_more_is_read_than_it_may_send() -> None:
    assert answered(GOOD) == (200, 1)
    for length in (b"1001", b"", b"-1", b"1e3", b"\xb2"):
        assert answered({**GOOD, "content-length": length}) == (413, 0)
    without = {name: value for name, value in GOOD.items() if name != "content-length"}
    assert answered(without) == (413, 0)
    assert answered(GOOD, "/v1/control/start-run") == (404, 0)
