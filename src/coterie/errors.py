"""The exception tree. Every error names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES = 40  # in a message, of those that are known


class CoterieError(Exception):
    """Anything that Coterie raises on purpose."""


class InvalidInput(CoterieError, ValueError):
    """A value that a caller or a file passed in cannot be used."""


class Withheld(InvalidInput):
    """What is wrong shows in a client's own data: its owner reads all of it, and whoever asked reads ``told``."""

    def __init__(self, why: str, told: str) -> None:
        super().__init__(why)
        self.told = told


class NotPermitted(CoterieError, PermissionError):
    """A party reached for something that its threat model or its keys do not give it."""


class BudgetSpent(CoterieError):
    """A run would spend more privacy than its ledger has left."""


class DataMissing(CoterieError, FileNotFoundError):
    """A data set is not where it was looked for."""


class CannotWrite(CoterieError, OSError):
    """A file could not be written, for want of room or of permission."""


class RunDamaged(CoterieError):
    """A run folder cannot be read or continued."""


class Diverged(CoterieError, ArithmeticError):
    """Training produced NaN or infinity."""


class AttackGaveUp(UserWarning):
    """An adversary that takes part could not do in a round what it meant to, and its clients answered as they are."""


class NoiseDrowned(UserWarning):
    """Noise hid what a private result depends on, and a public guess stands in for it."""


def require(condition: bool, thing: str, value: object, remedy: str) -> None:
    """Raise ``InvalidInput`` as ``thing=value remedy`` unless the condition holds."""
    if not condition:
        raise InvalidInput(f"{thing}={value!r} {remedy}")


def require_count(thing: str, value: int, least: int, most: int) -> None:
    """A whole number from ``least`` to ``most``: what is beyond would take all time or memory, and nobody means it."""
    require(value >= least, thing, value, f"must be at least {least}")
    require(value <= most, thing, value, f"must be at most {most}")


def require_used(chosen: str, **idle: tuple[object, object]) -> None:
    """Of each option without effect beside what is chosen, what was given and its default, which must be the same."""
    for name, (given, default) in idle.items():
        require(given == default, name, given, f"has no effect with {chosen}; leave it out, or choose what it is for")


def nearest(name: object, known: Iterable[object]) -> str:
    """The remedy for an unknown name: the nearest known one, and the list."""
    names = sorted(str(one) for one in known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    return f"is unknown; {f'did you mean {close[0]!r}? ' if close else ''}Known: {shown or 'none'}"
