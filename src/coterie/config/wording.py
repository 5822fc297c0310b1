"""What is wrong with a value of a file, in words: where it is, what it says, and what it must be."""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from coterie.errors import InvalidInput, nearest

ALTERNATIVE = re.compile(r"(Choice|str|int|float|bool|none|.*[\[(].*)")  # of a union, which no file names
MUST = {
    "missing": "is missing; say it",
    "missing_argument": "is missing; say it",
    "model_type": "must be a table of names and values",
    "dataclass_type": "must be a table of names and values",
    "dict_type": "must be a table of names and values",
    "tuple_type": "must be a list, as in [1, 2]",
    "list_type": "must be a list, as in [1, 2]",
    "path_type": "must be a path in quotes",
    "string_type": "must be a word in quotes",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_parsing_size": "must be a number with fewer digits",
    "string_pattern_mismatch": "must begin with a letter or digit, and hold these, spaces and . + , = ( ) - _ alone",
}


def complaint(error: ValidationError, where: str, table: Any = None) -> str:
    """What is wrong, as ``where thing=value remedy``; of several things, what is farthest inside."""
    problem = max(error.errors(), key=lambda one: len(one["loc"]))
    kind, said = problem["type"], problem["msg"]
    parts = [str(part) for part in problem["loc"]]
    place = ".".join(part for part in parts if not ALTERNATIVE.fullmatch(part))
    if kind == "value_error":
        named = f"{where} {place}:" if place else where.removesuffix(" option").removesuffix(":") + ":"
        return f"{named} {said.removeprefix('Value error, ')}"
    if kind == "extra_forbidden" and (known := _names(table, parts[:-1])):
        return f"{where} {place!r} {nearest(parts[-1], known)}"
    must = MUST.get(kind, said.replace("Input should", "must", 1))
    value = "" if kind.startswith("missing") else f"={reprlib.repr(problem.get('input'))}"
    return f"{where} {place}{value} {must}"


def _names(table: Any, path: Sequence[str]) -> list[str]:
    """What the table at the end of this path of keys may say; nothing where that is not known."""
    for part in path:
        inner = _alternatives(_hints(table).get(part)) if table else ()
        table = next((one for one in inner if inspect.isclass(one) and get_type_hints(one)), None)
    fields: Mapping[str, object] = getattr(table, "model_fields", None) or getattr(table, "__dataclass_fields__", {})
    return list(fields)


def deeper_than(levels: int, value: object) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return bool(inner) and (levels == 0 or any(deeper_than(levels - 1, one) for one in inner))


def refuse_flags(target: Any, values: Mapping[str, object], where: str) -> None:
    """True and false are no numbers, and would pass as 1 and 0; nor is NaN: in a table, and in the tables within it.

    Nor may those hold a name that nothing reads: pydantic passes over what a dataclass does not have.
    """
    hints = _hints(target)
    for name, value in values.items():
        alternatives = list(_alternatives(hints.get(name)))
        if isinstance(value, bool) and {int, float} & {*alternatives} and bool not in alternatives:
            raise InvalidInput(f"{where} {name}={value} must be a number")
        if value != value:
            raise InvalidInput(f"{where} {name}=nan is no number; say one")
        tables = [one for one in alternatives if inspect.isclass(one) and get_type_hints(one)]
        if isinstance(value, Mapping) and len(tables) == 1:
            known = getattr(tables[0], "__dataclass_fields__", value)
            for key in value:
                if key not in known:
                    raise InvalidInput(f"{where} '{name}.{key}' {nearest(key, known)}")
            refuse_flags(tables[0], value, f"{where} {name}")


@cache
def _hints(target: Any) -> dict[str, Any]:
    return get_type_hints(target)


def _alternatives(hint: Any) -> Iterator[Any]:
    """A type, and whatever it is a union, a list or a table of."""
    yield hint
    for inner in get_args(hint):
        yield from _alternatives(inner)
