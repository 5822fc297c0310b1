"""Every command explains itself: no argument and no option without a word."""

from __future__ import annotations

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from coterie.commands.cli import app

COMMANDS = get_command(app)


@pytest.mark.parametrize("name", sorted(COMMANDS.commands))  # type: ignore[attr-defined]
def test_each_parameter_has_its_help_on_the_screen(name: str) -> None:
    command: click.Command = COMMANDS.commands[name]  # type: ignore[attr-defined]
    shown = " ".join(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"}).output.split())
    for parameter in command.params:
        words = getattr(parameter, "help", None)
        assert words, f"{name}: {parameter.name}"
        assert words.split("`")[0].strip()[:40] in shown
