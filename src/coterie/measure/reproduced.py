"""A paper's values beside ours, as plain values: claims compare them, a page or a terminal shows them.

A row is known by its key and not by its words. Labels and notes are for people; nothing is ever read back out of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from scipy.stats import norm, t

from coterie.errors import InvalidInput, require
from coterie.measure.exhibits import Chart, Gallery
from coterie.measure.intervals import CONFIDENCE, Interval, proportion
from coterie.measure.judge import t_interval

Value = str | int | float | bool


@dataclass(frozen=True, eq=False)
class Key(Mapping[str, Value]):
    """What tells a row from the others: names and values, in the order in which they are said."""

    pairs: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.pairs]
        require(len(set(names)) == len(names), "key", names, "has a name twice")

    @staticmethod
    def of(**values: Value) -> Key:
        return Key(tuple(values.items()))

    def __getitem__(self, name: str) -> Value:
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))  # equal mappings are equal in any order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and dict(self.pairs) == dict(other.pairs)

    def but(self, **changed: Value) -> Key:
        """The same key with other values under some names, or with further names."""
        return Key(tuple({**dict(self.pairs), **changed}.items()))

    def has(self, **values: Value) -> bool:
        return all(name in self and self[name] == value for name, value in values.items())

    def words(self, forms: Mapping[str, str]) -> str:
        """For people: each value in its name's form, such as ``" {} clients"``; ``", {}"`` where none is given."""
        return "".join(forms.get(name, ", {}").format(value) for name, value in self.pairs).removeprefix(",").strip()


class Decision(Enum):
    """What became of a claim. Undecided: our intervals do not tell."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"

    @staticmethod
    def of(holds: bool) -> Decision:
        """Of something that was counted, or that has its confidence in it already."""
        return Decision.HOLDS if holds else Decision.FAILS

    @staticmethod
    def every(parts: Iterable[Decision]) -> Decision:
        """Holds if each part does, fails if any fails."""
        found = set(parts)
        if Decision.FAILS in found:
            return Decision.FAILS
        return Decision.UNDECIDED if Decision.UNDECIDED in found else Decision.HOLDS

    @staticmethod
    def some(parts: Iterable[Decision]) -> Decision:
        """Holds if any part does, fails if each fails."""
        found = set(parts)
        if Decision.HOLDS in found:
            return Decision.HOLDS
        return Decision.UNDECIDED if Decision.UNDECIDED in found else Decision.FAILS


@dataclass(frozen=True)
class Estimate(Interval):
    """An interval that knows the values of the seeds behind it, so that rows can be compared seed by seed."""

    low: float = math.nan
    high: float = math.nan
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return self.estimate

    @staticmethod
    def exactly(value: float) -> Estimate:
        """A number that is known: a closed form, chance, a claim."""
        return Estimate(value, value, value)

    @staticmethod
    def over(by_seed: Mapping[int, float], least: float = -math.inf, most: float = math.inf) -> Estimate:
        """The mean over seeds with Student's interval, cut to what such a value can be; NaN is left out."""
        known = {seed: value for seed, value in by_seed.items() if not math.isnan(value)}
        if not known:
            return Estimate(math.nan)
        low, high = t_interval(list(known.values()))
        mean = sum(known.values()) / len(known)
        if math.isnan(low):
            return Estimate(mean, by_seed=known)
        mean = min(max(mean, low), high)  # equal values, added up in another order
        return Estimate(mean, min(max(low, least), most), min(max(high, least), most), by_seed=known)

    @staticmethod
    def share(by_seed: Mapping[int, float]) -> Estimate:
        """In per cent, of values that are 0 or 100: how often it came true, with the exact interval of a count."""
        right = sum(value == 100 for value in by_seed.values())
        if not by_seed:
            return Estimate(math.nan)
        found = proportion(right, len(by_seed))
        return Estimate(100 * found.estimate, 100 * found.low, 100 * found.high, by_seed=by_seed)

    def __str__(self) -> str:
        if self.low == self.high or not self.is_known:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def minus(self, other: Estimate) -> Estimate:
        """The difference: seed by seed where both have the same seeds, which takes out what a seed does to both.

        Else the two are independent, and the reaches of their intervals add up as squares.
        """
        shared = [seed for seed in self.by_seed if seed in other.by_seed]
        if len(shared) >= 2:
            return Estimate.over({seed: self.by_seed[seed] - other.by_seed[seed] for seed in shared})
        value = self.value - other.value
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value, value - below, value + above)

    def among(self, count: int) -> Estimate:
        """With an interval so wide that ``count`` of its kind hold together (Bonferroni)."""
        error = (1 - CONFIDENCE) / 2
        seeds = len(self.by_seed)
        alone, together = (
            float(t.ppf(1 - part, seeds - 1) if seeds > 1 else norm.ppf(1 - part)) for part in (error, error / count)
        )
        wider = together / alone
        low, high = self.value - wider * (self.value - self.low), self.value + wider * (self.high - self.value)
        return Estimate(self.value, low, high, by_seed=self.by_seed)

    # -- decisions -------------------------------------------------------------------------------

    def above(self, limit: float) -> Decision:
        if self.low > limit:
            return Decision.HOLDS
        return Decision.FAILS if self.high <= limit else Decision.UNDECIDED

    def at_least(self, limit: float) -> Decision:
        if self.low >= limit:
            return Decision.HOLDS
        return Decision.FAILS if self.high < limit else Decision.UNDECIDED

    def at_most(self, limit: float) -> Decision:
        if self.high <= limit:
            return Decision.HOLDS
        return Decision.FAILS if self.low > limit else Decision.UNDECIDED

    def covers(self, value: float) -> Decision:
        """Whether the interval holds a value that is predicted: it agrees with the prediction, or contradicts it."""
        return Decision.of(self.low <= value <= self.high) if self.is_known else Decision.UNDECIDED


