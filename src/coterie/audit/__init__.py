"""The privacy audit: ``coterie.audit(...)`` of objects, and the rooms behind it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Door(ModuleType):
    """This package is called like a function by those who have objects; ``coterie.audits`` does it, a floor above."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("coterie.audits").audit(*args, **options)


sys.modules[__name__].__class__ = _Door
