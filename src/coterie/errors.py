"""The exception tree. Every error names the thing, the value and the remedy."""

from __future__ import annotations


class CoterieError(Exception):
    """Anything that Coterie raises on purpose."""


class InvalidInput(CoterieError, ValueError):
    """A value that a caller or a file passed in cannot be used."""


class NotPermitted(CoterieError, PermissionError):
    """A party reached for something that its threat model or its keys do not give it."""


class DataMissing(CoterieError, FileNotFoundError):
    """A data set is not where it was looked for."""


class RunDamaged(CoterieError):
    """A run folder cannot be read or continued."""


class Diverged(CoterieError, ArithmeticError):
    """Training produced NaN or infinity."""


def require(condition: bool, thing: str, value: object, remedy: str) -> None:
    """Raise ``InvalidInput`` as ``thing=value remedy`` unless the condition holds."""
    if not condition:
        raise InvalidInput(f"{thing}={value!r} {remedy}")
