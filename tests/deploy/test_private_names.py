"""Every name of Flower's that is not public, in one package, and each of them there in the version that is pinned."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import coterie
from coterie.deploy import flower

ROOT = Path(coterie.__file__).parent
FLOWER = Path(flower.__file__).parent
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")


def imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of all that is taken from Flower."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr" and node.module
        for alias in node.names
    ]


def test_the_pinned_version_is_the_one_that_this_was_written_for() -> None:
    assert version("flwr") == "1.41.0"


@pytest.mark.parametrize(
    ("module", "name"), sorted({found for path in FLOWER.rglob("*.py") for found in imported(path.read_text())})
)
def test_each_name_is_there(module: str, name: str) -> None:
    assert hasattr(import_module(module), name), f"{module} has no {name}: deploy/flower must follow this version"


def test_no_module_elsewhere_touches_a_private_name() -> None:
    for path in ROOT.rglob("*.py"):
        if FLOWER in path.parents or "peers" in path.parts:
            continue
        private = [module for module, _ in imported(path.read_text()) if module not in PUBLIC]
        assert not private, f"{path} imports {private}"


def test_what_the_gate_serves_exists() -> None:
    """A path that Flower renames would be refused to everybody, and nobody would know why."""
    from flwr.superlink.routers.fleet.router import router

    served = {route.path for route in router.routes}
    assert served >= flower.FLEET
    assert not {path for path in flower.FLEET if "register" in path or "fab" in path or "run" in path}
