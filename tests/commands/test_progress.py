"""Progress: a few plain lines where there is no terminal, count and time left where there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from coterie.audit.case import parse
from coterie.commands.auditing import Changes
from coterie.commands.progress import following, in_words
from coterie.errors import InvalidInput


def test_without_a_terminal_there_are_a_few_lines() -> None:
    out = io.StringIO()
    with following("auditing", Console(file=out, width=80)) as tell:
        for done in range(2, 101):
            tell(done, 100, "a job [of many]")
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "auditing: 2 of 100; a job [of many]"
    assert lines[5].startswith("auditing: 50 of 100; 0:00 passed, about 0:00 left; ")
    assert lines[-1].startswith("auditing: 100 of 100")


def test_in_a_terminal_of_80_count_and_time_left_are_there() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    with following("attacking what was recorded", console) as tell:
        tell(3, 40, "family/some very long words on a defence [and more] that would push everything else away-seed2")
    shown = [line for line in Text.from_ansi(out.getvalue()).plain.splitlines() if line.strip()]
    assert all(len(line) <= 80 for line in shown)
    assert "3/40" in shown[-1]
    assert "0:00:00" in shown[-1]


def test_a_command_line_changes_seeds_and_families() -> None:
    subject = Changes(1, ("poisoning",)).made(parse({}, "test"))
    assert subject.seeds == 1
    assert subject.audit.families == ("poisoning",)
    assert Changes(2, ("poisoning",)).words == ["--seeds", "2", "--families", "poisoning"]
    with pytest.raises(InvalidInput, match="family 'poison' is unknown; did you mean 'poisoning'"):
        Changes(families=("poison",)).made(subject)


def test_a_jobs_file_is_told_in_words() -> None:
    assert in_words("poisoning/robust__rule_krum_-3c8a07-seed0") == "poisoning: robust rule krum, seed 0"
    assert in_words("accuracy 0.5") == "accuracy 0.5"
