"""Families of attacks that are not ours: named in a file, on the command line, by an installed package, or handed over.

A name is ``module:Family``, the path of a Python file, or of the kind that ``hand_over`` gives to an object. What a
family's source and the modules beside it say is part of what a kept result is known by.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from coterie.audit.family import Family, built_in
from coterie.errors import DataMissing, InvalidInput, nearest
from coterie.run import fingerprint

GROUP = "coterie.attacks"  # of entry points
HANDED = "handed:"
_handed: dict[str, Family] = {}  # by name; processes are forked and find them here


def hand_over(family: Family | type[Family]) -> str:
    """The name of a family that somebody has as an object, for as long as this process lasts."""
    name = f"{HANDED}{uuid4().hex}"
    _handed[name] = _instance(family, repr(family))
    _handed[name].target = name
    return name


def all_families(named: Sequence[str] = ()) -> list[Family]:
    """Ours, those of installed packages, and those that are named here."""
    targets = [*dict.fromkeys([*(point.value for point in entry_points(group=GROUP)), *named])]
    found = {family.name: family for family in built_in()}
    for target in targets:
        for family in load(target):
            if family.name in found:
                raise InvalidInput(f"attack {target!r} is called {family.name!r}, as another is; give it another name")
            found[family.name] = family
    return list(found.values())


def find(name: str, named: Sequence[str] = ()) -> Family:
    known = {family.name: family for family in all_families(named)}
    if name not in known:
        raise InvalidInput(f"family {name!r} {nearest(name, known)}")
    return known[name]


def load(target: str) -> list[Family]:
    """The families behind a name; of a file, all that it defines."""
    if target.startswith(HANDED):
        if target not in _handed:
            raise InvalidInput(f"attack {target!r} was handed to another process; hand it over again")
        return [_handed[target]]
    if target.endswith(".py"):
        module = _file(str(Path(target).resolve()))
        found = [_instance(one, target) for one in vars(module).values() if _is_family(one) and _of(one, module)]
        if not found:
            raise InvalidInput(f"attack {target!r} defines no subclass of coterie.audit.family.Family; write one")
    else:
        found = [copy(_instance(_attribute(target), target))]  # it may be one of ours, which has no target
    for family in found:
        family.target = target
    return found


def code_of(family: Family) -> str:
    """Of its source and of what that imports; of what was typed into a prompt nobody can say whether it has changed."""
    module = type(family).__module__
    fingerprint.forget()  # a file may have been edited since
    return fingerprint.code(module) if fingerprint.path_of(module) else family.target


def _attribute(target: str) -> object:
    name, colon, attribute = target.partition(":")
    if not (colon and name and attribute):
        raise InvalidInput(f"attack {target!r} must be module:Family or the path of a .py file")
    try:
        return getattr(import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"attack {target!r} cannot be imported ({error}); is it here or on PYTHONPATH, and spelt right?"
        ) from error


@cache
def _file(path: str) -> ModuleType:
    place = Path(path)
    if not place.is_file():
        raise DataMissing(f"attack {path} does not exist; name a Python file")
    spec = spec_from_file_location(place.stem, place)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"attack {path} is no Python file")
    if place.stem in sys.modules:
        raise InvalidInput(f"attack {path} is called as a module that is in use, {place.stem!r}; rename it")
    module = module_from_spec(spec)
    sys.modules[place.stem] = module
    sys.path.append(str(place.parent))  # for what lies beside it
    try:
        exec(compile(place.read_bytes(), path, "exec"), vars(module))  # not by bytecode, which may be of another edit
    except Exception as error:
        del sys.modules[place.stem]
        raise InvalidInput(f"attack {path} fails when it is imported: {type(error).__name__}: {error}") from error
    return module


def _is_family(thing: object) -> bool:
    kind = thing if isinstance(thing, type) else type(thing)
    return issubclass(kind, Family) and not getattr(kind, "__abstractmethods__", ())


def _of(thing: object, module: ModuleType) -> bool:
    """Whether a file defines it, and as a class: what it has imported is not its own."""
    return isinstance(thing, type) and thing.__module__ == module.__name__


def _instance(thing: object, target: str) -> Family:
    if not _is_family(thing):
        lacks = ", ".join(sorted(getattr(thing, "__abstractmethods__", ())))
        why = f"lacks {lacks}" if lacks else "is no subclass of coterie.audit.family.Family"
        raise InvalidInput(f"attack {target!r} {why}; docs/audit.md has an example")
    family = thing() if isinstance(thing, type) else thing
    assert isinstance(family, Family)
    missing = [name for name in REQUIRED if not isinstance(getattr(family, name, None), str)]
    if missing:
        raise InvalidInput(f"attack {target!r} does not say its {', '.join(missing)}; set it as text in the class")
    return family


REQUIRED: Iterable[str] = ("name", "limit", "paper", "question", "threat", "method")
