"""The examples in the documents run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from coterie.audit.case import parse
from coterie.deploy.policy import ClientFile
from coterie.deploy.running import Job

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"  # whose blocks go on from each other


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.S | re.M)
    return [
        (f"{page.name}-{number}", text)
        for page in PAGES
        if page != TUTORIAL
        for number, text in enumerate(pattern.findall(page.read_text()))
    ]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks("python")])
def test_python_blocks_run(text: str) -> None:
    exec(compile(text, "example", "exec"), {})


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks("toml")])
def test_toml_blocks_are_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(text)
    if "[policy]" in text:  # a deployed client's own file
        assert ClientFile.read(tmp_path / "file.toml").policy.trainers
        return
    if "[deploy]" in text:  # a deployed run's
        assert Job.read(tmp_path / "file.toml").config.trainers
        return
    config = parse(tomllib.loads(text), "example")
    for choice in config.trainers:
        config.protocol(choice)


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tutorial_runs_from_top_to_bottom() -> None:
    parts = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), re.S | re.M)
    assert len(parts) >= 6
    names: dict[str, object] = {}
    for number, text in enumerate(parts):
        exec(compile(text, f"tutorial, block {number}", "exec"), names)
