"""How far something long has come: a bar with count and time left in a terminal, a few plain lines without one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from coterie.run.jobs import Ahead

Tell = Callable[[int, int | None, str], None]
"""(done, in all if that is known, a word on the newest; ``Ahead`` is a line of its own)"""

JOB = re.compile(r"-[0-9a-f]{6}-seed(\d+)$")  # what tells two jobs' files apart, and people nothing
LINES = 10  # that a whole run prints where there is no terminal, about
WIDE = 100  # columns from which on there is room for the newest


@contextmanager
def following(what: str, console: Console) -> Iterator[Tell]:
    if not console.is_terminal:
        yield _Lines(what, console).tell
        return
    fixed = Column(no_wrap=True)
    columns = [
        TextColumn("{task.description}", table_column=fixed),
        BarColumn(bar_width=16),
        MofNCompleteColumn(table_column=fixed),
        TimeElapsedColumn(table_column=fixed),
        TimeRemainingColumn(table_column=fixed),
        TextColumn("[dim]{task.fields[newest]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    ]
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task(what[:24], total=None, newest="")

        def tell(done: int, total: int | None, newest: str) -> None:
            if isinstance(newest, Ahead):
                bar.console.print(f"{what}: {newest}", soft_wrap=True, markup=False)
                return
            shown = in_words(newest if console.width >= WIDE else newest.rsplit("/", maxsplit=1)[-1])
            bar.update(task, completed=done, total=total, newest=shown.replace("[", "\\["))

        yield tell


class _Lines:
    """A line at the beginning, at every tenth of the way, and at the end."""

    def __init__(self, what: str, console: Console) -> None:
        self._what, self._console, self._started = what, console, time.monotonic()
        self._first: int | None = None  # what was there from before does not count for the speed
        self._said = -1

    def tell(self, done: int, total: int | None, newest: str) -> None:
        if self._first is None:
            self._first = done
        if isinstance(newest, Ahead):
            self._console.print(f"{self._what}: {newest}", soft_wrap=True, markup=False)
            return
        step = done * LINES // total if total else done // LINES
        if step == self._said and done != total:
            return
        self._said = step
        passed, gained = time.monotonic() - self._started, done - self._first
        words = [f"{self._what}: {done}" + (f" of {total}" if total else "")]
        if gained and total:
            words.append(f"{_clock(passed)} passed, about {_clock(passed / gained * (total - done))} left")
        if newest:
            words.append(in_words(newest))
        self._console.print("; ".join(words), soft_wrap=True, markup=False)


def in_words(key: str) -> str:
    """The name of a job's file, for people."""
    return " ".join(JOB.sub(r", seed \1", key).replace("/", ": ").replace("_", " ").replace(" ,", ",").split())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
