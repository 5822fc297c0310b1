"""Whether what was decoded is what its class declares: a message from others may hold anything at all."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from coterie.errors import InvalidInput

Hint = Any
"""A type as an annotation states it."""


def check_fields(cls: type, values: Mapping[str, object]) -> None:
    """Raise unless these are values for the fields of this dataclass."""
    for name, hint in _hints(cls).items():
        if name in values and not fits(values[name], hint):
            raise InvalidInput(f"{cls.__name__}.{name} of type {type(values[name]).__name__} must be {_words(hint)}")


@cache
def _hints(cls: type) -> dict[str, Hint]:
    known = typing.get_type_hints(cls)
    return {field.name: known[field.name] for field in dataclasses.fields(cls)}


def fits(value: object, hint: Hint) -> bool:
    """As ``isinstance``, and into containers. A whole number does for a float, and True for no number."""
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if hint is None:
        return value is None
    origin: Hint = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    return _is_a(value, origin or hint)


def _fits_tuple(value: tuple[object, ...], inner: tuple[Hint, ...]) -> bool:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(fits(item, inner[0]) for item in value)
    return len(value) == len(inner) and all(fits(item, hint) for item, hint in zip(value, inner, strict=True))


def _is_a(value: object, cls: type) -> bool:
    if isinstance(value, bool):
        return cls in (bool, object)
    return isinstance(value, int | float) if cls is float else isinstance(value, cls)


def _words(hint: Hint) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
