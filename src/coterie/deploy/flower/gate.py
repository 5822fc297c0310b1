"""Who gets through to the link's app, and to which of its paths. What is refused here has cost the link no memory."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    )
)
"""The only paths that are served to the world. Registering a node and fetching an app are not among them."""

SECRET_HEADER = "x-coterie-secret"
NOT_HERE, NOT_YOU, TOO_LONG = 404, 401, 413


def fleet_alone(whole: App, keys: frozenset[bytes], most_bytes: int) -> App:
    """What the world may reach of an app: the fleet's paths, with an enrolled node's signature, and nothing else.

    Flower looks at the signature when it has read the whole body; here nobody's body is read before that.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in FLEET:
            await _deny(scope, send, NOT_HERE)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        length = headers.get("content-length", b"")
        if not signed(headers, keys):
            await _deny(scope, send, NOT_YOU)
        elif not length.isdigit() or int(length) > most_bytes:
            await _deny(scope, send, TOO_LONG)
        else:
            await whole(scope, receive, send)

    return app


def signed(headers: Mapping[str, bytes], keys: frozenset[bytes]) -> bool:
    """Whether one of these keys has signed a time that is about now. Whose node it is about, Flower looks at."""
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        stamp = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        timely = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return timely and key in keys and bool(verify_signature(bytes_to_public_key(key), stamp, signature))
    except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
        return False


def with_secret(whole: App, secret: str) -> App:
    """The whole app for those on this machine who have the secret, whatever the path."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told = dict(scope.get("headers", ())).get(SECRET_HEADER.encode(), b"")
        if scope["type"] == "http" and not hmac.compare_digest(told, secret.encode()):
            await _deny(scope, send, NOT_YOU)
            return
        await whole(scope, receive, send)

    return app


async def _deny(scope: Scope, send: Send, status: int) -> None:
    """And nothing more is taken from whoever it is."""
    if scope["type"] == "http":
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
