"""Frozen values to bytes and back, without pickle: what is decoded can never run code.

A JSON header describes the structure; the tensors' and byte strings' contents follow it. The same value gives the
same bytes (a mapping keeps its order), so files and messages can be compared byte for byte. Only registered classes
can be decoded.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from coterie.errors import InvalidInput
from coterie.files import PART, require_room
from coterie.wire.typed import check_fields

MAGIC = b"COTERIE1"
DEEPEST = 64  # values within values
Memory = dict[str, Any]
"""What somebody keeps, by name: values that this codec knows."""

Node = Any
"""A piece of the JSON that describes a value."""

Class = TypeVar("Class", bound=type)
_classes: dict[str, type] = {}


def register(cls: Class) -> Class:
    """Class decorator: lets a frozen dataclass travel.

    On the wire a class is its bare name, so two of one name would be decoded as each other.
    """
    known = _classes.setdefault(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidInput(f"class name {cls.__name__!r} is already registered by {known.__module__}; choose another")
    _classes[cls.__name__] = cls
    return cls


def encode(value: object) -> bytes:
    return b"".join(encoded_parts(value))


def encoded_parts(value: object) -> list[bytes | memoryview]:
    """What ``encode`` joins, without copying what the value holds: to be written to a file one after the other."""
    blobs: list[bytes | memoryview] = []
    header = json.dumps(_pack(value, blobs), separators=(",", ":")).encode()
    return [MAGIC, len(header).to_bytes(8, "little"), header, *blobs]


def encoded_length(value: object) -> int:
    """How long ``encode`` would make it, without copying what it holds."""
    return sum(len(part) for part in encoded_parts(value))


def decode(data: bytes | memoryview) -> Any:
    """What ``encode`` was given. Of anything else an ``InvalidInput``, before memory is taken for what it promises."""
    view = memoryview(data)
    if bytes(view[:8]) != MAGIC:
        raise InvalidInput("data does not start with Coterie's mark; it was not written by this codec")
    end = 16 + int.from_bytes(view[8:16], "little")
    try:
        reader = _Reader(view[end:])
        value = _unpack(json.loads(_header(view, end)), reader, DEEPEST)
    except InvalidInput:
        raise
    except Exception as error:  # what others wrote may break any parser in any way
        raise InvalidInput(f"data of {len(view)} bytes is truncated or damaged ({error}); write it again") from error
    if reader.at != len(reader.view):
        raise InvalidInput(f"data has {len(reader.view) - reader.at} bytes too many; write it again")
    return value


def _header(view: memoryview, end: int) -> bytes:
    header = bytes(view[16:end])
    parts = sum(map(header.count, (b"[", b"{", b",")))
    require_room("data", len(view), PART * parts, f"it has {parts:,} parts; send fewer clients at a time")
    return header


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self.view, self.at = view, 0

    def take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self.view) - self.at:
            raise InvalidInput(f"data ends {self.at + count - len(self.view)} bytes early; write it again")
        self.at += count
        return self.view[self.at - count : self.at]


def _pack(value: object, blobs: list[bytes | memoryview]) -> Node:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"f": value.hex()}  # JSON has no NaN, and repr would do but hex is exact by definition
    if isinstance(value, torch.Tensor):
        array = value.detach().contiguous().numpy()
        blobs.append(_contents(array))
        return {"t": array.dtype.str, "s": list(array.shape)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        blobs.append(_contents(np.ascontiguousarray(value)))
        return {"n": value.dtype.str, "s": list(value.shape)}
    if isinstance(value, bytes):
        blobs.append(value)
        return {"b": len(value)}
    if isinstance(value, list):
        return [_pack(item, blobs) for item in value]
    if isinstance(value, tuple):
        return {"u": [_pack(item, blobs) for item in value]}
    if isinstance(value, Mapping):
        return {"d": [[_pack(key, blobs), _pack(item, blobs)] for key, item in value.items()]}
    return _pack_object(value, blobs)


def _contents(array: np.ndarray) -> memoryview:
    """The array's own memory: it is copied once, into the whole message."""
    return array.reshape(-1).view(np.uint8).data


def _pack_object(value: object, blobs: list[bytes | memoryview]) -> Node:
    name = type(value).__name__
    if name not in _classes or _classes[name] is not type(value):
        raise InvalidInput(f"{type(value).__qualname__} cannot travel; register it with coterie.wire.codec.register")
    names = [field.name for field in dataclasses.fields(_classes[name])]
    return {"c": name, "a": {field: _pack(getattr(value, field), blobs) for field in names}}


def _unpack(node: Node, reader: _Reader, deep: int) -> Node:
    if deep == 0:
        raise InvalidInput(f"data has values within values more than {DEEPEST} deep; it was not written by this codec")
    if node is None or isinstance(node, bool | int | str):
        return node
    if isinstance(node, list):
        return [_unpack(item, reader, deep - 1) for item in node]
    if "f" in node:
        return float.fromhex(node["f"])
    if "t" in node or "n" in node:
        dtype, shape = np.dtype(node.get("t") or node["n"]), node["s"]
        raw = reader.take(dtype.itemsize * math.prod(shape))
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
        return torch.from_numpy(array) if "t" in node else array
    if "b" in node:
        return bytes(reader.take(node["b"]))
    if "u" in node:
        return tuple(_unpack(item, reader, deep - 1) for item in node["u"])
    if "d" in node:
        return {_unpack(key, reader, deep - 1): _unpack(item, reader, deep - 1) for key, item in node["d"]}
    if node["c"] not in _classes:
        raise InvalidInput(f"class {node['c']!r} is unknown here; import the module that registers it first")
    fields = {name: _unpack(item, reader, deep - 1) for name, item in node["a"].items()}
    check_fields(_classes[node["c"]], fields)
    return _classes[node["c"]](**fields)
