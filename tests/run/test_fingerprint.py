"""A result names its code: an edited constant anywhere below a job's function makes it anew, and nothing else does."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import InvalidInput
from coterie.run import fingerprint
from coterie.run.fingerprint import code, import_statements, leans_on
from coterie.run.jobs import Ahead, Job, Kept, run_jobs

SOURCES = {
    "__init__": "",
    "work": """
        from toyland.rules import scaled
        from toyland.plugins.finder import found
        def work(value):
            from toyland import late
            return {"value": scaled(value) + late.SHIFT + found()}
        """,
    "rules": "from . import constants\ndef scaled(value): return constants.FACTOR * value\n",
    "constants": "FACTOR = 3\nUNUSED = 1\n",
    "late": "SHIFT = 0\n",
    "elsewhere": "FACTOR = 9\n",
    "plugins/__init__": "",
    "plugins/finder": """
        import pkgutil
        from importlib import import_module
        from toyland import plugins
        def found():
            names = [one.name for one in pkgutil.iter_modules(plugins.__path__) if one.name != "finder"]
            return sum(import_module(f"toyland.plugins.{name}").VALUE for name in names)
        """,
    "plugins/zero": "VALUE = 0\n",
}


def forget() -> None:
    fingerprint.forget()
    for name in [name for name in sys.modules if name.startswith("toyland")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def toyland(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of its own, as a job's code is."""
    import textwrap

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second of the first would go unnoticed
    for name, text in SOURCES.items():
        path = tmp_path / "toyland" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    yield tmp_path / "toyland"
    forget()


def job() -> Job:
    forget()
    return Job("toy", importlib.import_module("toyland.work").work, {"value": 2})


def run(folder: Path) -> tuple[Any, list[str]]:
    told: list[str] = []
    found = run_jobs([job()], folder, processes=1, progress=lambda done, total, words: told.append(words))
    return found["toy"]["value"], [words for words in told if not isinstance(words, Ahead)]


@pytest.mark.parametrize(
    ("edited", "text", "value"),
    [
        ("constants", "FACTOR = 5\n", 10),  # two imports down
        ("late", "SHIFT = 1\n", 7),  # inside a function
        ("plugins/zero", "VALUE = 10\n", 16),  # found by a search
    ],
)
def test_an_edited_constant_makes_the_result_anew(
    toyland: Path, tmp_path: Path, edited: str, text: str, value: int
) -> None:
    assert run(tmp_path / "kept") == (6, ["", "toy"])
    assert run(tmp_path / "kept") == (6, ["1 result is from before"])
    (toyland / f"{edited}.py").write_text(text)
    assert run(tmp_path / "kept") == (value, ["1 result is from before the code changed, and made anew", "toy"])
    assert run(tmp_path / "kept") == (value, ["1 result is from before"])


def test_a_new_plug_in_counts_and_a_module_that_nobody_imports_does_not(toyland: Path, tmp_path: Path) -> None:
    run(tmp_path / "kept")
    (toyland / "elsewhere.py").write_text("FACTOR = 10\n")
    assert not Kept.of([job()], tmp_path / "kept").stale
    (toyland / "plugins" / "one.py").write_text("VALUE = 1\n")
    assert run(tmp_path / "kept")[0] == 7


def test_work_without_a_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"source of module 'nowhere\.at_all' is not found; put the job's function"):
        code("nowhere.at_all")


# -- our own package --------------------------------------------------------------------------------------------------

MODULES = sorted(Path(coterie.__file__).parent.rglob("*.py"))


def test_the_fast_reader_misses_no_import_statement() -> None:
    """The oracle parses whole files."""

    def names(nodes: Iterator[Any]) -> set[str]:
        return {ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)}

    for path in MODULES:
        text = path.read_text()
        assert names(ast.walk(ast.parse(text))) <= names(iter(import_statements(text))), path


@pytest.mark.parametrize(
    "text",
    [
        "if x: import a",
        "x = 1; import a",
        "import a, \\\n  b",
        "from a \\\n  import b",
        "from a import (  # why\n  b,\n  c,\n)",
        "from a import (  # why (or not)\n  b,\n)",
        "\tfrom a import b",
    ],
)
def test_imports_may_be_written_in_many_ways(text: str) -> None:
    whole = ast.parse(text if not text.startswith("\t") else f"if x:\n{text}")
    expected = [ast.unparse(node) for node in ast.walk(whole) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in import_statements(text)] == expected


@pytest.mark.parametrize(
    ("module", "below"),
    [
        (
            "coterie.audit.work",
            {"coterie.audit.families.model_acquisition", "coterie.protocols.sattler", "coterie.seal.ckks"},
        ),
        ("coterie.run.training", {"coterie.flow.guard", "coterie.learn.params", "coterie.wire.codec"}),
    ],
)
def test_names_in_strings_and_plug_ins_are_followed(module: str, below: set[str]) -> None:
    found = leans_on(module)
    assert below <= found
    assert not [name for name in found if name.startswith(("coterie.report", "coterie.commands", "coterie.run.jobs"))]


def test_every_digest_is_one_of_all_sources_below(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], str] = fingerprint.source
    before = code("coterie.run.training")
    fingerprint.code.cache_clear()
    monkeypatch.setattr(fingerprint, "source", lambda name: real(name) + ("#" if name == "coterie.errors" else ""))
    assert code("coterie.run.training") != before
    fingerprint.code.cache_clear()
