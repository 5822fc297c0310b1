"""What is audited: a federation as configured, the defences to compare it with, and the limits it must meet."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coterie.errors import DataMissing, InvalidInput, nearest
from coterie.run.config import Choice, Config, validate


class Property(BaseModel):
    """What an adversary would like to know about a client's examples: one of their tags."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tag: str
    value: int = 1


class AuditOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    seeds: int = Field(default=3, ge=1)
    families: tuple[str, ...] = ()  # all that the data admit, if empty
    property: Property | None = None
    compare: tuple[Choice, ...] = ()  # further defences; each family has its own few if empty


class Subject(Config):
    """A configuration with the audit's own tables."""

    audit: AuditOptions = AuditOptions()
    limits: dict[str, float] = Field(default_factory=dict)


def parse(values: dict[str, Any], where: str) -> Subject:
    return validate(Subject, values, where)


def read(path: Path) -> Subject:
    try:
        return parse(tomllib.loads(path.read_text()), str(path))
    except FileNotFoundError as error:
        raise DataMissing(f"{path} does not exist; `coterie init` writes an example") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error


def label(choice: Choice) -> str:
    """A defence in a few words: its kind and options."""
    if not choice.options:
        return choice.kind
    return f"{choice.kind} ({', '.join(f'{name} {value}' for name, value in choice.options.items())})"


def check_limits(limits: dict[str, float], known: list[str]) -> None:
    for name in limits:
        if name not in known:
            raise InvalidInput(f"limit {name!r} {nearest(name, known)}")
