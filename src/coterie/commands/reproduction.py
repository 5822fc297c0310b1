"""What `coterie reproduce` does: every table and figure with its state, or one of them, ours beside the published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.errors import require
from coterie.measure.reproduced import Claim, Line, Reproduction
from coterie.recipes import all_recipes
from coterie.recipes.base import Recipe, Settings, find
from coterie.report.html import render_reproductions
from coterie.run.folder import versions, write_atomically

console = Console()
NOT_BUILT = (
    "vertical (003): vertical k-means with Gap-RR",
    "cgan (004): reconstruction inside a cluster, adaptive LDP",
)


def show_list(settings: Settings, folder: Path, html: Path | None = None, command: str = "") -> None:
    """Every table and figure with its state; a page shows those that have been run."""
    table = Table(title=f"Tables and figures, {settings.scale.value} scale")
    for heading in ("paper", "table", "what it shows", "jobs run", "needs"):
        table.add_column(heading, overflow="fold")
    ready = []
    for recipe in all_recipes():
        done, total = recipe.state(settings, folder)
        ready += [recipe] if done == total > 0 else []
        colour = "green" if done == total else "yellow" if done else "dim"
        table.add_row(recipe.paper, recipe.table, recipe.title, f"[{colour}]{done} of {total}[/]", recipe.needs)
    console.print(table)
    console.print("Not built yet: " + "; ".join(NOT_BUILT))
    if html is not None:
        require(len(ready) > 0, "tables that have been run", 0, f"at {settings.scale.value} scale in {folder}; run one")
        found = [recipe.shown(settings, *recipe.run(settings, folder)) for recipe in ready]
        write_page(html, found, settings, command)


def reproduce(
    paper: str, table: str | None, settings: Settings, folder: Path, html: Path | None = None, command: str = ""
) -> None:
    found = []
    for recipe in find(all_recipes(), paper, table):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(f"{recipe.paper} {recipe.table}", total=None)

            def tell(done: int, total: int, key: str, bar: Progress = bar, task: object = task) -> None:
                bar.update(task, completed=done, total=total)  # type: ignore[arg-type]

            lines, claims = recipe.run(settings, folder, progress=tell)
        show(recipe, settings, lines, claims)
        found.append(recipe.shown(settings, lines, claims))
    if html is not None:
        write_page(html, found, settings, command)


def write_page(path: Path, found: Sequence[Reproduction], settings: Settings, command: str) -> None:
    facts = {
        "command": command,
        "scale": settings.scale.value,
        "seeds": ", ".join(map(str, settings.seeds)),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **versions(),
    }
    papers = ", ".join(dict.fromkeys(one.paper for one in found))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_reproductions(f"Reproduced: {papers}", found, facts).encode())
    console.print(f"page: {path}", soft_wrap=True)


def show(recipe: Recipe, settings: Settings, lines: Sequence[Line], claims: Sequence[Claim]) -> None:
    table = Table(title=f"{recipe.paper}, table {recipe.table}: {recipe.title} ({settings.scale.value} scale)")
    table.add_column("row")
    unit = f", {recipe.unit}" if recipe.unit else ""
    table.add_column(f"published{unit}", justify="right")
    table.add_column(f"ours{unit}", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("note", overflow="fold")
    for line in lines:
        interval = "" if math.isnan(line.low) else f"{line.low:.4g} to {line.high:.4g}"
        published = "" if line.published is None else f"{line.published:.4g}"
        table.add_row(line.row, published, f"{line.ours:.4g}", interval, line.note)
    console.print(table)
    for claim in claims:
        word = {True: "[green]holds[/]", False: "[red]does not hold[/]", None: "[yellow]undecided[/]"}[claim.holds]
        console.print(f"{word}: {claim.text} ({claim.evidence})")
    if recipe.differs:
        console.print(f"[dim]Where this departs from the paper: {recipe.differs}[/]")
