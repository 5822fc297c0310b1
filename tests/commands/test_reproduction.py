"""`coterie reproduce` in the terminal and as a page, on a table whose values are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from coterie.commands import reproduction
from coterie.errors import InvalidInput
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Recipe, Settings
from coterie.run.jobs import Job, Result


def square(number: int) -> Result:
    return {"value": number * number}


def jobs(settings: Settings) -> Sequence[Job]:
    return [Job(f"square{seed}", square, {"number": seed}) for seed in settings.seeds]


def lines(settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
    return [Line(f"square of {seed}", 4.0, results[f"square{seed}"]["value"]) for seed in settings.seeds]


def claims(found: Sequence[Line]) -> Sequence[Claim]:
    return [Claim("squares are four", all(line.ours == 4 for line in found), "by hand")]


TOY = Recipe("toys", "I", "Squares", jobs, lines, claims, differs="smaller numbers", unit="points")
OTHER = Recipe("toys", "II", "Never run", lambda settings: [Job("never", square, {"number": 0})], lines)
SETTINGS = Settings(seeds=(2, 3))


@pytest.fixture(autouse=True)
def only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "all_recipes", lambda: [TOY, OTHER])


def test_ours_stands_beside_the_published_values_on_a_page(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "toys.html"
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path, page, "coterie reproduce toys --table I")
    text = page.read_text()
    for words in ("square of 3", "9.000", "+5.000", "does not hold", "smaller numbers", "Published, points"):
        assert words in text
    assert "coterie reproduce toys --table I" in text
    assert "1 table: of 1 claim, 0 hold, 1 does not, 0 are undecided." in text


def test_without_a_paper_the_page_has_all_tables_that_were_run(tmp_path: Path) -> None:
    page = tmp_path / "all.html"
    with pytest.raises(InvalidInput, match="tables that have been run=0 at quick scale"):
        reproduction.show_list(SETTINGS, tmp_path, page)
    assert not page.exists()
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    reproduction.show_list(SETTINGS, tmp_path, page)
    assert "Squares" in page.read_text()
    assert "Never run" not in page.read_text()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == kept  # nothing was run again
