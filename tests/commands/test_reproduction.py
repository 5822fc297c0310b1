"""`coterie reproduce` in the terminal and as a page, on a table whose values are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from coterie.commands import reproduction
from coterie.errors import InvalidInput
from coterie.measure.reproduced import Claim, Decision, Estimate, Key, Row, Rows
from coterie.recipes.base import Recipe
from coterie.recipes.settings import Settings
from coterie.run.jobs import Job, Result


def square(number: int) -> Result:
    return {"value": number * number}


def jobs(settings: Settings) -> Sequence[Job]:
    return [Job(f"square{seed}", square, {"number": seed}) for seed in settings.seeds]


def rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
    return [
        Row(
            Key.of(number=seed),
            f"square of {seed}",
            4.0,
            Estimate(results[f"square{seed}"]["value"]),
            {"root": Estimate(seed, seed - 0.5, seed + 0.5)},
        )
        for seed in settings.seeds
    ]


def claims(found: Rows) -> Sequence[Claim]:
    return [Claim("squares are four", Decision.of(all(row.ours.value == 4 for row in found)), "by hand [sic]")]


TOY = Recipe("toys", "I", "Squares", jobs, rows, claims, differs="smaller numbers", unit="points")
OTHER = Recipe("toys", "II", "Never run", lambda settings: [Job("never", square, {"number": 0})], rows)
SETTINGS = Settings(seeds=(2, 3))


@pytest.fixture(autouse=True)
def only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "all_recipes", lambda: [TOY, OTHER])
    monkeypatch.setattr(reproduction, "console", Console(width=200))


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


def test_the_terminal_shows_named_values_and_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path)
    first = capsys.readouterr().out
    assert "from before" not in first
    assert "root 3 [2.5, 3.5]" in first
    assert "does not hold: squares are four (by hand [sic])" in first
    kept = next(iter(tmp_path.rglob("square2.json")))
    kept.write_text('{"made by": {"code": "other", "arguments": "", "data": ""}, "result": {"value": 5}}')
    reproduction.show_list(SETTINGS, tmp_path)
    assert "1 of 2" in capsys.readouterr().out
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path)
    told = capsys.readouterr().out
    assert (
        "1 result is from before; 1 result is from before the code and settings and data changed, and made anew" in told
    )
    assert "│ square of 2 │                 4 │            4 │" in told  # and not 5


def test_all_can_be_run_again(tmp_path: Path) -> None:
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path)
    kept = next(iter(tmp_path.rglob("square3.json")))
    right = kept.read_text()
    kept.write_text(right.replace('{"value": 9}', '{"value": 8}'))
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path)
    assert kept.read_text() != right  # it was taken as it is
    reproduction.reproduce("toys", "I", SETTINGS, tmp_path, fresh=True)
    assert kept.read_text() == right


def test_a_row_that_no_table_has_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Settings(seeds=(2,), rows=("cube",))
    empty = Recipe("toys", "I", "Squares", lambda settings: [], rows)
    monkeypatch.setattr(reproduction, "all_recipes", lambda: [empty])
    with pytest.raises(InvalidInput, match=r"row='cube' is in no row of toys, table I; name rows by words"):
        reproduction.reproduce("toys", "I", asked, tmp_path)
