"""A recipe is data: a table or figure of a paper, its published values, and the jobs that give ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from coterie.errors import InvalidInput, nearest, require
from coterie.measure.reproduced import Claim, Line, Reproduction
from coterie.run.jobs import Job, Progress, Result, run_jobs, stored


class Scale(Enum):
    QUICK = "quick"  # ends within ten minutes on two cores; says what it reduces
    PAPER = "paper"  # the paper's own settings


@dataclass(frozen=True)
class Settings:
    """What a user chooses: how large, which seeds, which rows, and where data lie."""

    scale: Scale = Scale.QUICK
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ()  # only rows whose label holds one of these words; all if empty
    data: Path | None = None  # the folder with data sets

    def wants(self, row: str) -> bool:
        return not self.rows or any(word in row for word in self.rows)


def parse_seeds(text: str) -> tuple[int, ...]:
    """``"3"``: the first three; ``"5-9"``: from five to nine; ``"2,4"``: these two."""
    span = re.fullmatch(r"(\d+)-(\d+)", text)
    if text.isdecimal():
        seeds = tuple(range(int(text)))
    elif span:
        seeds = tuple(range(int(span[1]), int(span[2]) + 1))
    else:
        seeds = tuple(int(part) for part in text.split(",") if part.isdecimal())
        require(len(seeds) == text.count(",") + 1, "seeds", text, "must be how many (3), or which (5-9 or 2,4)")
    require(len(set(seeds)) == len(seeds) > 0, "seeds", text, "must name at least one, none twice, and the lower first")
    return seeds


@dataclass(frozen=True)
class Recipe:
    paper: str  # "mingledpie"
    table: str  # "III", "Fig 3"
    title: str
    jobs: Callable[[Settings], Sequence[Job]]
    lines: Callable[[Settings, Mapping[str, Result]], Sequence[Line]]
    claims: Callable[[Sequence[Line]], Sequence[Claim]] = lambda lines: ()
    needs: str = "embedded data"  # what data it wants
    differs: str = ""  # where it departs from the paper, for its output
    unit: str = ""
    shares: str = ""  # a name under which tables that use the same runs keep them together

    def state(self, settings: Settings, folder: Path) -> tuple[int, int]:
        """How many of its jobs have been run, and how many there are."""
        jobs = self.jobs(settings)
        return sum(stored(self.folder(settings, folder), job) is not None for job in jobs), len(jobs)

    def run(
        self, settings: Settings, folder: Path, *, processes: int | None = None, progress: Progress | None = None
    ) -> tuple[Sequence[Line], Sequence[Claim]]:
        """Ours beside the published values; jobs whose results are kept are not run again."""
        jobs = self.jobs(settings)
        results = run_jobs(jobs, self.folder(settings, folder), processes=processes, progress=progress)
        lines = self.lines(settings, results)
        return lines, self.claims(lines)

    def shown(self, settings: Settings, lines: Sequence[Line], claims: Sequence[Claim]) -> Reproduction:
        """What a page needs of it."""
        scale = settings.scale.value
        return Reproduction(self.paper, self.table, self.title, lines, claims, scale, self.differs, self.unit)

    def folder(self, settings: Settings, root: Path) -> Path:
        return root / self.paper / settings.scale.value / (self.shares or self.table.replace(" ", "-"))


def find(recipes: Sequence[Recipe], paper: str, table: str | None) -> list[Recipe]:
    """The recipes of a paper, or one of its tables."""
    papers = {recipe.paper for recipe in recipes}
    if paper not in papers:
        raise InvalidInput(f"paper {paper!r} {nearest(paper, papers)}")
    of_paper = [recipe for recipe in recipes if recipe.paper == paper]
    chosen = [recipe for recipe in of_paper if table is None or recipe.table.casefold() == table.casefold()]
    if not chosen:
        raise InvalidInput(f"table {table!r} of {paper} {nearest(table, [recipe.table for recipe in of_paper])}")
    return chosen
