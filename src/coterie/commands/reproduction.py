"""What `coterie reproduce` does: every table and figure with its state, or one of them, ours beside the published."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.commands.progress import following
from coterie.errors import InvalidInput, require
from coterie.files import write_atomically
from coterie.measure.reproduced import Decision, Reproduction, Row
from coterie.recipes import all_recipes
from coterie.recipes.base import Recipe, find
from coterie.recipes.settings import Settings
from coterie.report.html import render_reproductions
from coterie.run.folder import versions

console = Console()


COLOURS = {Decision.HOLDS: "green", Decision.FAILS: "red", Decision.UNDECIDED: "yellow"}


def show_list(settings: Settings, folder: Path, html: Path | None = None, command: str = "") -> None:
    """Every table and figure with its state; a page shows those that have been run."""
    ready: list[Recipe] = []
    papers: dict[str, list[str]] = {}
    for recipe in all_recipes():
        settled = recipe.settled(settings)
        kept = recipe.kept(settled, folder)
        done, total = len(kept.results), len(recipe.jobs(settled))
        ready += [recipe] if done == total > 0 else []
        papers.setdefault(recipe.paper, []).append(_state(recipe.table, done, total, len(kept.stale)))
    table = Table(title=f"Tables and figures at {settings.scale.value} scale", title_justify="left", box=None)
    for heading in ("paper", "tables, and how many of their jobs have been run"):
        table.add_column(heading, overflow="fold")
    for paper, tables in papers.items():
        table.add_row(paper.replace("_", "-"), "  ".join(tables))
    console.print(table)
    console.print("`coterie reproduce PAPER --list` says what each shows and needs; --table T runs one", soft_wrap=True)
    if html is not None:
        require(len(ready) > 0, "tables that have been run", 0, f"at {settings.scale.value} scale in {folder}; run one")
        write_page(html, [recipe.run(recipe.settled(settings), folder) for recipe in ready], settings, command)


def _state(table: str, done: int, total: int, stale: int) -> str:
    if not done and not stale:
        return f"[dim]{table}[/]"
    colour = "green" if done == total else "yellow"
    old = f", {stale} of other code or data" if stale else ""
    return f"[{colour}]{table} ({done} of {total}{old})[/]"


def show_paper(paper: str, settings: Settings, folder: Path) -> None:
    """One paper's tables and figures: what each shows, needs, and how far it has been run."""
    table = Table(title=f"{paper} at {settings.scale.value} scale", title_justify="left", box=None)
    for heading in ("table", "what it shows", "jobs run", "needs"):
        table.add_column(heading, overflow="fold")
    for recipe in find(all_recipes(), paper, None):
        settled = recipe.settled(settings)
        done = len(recipe.kept(settled, folder).results)
        table.add_row(recipe.table, recipe.title, f"{done} of {len(recipe.jobs(settled))}", recipe.needs)
    console.print(table)


def reproduce(
    paper: str,
    table: str | None,
    settings: Settings,
    folder: Path,
    html: Path | None = None,
    command: str = "",
    fresh: bool = False,
) -> None:
    found = []
    chosen = find(all_recipes(), paper, table)
    if settings.rows and not any(recipe.jobs(recipe.settled(settings)) for recipe in chosen):
        raise InvalidInput(
            f"row={', '.join(settings.rows)!r} is in no row of {paper}{f', table {table}' if table else ''}; "
            "name rows by words as the table prints them, and --data where they need files"
        )
    for recipe in chosen:
        settled = recipe.settled(settings)
        before = "" if fresh else str(recipe.kept(settled, folder))
        if before:
            console.print(f"{recipe.paper} {recipe.table}: {before}", soft_wrap=True)
        with following(f"{recipe.paper} {recipe.table}", console) as tell:
            found.append(recipe.run(settled, folder, progress=tell, fresh=fresh))
        show(found[-1])
    if html is not None:
        write_page(html, found, settings, command)


def write_page(path: Path, found: Sequence[Reproduction], settings: Settings, command: str) -> None:
    facts = {
        "command": command,
        "scale": settings.scale.value,
        "seeds": ", ".join(map(str, settings.seeds)) if settings.seeds_are_given else "as many as each table needs",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **versions(),
    }
    papers = ", ".join(dict.fromkeys(one.paper for one in found))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_reproductions(f"Reproduced: {papers}", found, facts).encode())
    console.print(f"page: {path}", soft_wrap=True)


def show(found: Reproduction) -> None:
    table = Table(title=f"{found.paper}, table {found.table}: {found.title} ({found.scale} scale)")
    table.add_column("row")
    unit = f", {found.unit}" if found.unit else ""
    for heading in (f"published{unit}", f"ours{unit}", "95 % interval"):
        table.add_column(heading, justify="right")
    has_values, has_notes = (any(getattr(row, part) for row in found.rows) for part in ("values", "note"))
    for heading in (["beside it"] if has_values else []) + (["note"] if has_notes else []):
        table.add_column(heading, overflow="fold")
    for row in found.rows:
        further = ([beside(row)] if has_values else []) + ([row.note] if has_notes else [])
        interval = f"{row.ours.low:.4g} to {row.ours.high:.4g}" if row.ours.is_known else ""
        published = "" if row.published is None else f"{row.published:.4g}"
        table.add_row(row.label, published, f"{row.ours.value:.4g}", interval, *further)
    console.print(table)
    for claim in found.claims:
        word = f"[{COLOURS[claim.decision]}]{claim.decision.value}[/]"
        console.print(f"{word}: {escape(claim.text)} ({escape(claim.evidence)})")
    if found.differs:
        console.print(f"[dim]Where this departs from the paper: {found.differs}[/]")


def beside(row: Row) -> str:
    """What else was measured with it. Rich reads brackets as its own, so they are escaped."""
    return escape("; ".join(f"{name} {value}" for name, value in row.values.items()))
