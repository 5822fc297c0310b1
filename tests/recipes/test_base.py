"""What all recipes share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie.recipes
from coterie.data.sources.mnist import FashionMnist
from coterie.errors import InvalidInput
from coterie.recipes import all_recipes
from coterie.recipes.base import Recipe, files_of
from coterie.recipes.settings import Scale, Settings, parse_seeds
from coterie.run.fingerprint import leans_on

FOLDER = Path(coterie.recipes.__file__).parent
PACKAGES = sorted(path.parent for path in FOLDER.glob("*/__init__.py"))
RECIPES = all_recipes()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("5-7", (5, 6, 7)), ("2,4", (2, 4)), ("0-0", (0,)), ("7,", None)]
)
def test_seeds_are_counted_or_named(text: str, seeds: tuple[int, ...] | None) -> None:
    if seeds is None:
        with pytest.raises(InvalidInput, match="how many"):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "x", "7-5", "3,3", "-1", "1-", "1.5", "131"])
def test_seeds_that_name_none_or_one_twice_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("asked", "label", "wanted"),
    [
        ("MNIST, IFCA", "MNIST, IFCA", True),
        ("MNIST, IFCA", "Fashion-MNIST, IFCA", False),
        ("Fashion-MNIST", "Fashion-MNIST, IFCA", True),
        ("FL 5", "C CFL 5 clients", False),
        ("sigma 1", "sigma 10", False),
        ("sigma 1", "sigma 1.5", False),
        ("sigma 1", "sigma 1, trusted", True),
        ("gap", "iris, gap_rr", True),
        ("epsilon (", "epsilon (1)", True),
    ],
)
def test_rows_are_named_by_whole_words(asked: str, label: str, wanted: bool) -> None:
    assert Settings(rows=(asked,)).wants(label) is wanted


# -- the shape of a paper's package ------------------------------------------------------------------------------------


def test_each_paper_is_one_package_that_is_found_by_itself() -> None:
    assert {recipe.paper.replace("-", "_") for recipe in RECIPES} == {path.name for path in PACKAGES}
    for package in PACKAGES:
        inside = {path.stem for path in package.iterdir()}
        assert {"published", "runs", "tables", "claims"} <= inside, package


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.paper} {recipe.table}")
def test_jobs_lean_on_no_table_and_no_claim(recipe: Recipe) -> None:
    """Else mending a label would cost a day of runs."""
    works = {job.work.__module__ for scale in Scale for job in recipe.jobs(Settings(scale))}
    for module in works:
        shown = [
            name
            for name in leans_on(module)
            if name.startswith("coterie.recipes")
            and name.endswith(("published", "claims", "base", "entries", "accuracy"))
        ]
        assert shown == []
        assert "coterie.measure.reproduced" not in leans_on(module)


def attributes_of(tree: ast.AST, names: set[str]) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield node


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_nothing_is_read_back_out_of_words(path: Path) -> None:
    """No regular expressions, no note that is looked at, no method, part or search of a label or a claim's text."""
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert "re" not in imported
    words = {"label", "note", "text", "evidence"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(attr=attr)) | ast.Subscript(value=ast.Attribute(attr=attr)):
                assert attr not in words, f"{path}:{node.lineno} takes something from a {attr}"
            case ast.Compare():
                for one in attributes_of(node, words):
                    raise AssertionError(f"{path}:{node.lineno} decides by a {one.attr}")
            case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Attribute(attr=attr)]):
                assert attr not in words, f"{path}:{node.lineno} reads a number out of a {attr}"


def test_a_job_depends_on_the_files_of_its_data_set_alone(tmp_path: Path) -> None:
    assert files_of(FashionMnist(), None, "*") == ()
    for name in ("fashion_mnist/train.gz", "fashion_mnist/readme", "mnist/train.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(FashionMnist(), tmp_path, "*.gz") == (str(tmp_path / "fashion_mnist" / "train.gz"),)
