"""Plain values as TOML, which the standard library reads and does not write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping


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
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)
