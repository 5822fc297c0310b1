"""What a user chooses of a table: how large, which seeds, which rows, and where data lie."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from coterie.errors import require

MOST = 100  # seeds that a bare number may ask for


class Scale(Enum):
    QUICK = "quick"  # ends within ten minutes on two cores; says what it reduces
    PAPER = "paper"  # the paper's own settings


@dataclass(frozen=True)
class Settings:
    scale: Scale = Scale.QUICK
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ()  # only rows whose label holds one of these words; all if empty
    data: Path | None = None  # the folder with data sets
    as_published: bool = False  # also where we differ from the paper on purpose, for recipes that have such a form
    rounds: int | None = None  # stop after so many, for recipes whose cells are long runs
    seeds_are_given: bool = True  # else a recipe takes as many as it needs (``Recipe.settled``)

    def __post_init__(self) -> None:
        require(self.rounds is None or self.rounds >= 1, "rounds", self.rounds, "must be at least 1")

    @property
    def words(self) -> str:
        """How large, and in which form."""
        parts = [self.scale.value, "as published" if self.as_published else ""]
        return ", ".join(part for part in [*parts, f"{self.rounds} rounds" if self.rounds else ""] if part)

    def wants(self, label: str) -> bool:
        """By words, from the beginning of one and to the end of a number: MNIST is no Fashion-MNIST, and 1 no 10."""
        return not self.rows or any(_names(asked, label) for asked in self.rows)

    @property
    def folder(self) -> str | None:
        """Of the data, as a job's argument."""
        return str(self.data.resolve()) if self.data else None


def _names(asked: str, label: str) -> bool:
    for at in range(len(label)):
        before, after = label[:at][-1:], label[at + len(asked) :]
        begins = not (before.isalnum() or before in ("-", "_"))
        ends = not (asked[-1:].isdigit() and after.removeprefix(".")[:1].isdigit())
        if begins and ends and label.startswith(asked, at):
            return True
    return False


def parse_seeds(text: str) -> tuple[int, ...]:
    """``"3"``: the first three; ``"5-9"``: from five to nine; ``"2,4"``: these two."""
    first, dash, last = text.partition("-")
    if text.isdecimal():
        require(
            int(text) <= MOST, "seeds", text, f"would be the first {text}; for seed {text} alone pass {text}-{text}"
        )
        seeds = tuple(range(int(text)))
    elif dash and first.isdecimal() and last.isdecimal():
        many = int(last) - int(first) + 1
        require(many <= 10 * MOST, "seeds", text, f"would be {many} seeds; take {10 * MOST} at most")
        seeds = tuple(range(int(first), int(last) + 1))
    else:
        seeds = tuple(int(part) for part in text.split(",") if part.isdecimal())
        require(len(seeds) == text.count(",") + 1, "seeds", text, "must be how many (3), or which (5-9 or 2,4)")
    require(len(set(seeds)) == len(seeds) > 0, "seeds", text, "must name at least one, none twice, and the lower first")
    return seeds
