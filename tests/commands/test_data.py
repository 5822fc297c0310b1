"""The list of data sets fits on a screen, and each says where it comes from."""

from __future__ import annotations

from typer.testing import CliRunner

from coterie.commands.cli import app
from coterie.data.catalogue import SOURCES


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], env={"COTERIE_DATA": ""})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_is_seen_at_once_and_names_everything() -> None:
    output = shown()
    assert len(output.splitlines()) <= 40
    assert all(f" {name} " in output for name in SOURCES)


def test_one_data_set_says_where_it_is_published_and_which_files_it_wants() -> None:
    output = shown("celeba")
    assert SOURCES["celeba"].published_at in output
    assert "img_align_celeba/000001.jpg" in output
    assert "missing" in output
