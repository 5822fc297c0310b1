"""A recipe is data: a table or figure of a paper, its published values, and the jobs that give ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.data.sources.base import Source
from coterie.errors import InvalidInput, nearest
from coterie.measure.exhibits import Chart, Gallery
from coterie.measure.reproduced import Claim, Reproduction, Row, Rows
from coterie.recipes.settings import Settings
from coterie.run.jobs import Job, Kept, Progress, Result, run_jobs

AS_PUBLISHED, ROUNDS = "as_published", "rounds"


@dataclass(frozen=True)
class Recipe:
    paper: str  # "mingledpie"
    table: str  # "III", "Fig 3"
    title: str
    jobs: Callable[[Settings], Sequence[Job]]
    rows: Callable[[Settings, Mapping[str, Result]], Sequence[Row]]
    claims: Callable[[Rows], Sequence[Claim]] = lambda rows: ()
    needs: str = "embedded data"  # what data it wants
    differs: str = ""  # where it departs from the paper, for its output
    unit: str = ""
    shares: str = ""  # a name under which tables that use the same runs keep them together
    charts: Callable[[Settings, Mapping[str, Result]], Sequence[Chart | Gallery]] = lambda settings, results: ()
    takes: frozenset[str] = (
        frozenset()
    )  # which of the settings it knows that not every recipe does: AS_PUBLISHED, ROUNDS
    enough: int = 3  # so many seeds decide its claims, as a rule

    def settled(self, settings: Settings) -> Settings:
        """With as many seeds as it needs, if nobody said how many."""
        return settings if settings.seeds_are_given else replace(settings, seeds=tuple(range(self.enough)))

    def check(self, settings: Settings) -> None:
        """Refuse what it would not heed."""
        for name, value in ((AS_PUBLISHED, settings.as_published or None), (ROUNDS, settings.rounds)):
            if value is not None and name not in self.takes:
                raise InvalidInput(f"{name}={value} has no meaning for {self.paper}, table {self.table}; leave it out")

    def kept(self, settings: Settings, folder: Path) -> Kept:
        """Which of its results are there, and which of them are stale."""
        return Kept.of(self.jobs(settings), self.folder(settings, folder))

    def run(
        self,
        settings: Settings,
        folder: Path,
        *,
        processes: int | None = None,
        progress: Progress | None = None,
        fresh: bool = False,
    ) -> Reproduction:
        """Ours beside the published values; what is kept of the same code, arguments and data is not run again."""
        self.check(settings)
        place = self.folder(settings, folder)
        results = run_jobs(self.jobs(settings), place, processes=processes, progress=progress, fresh=fresh)
        return self.shown(settings, results)

    def shown(self, settings: Settings, results: Mapping[str, Result]) -> Reproduction:
        """The table that results of its jobs give."""
        rows = Rows.of(self.rows(settings, results))
        claims, charts = self.claims(rows), self.charts(settings, results)
        words = settings.words
        return Reproduction(self.paper, self.table, self.title, rows, claims, words, self.differs, self.unit, charts)

    def folder(self, settings: Settings, root: Path) -> Path:
        return root / self.paper / settings.scale.value / (self.shares or self.table.replace(" ", "-"))


def of_seeds(results: Mapping[str, Result], seeds: Sequence[int], key: Callable[[int], str]) -> dict[int, Result]:
    """The results of jobs that differ in their seed alone, by seed, as far as they are there."""
    return {seed: results[key(seed)] for seed in seeds if key(seed) in results}


def files_of(source: Source, data: Path | None, *names: str) -> tuple[str, ...]:
    """All that goes by these names where a data set is looked for: what a job that reads it depends on."""
    if data is None:
        return ()
    places = dict.fromkeys(place.resolve() for place in source.searched(data))
    return tuple(str(path) for place in places for name in names for path in sorted(place.glob(name)))


def find(recipes: Sequence[Recipe], paper: str, table: str | None) -> list[Recipe]:
    """The recipes of a paper, or one of its tables."""
    papers = {recipe.paper.replace("_", "-"): recipe.paper for recipe in recipes}  # either way of writing
    if (plain := paper.replace("_", "-")) not in papers:
        raise InvalidInput(f"paper {paper!r} {nearest(plain, papers)}")
    of_paper = [recipe for recipe in recipes if recipe.paper == papers[plain]]
    chosen = [recipe for recipe in of_paper if table is None or recipe.table.casefold() == table.casefold()]
    if not chosen:
        raise InvalidInput(f"table {table!r} of {paper} {nearest(table, [recipe.table for recipe in of_paper])}")
    return chosen
