"""The terminal says what the report says."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

from rich.console import Console
from tests.report.sample import sample

from coterie.measure.findings import AuditResult, Check, Limit
from coterie.measure.intervals import Interval
from coterie.report.terminal import HEAT, gate_table, leak_tables, show


def printed(result: AuditResult, width: int = 160, colour: bool = False) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None))
    return out.getvalue()


def test_all_scores_and_verdicts_are_printed() -> None:
    text = printed(sample())
    for one in sample().findings:
        assert ("not scored" if math.isnan(one.score) else f"{one.score:.3f}") in text
        assert one.verdict.value in text
    for words in ("(control)", "undecided", "≈ 11 more seeds", "✕ violated", "✓ holds", "○ not refuted",
                  "no formal guarantee", "ε ≥ 2.410", "claims nothing", "✕ broken", "Gate: failed",
                  "Left out: cGAN", "the federation as configured", "ledger: ε = 2.861 spent",
                  "Left out: model acquisition under secure sums (the server needs"):  # fmt: skip
        assert words in text


def test_the_headline_is_the_last_word() -> None:
    lines = printed(sample(), width=1000).strip().splitlines()
    assert lines[-1].strip() == sample().headline


def test_one_table_for_each_family() -> None:
    assert len(leak_tables(sample())) == len({one.family for one in sample().findings})


def test_the_colour_follows_the_leakage() -> None:
    worst = replace(sample().findings[0], interval=Interval(1.0, 0.9, 1.0))
    least = replace(worst, interval=Interval(0.5, 0.4, 0.6))

    def ground(style: str) -> str:
        red, green, blue = (int(style.split("#")[2][place : place + 2], 16) for place in (0, 2, 4))
        return f"48;2;{red};{green};{blue}"

    assert ground(HEAT[-1]) in printed(replace(sample(), findings=[worst]), colour=True)
    assert ground(HEAT[-1]) not in printed(replace(sample(), findings=[least]), colour=True)
    assert ground(HEAT[0]) in printed(replace(sample(), findings=[least]), colour=True)


def test_names_are_neither_markup_nor_codes() -> None:
    finding = replace(sample().findings[0], attack="[red]x[/red] \x1b[2J \x9b2J\r")
    text = printed(replace(sample(), findings=[finding]))
    assert "[red]x[/red]" in text
    assert not re.search("[\x1b\x9b\r]", text)


def test_it_fits_eighty_columns() -> None:
    assert max(len(line) for line in printed(sample(), width=80).splitlines()) <= 80


def test_an_empty_audit_and_a_passing_gate() -> None:
    empty = AuditResult("nothing", {}, [], [])
    assert "No attack was run." in printed(empty)
    assert "Gate" not in printed(empty)
    passing = replace(
        empty, checks=[Check(Limit("min_accuracy", 0.9, at_least=True), Interval(0.95, 0.93, 0.97), True, "enough")]
    )
    assert "Gate: passed" in str(gate_table(passing).title)
