"""What a result depends on: the code that made it, its arguments, and the files that it read.

The code is the source of a module and, transitively, of the modules of our own that it imports, constants and all.
Imports are read and not run. Those inside functions count, and so do modules that a string names
(``"coterie.protocols.ifca:Ifca"``) and all modules of a package that is searched for plug-ins. Libraries that are
installed are not followed, and comments are not told from code: editing one counts.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from coterie.errors import InvalidInput

OURS = "coterie"
APART = ("coterie.report", "coterie.commands", "coterie.run.jobs", "coterie.run.fingerprint")
"""What shows results or keeps them, and has no part in making them."""

SMALL = 1 << 16  # bytes: a file up to this is known by its content, a larger one by its size and time
MANY = (
    1000  # files of a folder that are looked at one by one; where there are more, the folder's own time speaks for them
)

LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
INSTALLED = [Path(one) for one in {*LIBRARIES, *site.getsitepackages(), site.getusersitepackages()}]

BEGINS = re.compile(r"(?:^|[:;])\s*((?:from|import)\s.*)")  # on a line that holds the word


@dataclass(frozen=True)
class Fingerprint:
    """Three digests, so that one can say which of the three has changed."""

    code: str
    arguments: str
    data: str

    @staticmethod
    def of(module: str, arguments: Mapping[str, object], files: Sequence[str]) -> Fingerprint:
        """Of what a function of this module makes of these arguments and files."""
        said = json.dumps(arguments, sort_keys=True, default=str)
        return Fingerprint(code(module), digest([said]), data(tuple(files)))

    @staticmethod
    def parse(values: object) -> Fingerprint | None:
        """None where a file says nothing of the kind."""
        if not isinstance(values, dict) or set(values) != {"code", "arguments", "data"}:
            return None
        return Fingerprint(**values)

    def changed(self, before: Fingerprint | None) -> str:
        """Which parts are others than they were; a result that does not say what made it was made by other code."""
        if before is None:
            return "code"
        now, then = asdict(self), asdict(before)
        return " and ".join(part for part in now if now[part] != then[part])


def digest(parts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode(errors="surrogateescape") + b"\0")
    return found.hexdigest()[:16]


def forget() -> None:
    """Read sources and files anew: a process that changes them itself asks for this."""
    for function in (code, imported_by, source, path_of, _package, _uninstalled, data):
        function.cache_clear()


# -- code --------------------------------------------------------------------------------------------------------------


@cache
def code(module: str) -> str:
    """Of the sources of a module and of all that it leans on; they are read once a process, as Python does."""
    return digest(f"{name}\0{source(name)}" for name in sorted(leans_on(module)))


def leans_on(module: str) -> set[str]:
    """The module itself and, transitively, those of its own package and of ours that it imports."""
    if path_of(module) is None:
        raise InvalidInput(
            f"the source of module {module!r} is not found; put the job's function into a file of its own"
        )
    packages = frozenset({OURS, top(module), *_beside(module)})
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and not any(f"{name}.".startswith(f"{room}.") for room in APART):
            found.add(name)
            waiting += imported_by(name, packages)
    return found


@cache
def imported_by(module: str, packages: frozenset[str]) -> frozenset[str]:
    """The modules of these packages that a module's source names.

    A package's ``__init__`` counts where something is taken from it, not where it is only on the way to a module.
    """
    text = source(module)
    found = set(re.findall(rf"""["']((?:{"|".join(sorted(packages))})(?:\.\w+)+)(?::\w+)?["']""", text))
    for node in import_statements(text):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            inside = {f"{base}.{alias.name}" for alias in node.names} if _followed(base, module, packages) else set()
            modules = {name for name in inside if path_of(name)}
            found |= modules | ({base} if modules != inside else set())
    if "iter_modules" in text:
        found |= set(_plug_ins(found | ({_home(module)} if re.search(r"(?<![.\w])__path__", text) else set())))
    return frozenset(name for name in found if _followed(name, module, packages) and path_of(name))


def _followed(name: str, module: str, packages: frozenset[str]) -> bool:
    """Its own package's modules and ours; of somebody's code all that is not installed, for that may be edited, too."""
    return top(name) in packages or (top(module) != OURS and _uninstalled(top(name)))


@cache
def _uninstalled(name: str) -> bool:
    """Whether a module of this name, or a package with an ``__init__`` or without, lies outside of Python's folders."""
    plain = _plain(name)
    homes = [*_package(name), *([plain] if plain else [])]
    return bool(homes) and not any(home.is_relative_to(place) for home in homes for place in INSTALLED)


def import_statements(text: str) -> list[ast.stmt]:
    """Cut out first and parsed then: to parse whole sources takes five times as long. Prose may look alike."""
    found: list[ast.stmt] = []
    lines = text.splitlines()
    for statement in [_statement(lines, number) for number, line in enumerate(lines) if "import" in line]:
        try:
            found += ast.parse(statement).body
        except SyntaxError:
            if "import (" in statement:  # a bracket in a comment was counted
                return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return found


def _statement(lines: Sequence[str], number: int) -> str:
    """The import statement whose word stands in this line, if one does; it may go on, or have begun a line above."""
    first, last = number, number
    while first and lines[first - 1].endswith("\\"):
        first -= 1
    begins = BEGINS.search(lines[first])
    if begins is None:
        return ""
    statement = "\n".join([begins[1], *lines[first + 1 : number + 1]])
    while last + 1 < len(lines) and (statement.count("(") > statement.count(")") or statement.endswith("\\")):
        last += 1
        statement += "\n" + lines[last]
    return statement


def top(name: str) -> str:
    return name.partition(".")[0]


def _beside(module: str) -> set[str]:
    """What lies beside a file that is in no package, and can be imported by it."""
    path = path_of(module)
    if path is None or "." in module or _is_package(module):
        return set()
    packages = {one.parent.name for one in path.parent.glob("*/__init__.py")}
    return {one.stem for one in path.parent.glob("*.py")} | packages


def _is_package(module: str) -> bool:
    path = path_of(module)
    return path is not None and path.name == "__init__.py"


def _home(module: str) -> str:
    return module if _is_package(module) else module.rpartition(".")[0]


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = _home(module).split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _plug_ins(names: Iterable[str]) -> Iterator[str]:
    """All modules of those names that are packages."""
    for name in names:
        path = path_of(name)
        if path is not None and path.name == "__init__.py":
            yield from (f"{name}.{one.stem}" for one in path.parent.glob("*.py") if one != path)
            yield from (f"{name}.{one.parent.name}" for one in path.parent.glob("*/__init__.py"))


@cache
def source(module: str) -> str:
    path = path_of(module)
    return "" if path is None else path.read_text()


@cache
def path_of(module: str) -> Path | None:
    """The module's file; None if there is none. Nothing is imported to find it."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded and loaded.endswith(".py"):
        return Path(loaded)
    for folder in _package(top(module)):
        path = folder.joinpath(*module.split(".")[1:])
        for one in (path / "__init__.py", path.with_suffix(".py")):
            if one.is_file():
                return one
    return _plain(module) if "." not in module else None


def _plain(name: str) -> Path | None:
    """A module that is one file, in no package."""
    try:
        spec = find_spec(name)
    except (ValueError, ImportError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _package(name: str) -> tuple[Path, ...]:
    """The folders of a package."""
    try:
        spec = find_spec(name)
    except ValueError:  # ``__main__``, where it is no file
        spec = None
    return tuple(map(Path, spec.submodule_search_locations or ())) if spec else ()


# -- data --------------------------------------------------------------------------------------------------------------


@cache
def data(paths: tuple[str, ...]) -> str:
    """Of files and folders by name."""
    return digest(stamp for path in paths for stamp in _stamps(Path(path)))


def _stamps(path: Path) -> Iterator[str]:
    if path.is_dir():
        entries = sorted(path.iterdir())
        if len(entries) > MANY:
            yield f"{path.name} {len(entries)} {path.stat().st_mtime_ns}"
        else:
            for entry in entries:
                yield from _stamps(entry)
    elif not path.exists():
        yield f"{path.name} missing"
    elif path.stat().st_size <= SMALL:
        yield f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    else:
        yield f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
