"""Findings as plain values and back: what jobs keep, and what ``--json`` prints.

The plain form of a dataclass is the mapping of its fields, and beside them of the properties that it names in
``DERIVED``, which are left aside on the way back. NaN becomes null, infinity a string, so that it is strict JSON.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TypeVar, Union, cast

from coterie.errors import InvalidInput

T = TypeVar("T")

Plain = Union[None, bool, int, float, str, list["Plain"], dict[str, "Plain"]]  # noqa: UP007  (it names itself)


def to_plain(value: object) -> Plain:
    if isinstance(value, Enum):
        return to_plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)] + list(getattr(value, "DERIVED", ()))
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None if math.isnan(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InvalidInput(f"value {value!r} of type {type(value).__name__} has no plain form; use numbers and texts")


def from_plain(kind: type[T], value: Plain) -> T:
    """The value of this type whose plain form it is."""
    return cast(T, _built(kind, value))


def _built(kind: object, value: Plain) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _built(next(one for one in arguments if one is not type(None)), value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _built(arguments[1], item) for key, item in _mapping(kind, value).items()}
    if origin is not None and issubclass(origin, Sequence):
        return _sequence(kind, arguments, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints, given = _hints(kind), _mapping(kind, value)
        names = [field.name for field in dataclasses.fields(kind) if field.name in given]
        return kind(**{name: _built(hints[name], given[name]) for name in names})
    if kind is float:
        return math.nan if value is None else float(cast(float, value))
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise InvalidInput(f"{value!r} is no {kind}; the result was written by another version: delete it")


@cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _mapping(kind: object, value: Plain) -> dict[str, Plain]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{value!r} is no {kind}; the result was written by another version: delete it")
    return value


def _sequence(kind: object, arguments: tuple[object, ...], value: Plain) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"{value!r} is no {kind}; the result was written by another version: delete it")
    if len(arguments) == 2 and arguments[1] is not Ellipsis:  # a pair, such as tuple[int, float]
        return tuple(_built(kind, item) for kind, item in zip(arguments, value, strict=True))
    return tuple(_built(arguments[0], item) for item in value)
