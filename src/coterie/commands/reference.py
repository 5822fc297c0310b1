"""The page of reference, made from the classes: ``python -m coterie.commands.reference > docs/reference.md``."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from coterie.audit.case import AuditOptions, RecordedOptions, Subject
from coterie.audit.family import built_in
from coterie.audit.gate import known_limits
from coterie.config import registry
from coterie.config.registry import Target
from coterie.data.catalogue import SOURCES
from coterie.learn.sgd import Local

HEAD = """\
# Reference of options

Made from the classes by `python -m coterie.commands.reference > docs/reference.md`; a test keeps it so. What the tables
are for is in [configuration](configuration.md) and [audit](audit.md). An option without a default must be given.
Paper 000 is Kim et al. (RAID 2023), on property inference; paper 004 is Shi et al., on clustering by cosine similarity.
"""
NOT_FROM_FILES = ("self", "args", "kwargs", "known", "of")  # what a builder is handed by us


def page() -> str:
    parts = [HEAD, "## The file\n", _fields(Subject)]
    parts += ["## `[data]`\n", "`folder` says where data sets lie, for all of them.\n"]
    parts += _kinds(SOURCES)
    for title, names in (
        ("partition", registry.PARTITIONS),
        ("model", registry.MODELS),
        ("trainer", registry.TRAINERS),
        ("defence", registry.DEFENCES),
    ):
        parts.append(f"## `[{title}]`\n")
        parts += _kinds({name: registry.look_up(name, names, title) for name in names})
    parts += ["### `stack`\n", "Several defences at once: `members` is a list of tables like `[defence]`.\n"]
    parts += ["## `local`, of every trainer\n", _options(Local)]
    parts += ["## `[audit]`\n", _fields(AuditOptions)]
    for name, field in AuditOptions.model_fields.items():
        if isinstance(field.default, BaseModel):
            parts += [f"### `[audit.{name}]`\n", _fields(type(field.default))]
    parts += ["## `[recorded]`\n", _fields(RecordedOptions)]
    families = built_in()
    parts += ["## `families`\n", "\n".join(f"- `{one.name}`: {one.question}" for one in families) + "\n"]
    parts += ["## `[limits]`\n", ", ".join(f"`{name}`" for name in known_limits(families)) + "\n"]
    return "\n".join(parts)


def _kinds(targets: Mapping[str, Target]) -> Iterator[str]:
    for name, target in targets.items():
        yield f"### `{name}`\n"
        if about := _about(target):
            yield f"{about}\n"
        if options := _options(target):
            yield options


def _about(target: Target) -> str:
    """The first paragraph of what the class says of itself, or its word for lists."""
    text = inspect.getdoc(target) or ""
    first = re.sub(r"``", "`", text.split("\n\n")[0].replace("\n", " "))
    made_up = first.startswith(f"{getattr(target, '__name__', '')}(")  # what a dataclass without words says
    return str(getattr(target, "about", "")) if made_up or not first else first


def _options(target: Target) -> str:
    comments = _comments(target)
    rows = []
    for name, parameter in inspect.signature(target).parameters.items():
        if name not in NOT_FROM_FILES and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            default = parameter.default
            shown = "" if default is inspect.Parameter.empty else _value(default)
            rows.append((name, _type(parameter.annotation), shown, comments.get(name, "")))
    return _table(rows)


def _fields(cls: type[BaseModel]) -> str:
    comments = _comments(cls)
    rows = []
    for name, field in cls.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is PydanticUndefined else _value(default)
        rows.append((name, _type(cls.__annotations__.get(name) or field.annotation), shown, comments.get(name, "")))
    return _table(rows)


def _comments(target: Target) -> dict[str, str]:
    """What stands beside the fields of a class in its source, those that it inherits included."""
    found: dict[str, str] = {}
    for cls in reversed(inspect.getmro(target)) if inspect.isclass(target) else ():
        if cls.__module__.startswith("coterie"):
            found |= dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", inspect.getsource(cls), re.M))
    return found


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    if not rows:
        return ""
    lines = ["| option | type | default | |", "| --- | --- | --- | --- |"]
    for name, kind, default, words in rows:
        cells = (f"`{name}`", f"`{kind}`" if kind else "", f"`{default}`" if default else "", words)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return "" if annotation is inspect.Parameter.empty else re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def _value(value: object) -> str:
    """As a file would say it; objects by their fields that differ from nothing."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, BaseModel):
        return "" if not hasattr(value, "kind") else repr(value.kind)
    if isinstance(value, list | tuple | dict):
        return repr(value) if len(repr(value)) < 60 else "..."
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"
    return "..." if "object at" in repr(value) or "factory" in repr(value) else repr(value)


if __name__ == "__main__":
    print(page(), end="")
