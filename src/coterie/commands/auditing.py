"""What `coterie audit`, `frontier` and `init` do in a terminal."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from coterie.audit.case import Subject, parse, read
from coterie.audit.engine import admitted, audit
from coterie.audit.frontier import frontier
from coterie.audit.recorded import open_recording
from coterie.audit.starter import Fitted, Wishes, fitted
from coterie.errors import InvalidInput
from coterie.files import write_atomically
from coterie.measure.findings import AuditResult
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.report.markup import printable
from coterie.report.terminal import show
from coterie.run.jobs import Progress as JobProgress

console = Console(stderr=True)  # so that --json on standard output stays clean


def example_text() -> str:
    return resources.files("coterie.audit").joinpath("example.toml").read_text()


def subject_of(path: Path | None) -> Subject:
    return read(path) if path else parse(tomllib.loads(example_text()), "example.toml")


def init(path: Path, data: Path | None = None, wishes: Wishes | None = None) -> None:
    if path.exists():
        raise InvalidInput(f"{path} exists already; name another file")
    said = wishes.said if wishes else {}
    if data is None and said:
        raise InvalidInput(f"{shlex.join(said)} is about columns of what file? Name it: coterie init --data FILE ...")
    found = Fitted(example_text()) if data is None else fitted(data, wishes)
    write_atomically(path, found.text.encode())
    for chosen, why in found.chosen:
        console.print(Text(f"  {printable(chosen)}: {printable(why)}"), soft_wrap=True)
    what = "an example" if data is None else f"a federation of {data.name}"
    console.print(Text(printable(f"wrote {path}, {what}; look at it, then run `coterie audit {path}`")), soft_wrap=True)


@contextmanager
def progress_bar(what: str) -> Iterator[JobProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[newest]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None, newest="")
        yield lambda done, total, key: bar.update(task, completed=done, total=total, newest=key)


def run_audit(
    path: Path | None,
    folder: Path,
    *,
    recorded: Path | None = None,
    with_frontier: bool = False,
    as_json: bool = False,
    junit: Path | None = None,
    attacks: Sequence[str] = (),
    fresh: bool = False,
) -> int:
    """The exit code: 1 if a limit is broken."""
    subject = open_recording(recorded, path) if recorded else subject_of(path)
    subject = subject.attacked_by([*subject.audit.attacks, *attacks])
    place = folder / (f"{subject.name}-recorded" if recorded else subject.name)
    words = ["coterie", "frontier" if with_frontier else "audit", *([str(path)] if path else [])]
    words += ["--recorded", str(recorded)] if recorded else []
    words += [part for name in attacks for part in ("--attacks", name)]
    with progress_bar("attacking what was recorded" if recorded else "auditing") as tell:
        result = audit(subject, place / "jobs", command=shlex.join(words), progress=tell, fresh=fresh)
    if with_frontier:
        result = _with_frontiers(subject, result, place)
    report = place / "report.html"
    write_atomically(report, render(result).encode())
    write_atomically(place / "result.json", result.to_json().encode())
    if junit is not None:
        write_atomically(junit, junit_xml(result).encode())
    if as_json:
        print(result.to_json())
    else:
        show(result, Console())
    if kept := result.reproduce.get("kept results"):
        console.print(f"{kept}; --fresh runs all of them again", soft_wrap=True)
    console.print(f"report: {report}", soft_wrap=True)
    return 0 if result.passed else 1


def _with_frontiers(subject: Subject, result: AuditResult, place: Path) -> AuditResult:
    from dataclasses import replace

    families, _ = admitted(subject)
    with progress_bar("frontier") as tell:
        return replace(result, frontiers=frontier(subject, families, place / "jobs", progress=tell))
