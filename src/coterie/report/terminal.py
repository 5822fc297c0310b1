"""The verdict in the terminal: the same words and numbers as the report's first parts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.measure.claims import Outcome
from coterie.measure.findings import AuditResult, Defended, Finding, Suspected
from coterie.measure.intervals import Interval
from coterie.measure.verdicts import Verdict
from coterie.report.markup import printable
from coterie.report.values import (
    GLYPHS,
    capital,
    chance_of,
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

FIRST = 10  # answers of an attack on a recording that a terminal shows

OUTCOMES = {Outcome.HOLDS: ("✓", "blue"), Outcome.NOT_REFUTED: ("○", ""), Outcome.VIOLATED: ("✕", "bold red")}


def show(result: AuditResult, console: Console) -> None:
    console.print(_text(result.title, "bold"))
    for table in leak_tables(result):
        console.print(table)
    for suspected in result.suspected:
        console.print(answer_table(suspected))
    if rows := [*result.as_configured, *result.defended]:
        console.print(defence_table(rows))
    if result.checks:
        console.print(gate_table(result))
    for one in result.left_out:
        console.print(_text(f"Left out: {one} ({one.reason})", "dim"))
    for name, text in result.warned.items():
        console.print(_text(f"Warned: {name} ({text})", "dim"))
    for found in result.frontiers:
        console.print(_text(found.recommendation))
    console.print(_text(result.headline, "bold"))


def leak_tables(result: AuditResult) -> list[Table]:
    """Attacks against defences, one table for each family."""
    families = dict.fromkeys(one.family for one in result.findings)
    return [_leaks(family, [one for one in result.findings if one.family == family]) for family in families]


def _leaks(family: str, found: Sequence[Finding]) -> Table:
    defences = list(dict.fromkeys(one.defence for one in found))
    table = Table(title=_text(capital(family)), title_justify="left", show_lines=True, expand=False)
    table.add_column("attack", overflow="fold")
    for name in defences:
        table.add_column(_text(defence_name(name)), overflow="fold")
    rows: dict[tuple[str, str, str, bool], list[Finding]] = {}
    for one in found:
        rows.setdefault((one.attack, one.adversary, one.measure, one.control), []).append(one)
    for (attack, adversary, measure, control), here in rows.items():
        mark = " (control)" if control else ""
        label = _text(f"{attack}{mark}\n{adversary}\n{measure}, {chance_of(here)}", "dim" if control else "")
        table.add_row(label, *[_cells([one for one in here if one.defence == name]) for name in defences])
    return table


def _cells(found: Sequence[Finding]) -> Text:
    if not found:
        return _text("not run", "dim")
    return Text("\n").join(_cell(one) for one in found)


def _cell(one: Finding) -> Text:
    if one.verdict is Verdict.NOT_SCORED:
        return _text(one.verdict.value, "dim")
    level, more = heat_level(one.leakage), more_needed(one)
    lines = [
        f"{GLYPHS[one.verdict]} {number(one.score)}",
        _span(one.interval),
        one.verdict.value,
        *([more] * bool(more)),
    ]
    return _text("\n".join(lines), HEAT[level or 0])


def defence_table(found: Sequence[Defended]) -> Table:
    """Few columns of several lines each, so that it fits a terminal of 80."""
    table = Table(title="Defences: what they cost and what they promise", title_justify="left", show_lines=True)
    for name in ("defence", "utility", "cost", "claim and verdict"):
        table.add_column(name, overflow="fold")
    for one in found:
        cost = [f"{seconds(one.seconds)}", f"{size(one.upload_bytes)} up", f"{size(one.memory_bytes)} memory"]
        table.add_row(
            Text("\n").join([_text(defence_name(one.defence)), _text(one.family, "dim")]),
            _text(f"{one.utility_measure} {number(one.utility.estimate)}\n{_span(one.utility)}"),
            _text("\n".join(cost)),
            _promise(one),
        )
    return table


def _promise(one: Defended) -> Text:
    promise = one.promise
    if promise is None:
        return _text("claims nothing", "dim")
    glyph, style = OUTCOMES[promise.outcome]
    lines = [_text(f"{guarantee(promise)}; {lower_bound(promise)}"), _text(promise.guarantee.trust.value, "dim")]
    lines += [_text(proviso, "dim") for proviso in promise.guarantee.provisos]
    if one.spent is not None:
        lines.append(_text(ledger(one.spent)))
    return Text("\n").join([*lines, _text(f"{glyph} {promise.outcome.value}", style)])


def answer_table(found: Suspected) -> Table:
    title = f"{capital(found.attack)} by a {found.adversary} suspects"
    table = Table(title=_text(title), title_justify="left")
    for name in (found.question, found.answer):
        table.add_column(_text(name), overflow="fold")
    for question, answer in found.answers[:FIRST]:
        table.add_row(_text(question), _text(answer))
    if len(found.answers) > FIRST:
        table.caption = _text(f"and {len(found.answers) - FIRST} more in the report")
    return table


def gate_table(result: AuditResult) -> Table:
    title = "Gate: passed" if result.passed else "Gate: failed"
    table = Table(title=_text(title, "bold blue" if result.passed else "bold red"), title_justify="left")
    for name in ("limit", "measured", "result", "reason"):
        table.add_column(name, overflow="fold")
    for check in result.checks:
        said = _text("✓ met", "blue") if check.passed else _text("✕ broken", "bold red")
        table.add_row(_text(str(check.limit)), _text(limit_value(check)), said, _text(check.reason))
    return table


def _span(measured: Interval) -> str:
    """The interval in few letters."""
    return f"{number(measured.low)}–{number(measured.high)}" if measured.is_known else "no interval"


def _text(text: str, style: str = "") -> Text:
    """Never as markup: a name may hold brackets, or codes that would move the cursor."""
    return Text(printable(text), style)
