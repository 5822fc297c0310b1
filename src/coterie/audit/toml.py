"""Plain values as TOML, which the standard library reads and does not write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from coterie.errors import require

UNWRITABLE = "holds what is no Unicode, and TOML cannot say that; rename it"


def document(values: Mapping[str, object]) -> str:
    """Tables of plain values; what is None is left out, as TOML has no word for it."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    parts = [entries(plain), *(f"[{name}]\n{entries(table)}" for name, table in tables.items())]
    return "\n\n".join(part for part in parts if part) + "\n"


def entries(table: Mapping[str, object]) -> str:
    return "\n".join(f"{_key(key)} = {value_of(value)}" for key, value in table.items() if value is not None)


def value_of(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_key(key)} = {value_of(item)}" for key, item in value.items() if item is not None)
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_of(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf and nan, as TOML spells them too
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _text(name)


def _text(text: str) -> str:
    """JSON's strings are TOML's, but for one letter that must be escaped here, and half letters that cannot be."""
    require(text.isprintable() or text.encode(errors="replace").decode() == text, "text", text, UNWRITABLE)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
