"""Law. Privacy noise comes by one door: discrete, from secrets. No generator of floats stands in for it anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
ROOMS = ("defences", "privacy")
GENERATORS = {
    "randn", "randn_like", "rand", "rand_like", "normal", "normal_", "standard_normal", "laplace", "exponential_",
    "manual_seed", "default_rng", "torch", "Generator",
}  # fmt: skip
"""As methods or functions: ``rng.torch()`` hands out a generator with 32 bits of seed."""

COINS = {"defences/mingling/fuzzy_tags.py"}
"""Draws coins for decoys, not noise on numbers, from 128 bits of a secret root by a counter-based generator."""


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in GENERATORS:
                yield node.lineno, name


def files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=[str(path.relative_to(ROOT)) for path in files()])
def test_noise_is_drawn_from_secrets_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(calls(tree)) == []
    if str(path.relative_to(ROOT)) not in COINS:
        assert not any(
            isinstance(node, ast.Attribute) and node.attr == "numpy" and _of_rng(node) for node in ast.walk(tree)
        )


def _of_rng(node: ast.Attribute) -> bool:
    """``rng.numpy`` of a stream, and not of a tensor: streams are called so, or are children."""
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in ("child", "rng", "draws", "secrets", "seeded")
    return isinstance(value, ast.Name) and value.id in ("rng", "draws", "secrets", "coins")


def test_the_law_sees_what_it_forbids() -> None:
    broken = "noise = torch.randn(3, generator=turn.secrets(1).torch()); row.normal_(generator=g)"
    assert sorted(name for _, name in calls(ast.parse(broken))) == ["normal_", "randn", "torch"]
    assert len(files()) > 10
