"""Imports run downward. Every room has a rule, and imports for types alone obey it too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
ORDER = (
    "errors",
    "files",
    "rng",
    "wire",
    "learn",
    "data",
    "privacy",
    "flow",
    "protocols",
    "seal",
    "defences",
    "attacks",
    "measure",
    "config",
    "run",
    "estimators",
    "audit",
    "report",
    "audits",
    "recipes",
    "bench",
    "deploy",
    "commands",
    "__main__",
)
"""A room may import those before it, unless ``NARROWER`` says less."""

NARROWER = {
    "wire": {"errors", "files"},
    "data": {"errors", "files", "rng"},
    "seal": {"errors", "wire"},
    "protocols": {"errors", "rng", "wire", "learn", "data", "privacy", "flow"},
    "defences": {"errors", "files", "rng", "wire", "learn", "data", "privacy", "flow", "seal"},
    "attacks": {"errors", "rng", "wire", "learn", "data.auxiliary", "data.federation.Examples"},
    "report": {"errors", "measure"},
}
"""Rooms (or modules, or names in them): an attack reaches no simulator and no truth, a report nothing but findings."""


def may_import(room: str) -> set[str]:
    return NARROWER.get(room, set(ORDER[: ORDER.index(room)])) | {room, "__version__"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module.name below coterie) of everything that is imported, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the room"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("coterie."):
                yield node.lineno, name.removeprefix("coterie.")


def allowed(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


@pytest.mark.parametrize("room", ORDER)
def test_imports_run_downward(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sorted(ROOT.rglob("*.py"))
        if room_of(path) == room
        for line, module in imports(path)
        if not allowed(module, may_import(room))
    ]
    assert wrong == []


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in ROOT.rglob("*.py")} - {"__init__"}
    assert rooms == set(ORDER)


def test_the_reader_finds_what_it_should(tmp_path: Path) -> None:
    """Late and plain imports count, and those for types alone."""
    source = tmp_path / "module.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import coterie.rng\n"
        "if TYPE_CHECKING:\n    from coterie.flow.guard import Turn\n"
        "def late():\n    from coterie.protocols.ifca import Ifca\n    from coterie import measure\n"
    )
    found = {module for _, module in imports(source)}
    assert found == {"rng", "flow.guard.Turn", "protocols.ifca.Ifca", "measure"}
    assert not allowed("flow.guard", may_import("attacks"))
    assert not allowed("data.federation.Federation", may_import("attacks"))
    assert allowed("data.federation.Examples", may_import("attacks"))
    assert not allowed("audit.case", may_import("report"))


# -- clocks ------------------------------------------------------------------------------------------------------------

CLOCKS = {"time", "datetime"}
TELLS_TIME = {"flow/workers.py"}  # whose clock decides nothing but whether the parent still lives
COMPUTES = ("wire", "learn", "data", "privacy", "flow", "protocols", "seal", "defences", "attacks")


@pytest.mark.parametrize("room", COMPUTES)
def test_no_clock_has_a_say_in_what_is_computed(room: str) -> None:
    """A solver that ends when its seconds are over finds less on a busy machine: the same seed, and other bytes."""
    wrong = []
    for path in sorted((ROOT / room).rglob("*.py")):
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        named = {top for node in ast.walk(ast.parse(text)) for top in _imported(node)}
        if name not in TELLS_TIME and (named & CLOCKS or "time_limit" in text):
            wrong.append(name)
    assert wrong == []


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.partition(".")[0]
