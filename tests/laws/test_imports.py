"""Imports run downward: wire, learn and data, flow, protocols and defences, then what is built from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
LEAVES = {"errors"}  # anybody's
BELOW_FLOW = {"wire", "learn", "data"}
RING = BELOW_FLOW | {"flow"}
ON_TOP = {"run", "audit", "recipes", "cli", "cluster"}  # may import everything

MAY_IMPORT = {
    "errors": set(),
    "wire": {"wire"},
    "learn": {"learn"},
    "data": {"data", "learn", "wire"},
    "flow": RING,
    "protocols": RING | {"protocols"},
    "defences": RING | {"defences"},
    "attacks": {"attacks", "wire", "learn", "data.auxiliary", "data.federation.Examples", "flow.rng"},
    "measure": RING | {"protocols", "defences", "attacks", "measure"},
    "report": RING | {"measure", "report", "recipes", "audit.result"},
    "deploy": RING | {"protocols", "defences", "deploy", "run"},
}
"""A room, and the rooms (or modules, or names in them) that it may import."""


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module.name below coterie) of everything that is imported at run time, also inside functions."""
    tree = ast.parse(path.read_text())
    only_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
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
    return any(module == room or module.startswith(room + ".") for room in rooms | LEAVES)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_run_downward(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sorted(ROOT.rglob("*.py"))
        if room_of(path) == room
        for line, module in imports(path)
        if not allowed(module, MAY_IMPORT[room])
    ]
    assert wrong == []


def test_every_room_has_a_rule_or_stands_on_top() -> None:
    rooms = {room_of(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms - set(MAY_IMPORT) <= ON_TOP


def test_the_reader_finds_what_it_should(tmp_path: Path) -> None:
    """Late and plain imports count; those for types alone do not."""
    source = tmp_path / "module.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import coterie.flow.rng\n"
        "if TYPE_CHECKING:\n    from coterie.flow.guard import Turn\n"
        "def late():\n    from coterie.protocols.ifca import Ifca\n    from coterie import measure\n"
    )
    assert [module for _, module in imports(source)] == ["flow.rng", "protocols.ifca.Ifca", "measure"]
    assert not allowed("flow.guard", MAY_IMPORT["attacks"])
    assert not allowed("data.federation.Federation", MAY_IMPORT["attacks"])
    assert allowed("data.federation.Examples", MAY_IMPORT["attacks"])