@dataclass(frozen=True)
class Row:
    """One value of a table: the paper's beside ours, and what else was measured with it, by name."""

    key: Key
    label: str  # made from the key, for people
    published: float | None
    ours: Estimate
    values: Mapping[str, Estimate] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Rows:
    """The rows of a table, found by their keys."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        keys = Counter(row.key for row in self.rows)
        twice = [dict(key) for key, count in keys.items() if count > 1]
        require(not twice, "rows", twice, "have one key for two; give it what tells them apart")

    @cached_property
    def _by_key(self) -> Mapping[Key, Row]:
        return {row.key: row for row in self.rows}

    @staticmethod
    def of(rows: Iterable[Row]) -> Rows:
        return Rows(tuple(rows))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def get(self, key: Key) -> Row | None:
        """None where the row was not asked for, so that claims about it have nothing to say."""
        return self._by_key.get(key)

    def __getitem__(self, key: Key) -> Row:
        found = self.get(key)
        if found is None:
            raise InvalidInput(f"row {dict(key)} is not in this table; the first of its {len(self)} is {self._first()}")
        return found

    def _first(self) -> Mapping[str, Value]:
        return dict(self.rows[0].key) if self.rows else {}

    def where(self, **values: Value) -> Rows:
        """Those whose keys have these values."""
        return Rows(tuple(row for row in self.rows if row.key.has(**values)))

    def pairs(self, one: Mapping[str, Value], other: Mapping[str, Value]) -> list[tuple[Row, Row]]:
        """Rows with the values of ``one``, each with the row that differs from it by the values of ``other`` alone."""
        found = ((row, self.get(row.key.but(**other))) for row in self.where(**one))
        return [(row, twin) for row, twin in found if twin is not None and twin is not row]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of its own table, and whether it holds in ours."""

    text: str
    decision: Decision
    evidence: str


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper: its published values, ours, and which of its claims hold."""

    paper: str
    table: str
    title: str
    rows: Rows
    claims: Sequence[Claim] = ()
    scale: str = ""
    differs: str = ""
    unit: str = ""
    charts: Sequence[Chart | Gallery] = ()
