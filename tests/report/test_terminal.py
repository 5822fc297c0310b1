"""The terminal says what the report says."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

from rich.console import Console
from tests.report.sample import sample

from coterie.measure.findings import AuditResult, Check, Measured
from coterie.report.terminal import HEAT, gate_table, leak_tables, show


def printed(result: AuditResult, width: int = 160, colour: bool = False) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None))
    return out.getvalue()


def test_all_scores_and_verdicts_are_printed() -> None:
    text = printed(sample())
    for leak in sample().leaks:
        shown = "not measured" if math.isnan(leak.score.value) else f"{leak.score.value:.3f}"
        assert shown in text
    for words in ("(control)", "no leak found", "✕ violated", "✓ holds", "○ not refuted", "no formal guarantee",
                  "ε ≥ 2.410", "claims nothing", "✕ broken", "Gate: failed", "Left out: cGAN"):  # fmt: skip
        assert words in text


def test_the_headline_is_the_last_word() -> None:
    lines = printed(sample(), width=1000).strip().splitlines()
    assert lines[-1].strip() == sample().headline


def test_one_table_for_each_family() -> None:
    assert len(leak_tables(sample())) == len({leak.family for leak in sample().leaks})


def test_the_colour_follows_the_leakage() -> None:
    worst = replace(sample().leaks[0], score=Measured(1.0, 1.0, 1.0))
    least = replace(worst, score=Measured(0.5, 0.4, 0.6))

    def ground(style: str) -> str:
        red, green, blue = (int(style.split("#")[2][place : place + 2], 16) for place in (0, 2, 4))
        return f"48;2;{red};{green};{blue}"

    assert ground(HEAT[-1]) in printed(replace(sample(), leaks=[worst]), colour=True)
    assert ground(HEAT[-1]) not in printed(replace(sample(), leaks=[least]), colour=True)
    assert ground(HEAT[0]) in printed(replace(sample(), leaks=[least]), colour=True)


def test_names_are_neither_markup_nor_codes() -> None:
    leak = replace(sample().leaks[0], attack="[red]x[/red] \x1b[2J \x9b2J\r")
    text = printed(replace(sample(), leaks=[leak]))
    assert "[red]x[/red]" in text
    assert not re.search("[\x1b\x9b\r]", text)


def test_it_fits_eighty_columns() -> None:
    assert max(len(line) for line in printed(sample(), width=80).splitlines()) <= 80


def test_an_empty_audit_and_a_passing_gate() -> None:
    empty = AuditResult("nothing", {}, [], [])
    assert "no attack found a leak" in printed(empty)
    assert "Gate" not in printed(empty)
    passing = replace(empty, checks=[Check("min_accuracy = 0.9", 0.95, True, "0.95 is enough")])
    assert "Gate: passed" in str(gate_table(passing).title)
