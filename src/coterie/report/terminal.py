"""The verdict in the terminal, in at most forty lines: the report's first part, with its words and numbers."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from coterie.measure.claims import Outcome
from coterie.measure.findings import AuditResult, Defended, counted
from coterie.measure.headline import brief_of, broken, judged
from coterie.measure.intervals import Interval
from coterie.measure.verdicts import Verdict
from coterie.report.markup import printable
from coterie.report.values import (
    GLYPHS,
    attack_name,
    attainable,
    capital,
    defence_name,
    guarantee,
    heat_level,
    ledger,
    limit_value,
    lower_bound,
    more_needed,
    number,
    seconds,
    size,
)

HEAT = (
    "#1f1a14 on #f5f3ee",
    "#1f1a14 on #fbe2ba",
    "#1f1a14 on #f8cb88",
    "#1f1a14 on #f0a952",
    "#1f1a14 on #de822f",
    "#ffffff on #ab4d17",
    "#ffffff on #762b10",
)
"""The report's colours, ink and ground together, so that they read the same on dark and light terminals."""

LINES = 40
FAMILIES, DEFENCES, LIMITS, FRONTIERS = 9, 2, 3, 2  # of each, as many are told in full

OUTCOMES = {Outcome.HOLDS: ("✓", "blue"), Outcome.NOT_REFUTED: ("○", ""), Outcome.VIOLATED: ("✕", "bold red")}


def picture(result: AuditResult) -> str:
    """What ``show`` prints, as an SVG that asks nobody for a font."""
    screen = Console(record=True, width=120, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    show(result, screen)
    drawn = screen.export_svg(title="coterie audit", unique_id="coterie")
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL).replace("Fira Code", "monospace")


def show(result: AuditResult, console: Console) -> None:
    """Every part has its share of the lines; what does not fit is counted, and is in the report.

    A terminal's lines are cut at its edge; what goes to a file or another program is whole.
    """
    parts = [*leak_lines(result), *defence_lines(served(result)), *gate_lines(result), *_asides(result)]
    cut = console.is_terminal
    for line in [_text(result.title, "bold"), *parts]:
        console.print(line, no_wrap=True, overflow="ellipsis" if cut else None, soft_wrap=not cut)
    console.print(_text(brief_of(result), "bold"))


def leak_lines(result: AuditResult) -> list[Text]:
    """What each kind of attack is judged by, on the federation as it is launched; stress tests last."""
    lines = []
    for family, one in judged(result):
        said, more = f"{GLYPHS[one.verdict]} {one.verdict.value}", more_needed(one)
        score = f"{one.measure} {number(one.score)} ({_span(one.interval)}; chance {one.chance:.3g})"
        score += f", {more} to decide" if more else ""
        style = HEAT[heat_level(one.leakage) or 0] if one.verdict is not Verdict.NOT_SCORED else "dim"
        unscored = one.verdict is Verdict.NOT_SCORED
        told = _text(f" {attack_name(one)}, {one.unscored_for}" if unscored else f" {score}, {attack_name(one)}", "dim")
        name = _text(f" {capital(family)}{' (stress)' if one.stress else ''}:")
        lines.append(Text() + _text(f"{said:<14}", style) + name + told)  # the colour ends with the verdict
    return _section("What is learnt", lines, FAMILIES, "attack")


def served(result: AuditResult) -> list[Defended]:
    """The configured federation under its defence, undefended, and under what else was compared."""
    rows = result.as_configured or result.defended
    first = [one for one in rows if one.defence == result.launched]
    return [*first, *(one for one in rows if one.defence != result.launched)]


def defence_lines(found: Sequence[Defended]) -> list[Text]:
    """A few lines a defence: whom it serves how well, what it costs, what it promises, and what it could."""
    lines = []
    for one in found:
        head = f"{capital(defence_name(one.defence))}: {one.utility_measure} {number(one.utility.estimate)}"
        cost = f"  {seconds(one.seconds)} a round, {size(one.upload_bytes)} up, {size(one.memory_bytes)} memory"
        parts = [_text(f"{head} ({_span(one.utility)}) ") + _beside(one), _text(cost, "dim"), *_promise(one)]
        lines.append(Text("\n").join(parts))
    return _section("What it serves, costs and promises", lines, DEFENCES, "defence")


def _beside(one: Defended) -> Text:
    if one.learnt_nothing:
        return _text(f"learnt nothing: no sure gain over {', '.join(one.unbeaten)}", "bold")
    known = ", ".join(f"{name} {number(known.estimate)}" for name, known in one.baselines.items())
    return _text(f"beside {known}" if known else "", "dim")


def _promise(one: Defended) -> list[Text]:
    promise = one.promise
    if promise is None:
        return [_text("  claims nothing", "dim")]
    glyph, style = OUTCOMES[promise.outcome]
    spent = "" if one.spent is None else f"; {ledger(one.spent)}"
    bound = "" if promise.lower_bound is None else f"; {lower_bound(promise)}"
    within = attainable(promise)
    more = [_text(f"  attainable, as Claims in the report says: {within}", "dim")] if within else []
    if promise.claims_nothing and not promise.refuted_by:
        return [_text(f"  {guarantee(promise)}: no epsilon is claimed{bound}{spent}", "dim"), *more]
    return [_text(f"  {glyph} {promise.verdict}: {guarantee(promise)}{bound}{spent}", style), *more]


def gate_lines(result: AuditResult) -> list[Text]:
    """Broken limits first."""
    lines = []
    for check in sorted(result.checks, key=lambda check: check.passed):
        mark = _text("✓ met", "blue") if check.passed else _text("✕ broken", "bold red")
        lines.append(Text() + mark + _text(f" {check.limit}: {limit_value(check)}, {check.reason}"))
    if broke := broken(result):  # whatever the limits are, that is no pass
        told = _text(f" {counted(len(broke), 'attack')}: what is not known passes nothing")
        lines.insert(0, Text() + _text("✕ broken", "bold red") + told)
    return _section("Gate: passed" if result.passed else "Gate: failed", lines, LIMITS, "limit")


def _asides(result: AuditResult) -> list[Text]:
    lines = [_text(found.recommendation) for found in result.frontiers[:FRONTIERS]]
    if result.suspected:
        lines.append(_text(f"What the attacks suspect: {counted(len(result.suspected), 'list')} in the report", "dim"))
    left_out = [one for one in result.left_out if not one.failed]
    for kind, those, style in (("Broke", broken(result), "bold red"), ("Left out", left_out, "dim")):
        if those:
            lines.append(_text(f"{kind}: {len(those)}, such as {those[0]} ({those[0].reason})", style))
    if result.warned:
        name, text = next(iter(result.warned.items()))
        lines.append(_text(f"Warned: {len(result.warned)}, such as {name} ({text})", "dim"))
    return lines


def _section(title: str, lines: Sequence[Text], most: int, thing: str) -> list[Text]:
    """Nothing where there is nothing to tell."""
    more = len(lines) - most
    rest = [_text(f"and {counted(more, f'more {thing}')} in the report", "dim")] if more > 0 else []
    return [_text(title, "bold"), *lines[:most], *rest] if lines else []


def _span(measured: Interval) -> str:
    """The interval in few letters."""
    if math.isnan(measured.low):
        return "no interval"
    return f"{number(measured.low)}–{number(measured.high)}"


def _text(text: str, style: str = "") -> Text:
    """Never as markup: a name may hold brackets, or codes that would move the cursor."""
    return Text(printable(text), style)
