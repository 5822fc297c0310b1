"""Our bytes in a message of Flower's."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict

Flowers = Any
"""An object of Flower's, which only this package looks into."""

RECORD, BODY = "coterie", "body"
ARRIVES = 20.0  # seconds for the contents of a message that was announced
PATIENCE = 0.05  # seconds before an object that is still on its way is asked for again


def wrapped(body: bytes) -> Flowers:
    return RecordDict({RECORD: ConfigRecord({BODY: body})})


def unwrapped(message: Flowers) -> bytes:
    """Empty if there is none of ours in it."""
    if not message.has_content() or RECORD not in message.content.config_records:
        return b""
    found = message.content.config_records[RECORD].get(BODY, b"")
    return found if isinstance(found, bytes) else b""
