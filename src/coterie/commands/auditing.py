"""What `coterie audit`, `frontier` and `init` do in a terminal."""

from __future__ import annotations

import shlex
import tempfile
import tomllib
import webbrowser
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coterie.audit.case import MOST_SEEDS, Subject, parse, read
from coterie.audit.engine import admitted, audit
from coterie.audit.frontier import beside, frontier, sweeping
from coterie.audit.launching import Fitted
from coterie.audit.plugins import find
from coterie.audit.recorded import open_recording
from coterie.audit.starter import Wishes, fitted
from coterie.commands.progress import following
from coterie.errors import CannotWrite, InvalidInput, require_count
from coterie.files import write_atomically
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.report.markup import printable
from coterie.report.terminal import picture, show

console = Console(stderr=True)  # so that --json on standard output stays clean


def example_text() -> str:
    return resources.files("coterie.audit").joinpath("example.toml").read_text()


def subject_of(path: Path | None) -> Subject:
    if path is None:
        return parse(tomllib.loads(example_text()), "example.toml")
    subject = read(path)
    if subject.recorded:
        raise InvalidInput(f"{path} describes a recording; say where it is: coterie audit {path} --recorded FOLDER")
    return subject


def init(path: Path, data: Path | None = None, wishes: Wishes | None = None) -> None:
    if path.exists():
        raise InvalidInput(f"{path} exists already; name another file, as in `coterie init other.toml ...`")
    said = wishes.said if wishes else {}
    if data is None and wishes and wishes.epsilon is not None:
        raise InvalidInput("--epsilon is for data of yours. Name them: coterie init --data FILE --epsilon ...")
    if data is None and said:
        raise InvalidInput(f"{shlex.join(said)} is about columns of what file? Name it: coterie init --data FILE ...")
    found = Fitted(example_text()) if data is None else fitted(data, wishes)
    write_atomically(path, found.text.encode())
    for chosen, why in found.chosen:
        console.print(Text(f"  {printable(chosen)}: {printable(why)}"), soft_wrap=True)
    what = "an example" if data is None else f"a federation of {data.name}"
    console.print(Text(printable(f"wrote {path}, {what}; look at it, then run `coterie audit {path}`")), soft_wrap=True)


@dataclass(frozen=True)
class Changes:
    """What a command line changes in the file, for this time."""

    seeds: int | None = None
    families: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()  # of the user's own, beside the file's

    def made(self, subject: Subject) -> Subject:
        if self.seeds is not None:
            require_count("seeds", self.seeds, 1, MOST_SEEDS)
        subject = subject.attacked_by([*subject.audit.attacks, *self.attacks])
        named = tuple(find(name, subject.audit.attacks).name for name in self.families)
        said = {"seeds": self.seeds, "families": named or None}
        update = {name: value for name, value in said.items() if value is not None}
        return subject.model_copy(update={"audit": subject.audit.model_copy(update=update)})

    @property
    def words(self) -> list[str]:
        seeds = [] if self.seeds is None else ["--seeds", str(self.seeds)]
        options = {"--families": self.families, "--attacks": self.attacks}
        return seeds + [word for option, names in options.items() for name in names for word in (option, name)]


def _require_writable(place: Path) -> None:
    """Without a trace: what follows may still be refused."""
    there = next(one for one in (place, *place.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise CannotWrite(f"cannot write in {place}: {error.strerror}; name another folder with --folder") from error


@dataclass(frozen=True)
class Wanted:
    """In which form the result is wanted, and whether kept results will do."""

    as_json: bool = False
    junit: Path | None = None
    fresh: bool = False
    opened: bool = False
    svg: Path | None = None


def run_audit(
    path: Path | None,
    folder: Path,
    *,
    recorded: Path | None = None,
    with_frontier: bool = False,
    changes: Changes | None = None,
    wanted: Wanted | None = None,
) -> int:
    """The exit code: 1 if a limit is broken."""
    changes, wanted = changes or Changes(), wanted or Wanted()
    for name, file in (("junit", wanted.junit), ("svg", wanted.svg)):
        if file is not None and not file.parent.is_dir():
            raise InvalidInput(f"{name}={file}: there is no folder {file.parent}; make it first")
    subject = changes.made(open_recording(recorded, path) if recorded else subject_of(path))
    if with_frontier:  # or say so before an audit that takes minutes
        subject.rehearse()
        sweeping(subject, *admitted(subject))
    place = folder / (f"{subject.name}-recorded" if recorded else subject.name)
    _require_writable(place)  # or minutes of work would end in nothing
    words = ["coterie", "frontier" if with_frontier else "audit", *([str(path)] if path else []), *changes.words]
    words += ["--recorded", str(recorded)] if recorded else []
    with following("attacking what was recorded" if recorded else "auditing", console) as tell:
        result = audit(subject, place / "jobs", command=shlex.join(words), progress=tell, fresh=wanted.fresh)
    if with_frontier:
        families, _ = admitted(subject)
        with following("frontier", console) as tell:
            known = [*result.as_configured, *result.defended]
            found = frontier(subject, families, place / "jobs", progress=tell, known=known)
            result = beside(result, found)
    report = place / "report.html"
    write_atomically(report, render(result).encode())
    write_atomically(place / "result.json", result.to_json().encode())
    if wanted.junit is not None:
        write_atomically(wanted.junit, junit_xml(result).encode())
    if wanted.svg is not None:
        write_atomically(wanted.svg, picture(result).encode())
    if wanted.as_json:
        print(result.to_json())
    else:
        show(result, Console())
    if kept := result.reproduce.get("kept results"):
        console.print(f"{kept}; --fresh runs all of them again", soft_wrap=True)
    console.print(f"report: {report}", soft_wrap=True)
    if wanted.opened and not webbrowser.open(report.absolute().as_uri()):
        console.print("no browser could be opened; open the report by hand")
    return 0 if result.passed else 1
