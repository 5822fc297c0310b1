"""What was spent, written down as it is spent, in a run and over many runs on the same data.

A run's own ledger is compared with the forecast of its cost. One with a limit composes over fits, seeds and settings
tried: it reserves a run's forecast before anything is released, or refuses, and afterwards keeps what was really spent.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dp_accounting import DpEvent

from coterie.errors import BudgetSpent, InvalidInput, NotPermitted, require
from coterie.files import require_plain, write_for_good
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import SIMULATION, Guarantee, Level, Neighbours
from coterie.privacy.spending import EVERYBODY as EVERYBODY
from coterie.privacy.spending import RESERVED, counted
from coterie.privacy.spending import Row as Row
from coterie.privacy.spending import Spend as Spend
from coterie.privacy.spending import rows_of as rows_of
from coterie.wire.codec import decode, encode, register

Exposure = tuple[tuple[str, bool, float, float, float, int], ...]
"""All releases of one client: what, of which kind, with which noise, at which epsilon, how likely, and how often."""


@register
@dataclass(frozen=True)
class Book:
    """What a ledger's file holds."""

    runs: Mapping[str, tuple[Row, ...]]
    terms: tuple[str, str] | None
    limit: float
    delta: float
    simulated: bool


@dataclass
class Ledger:
    """How often each client's units were exposed to which release. Entries only ever grow.

    ``Ledger(limit=3.0, delta=1e-6)`` is for all that is done with one data set: hand it to every fit and every training
    run. What one of them would spend is reserved before it starts (``reserve``), and refused if that is more than is
    left. With a ``path`` it outlives the process, and several processes can share it, also by other names of the same
    file; a run that was killed keeps what it had reserved. Limit and delta stay what they were when the file was made:
    ``Ledger(path=...)`` takes them from there. Records may be dealt to other clients from one run to the next, so each
    run counts as what it cost whoever was exposed most. Costs of record and client level do not compose, nor do those
    between different neighbours.
    """

    limit: float = math.inf
    delta: float = 1e-6
    path: Path | str | None = None
    _file: Path | None = field(default=None, init=False, repr=False, compare=False)  # by the one name that all share
    _times: dict[tuple[int, Spend], int] = field(default_factory=dict, repr=False)
    _runs: dict[str, tuple[Row, ...]] = field(default_factory=dict, repr=False)
    _terms: tuple[str, str] | None = field(default=None, repr=False)  # level and neighbours of all that is in it
    _simulated: bool = field(default=False, repr=False)
    _born_in: int = field(default_factory=os.getpid, repr=False, compare=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.limit > 0, "limit", self.limit, "must be positive: the largest epsilon that may be spent in all")
        require(0 < self.delta < 1, "delta", self.delta, "must lie in (0, 1); 1e-6 is usual")
        if self.path is not None:
            self.path = self._file = Path(self.path).resolve()
            require_plain(self._file)
        self._read()

    # -- one run --------------------------------------------------------------------------------------------------

    def spend(self, spent: Spend, clients: Iterable[int] = (EVERYBODY,), times: int = 1) -> None:
        for client in clients:
            self._times[client, spent] = self._times.get((client, spent), 0) + times

    def enter(self, rows: Iterable[Row]) -> None:
        """What was written down elsewhere: in a worker, before a restart."""
        for client, spent, times in rows:
            self.spend(spent, (client,), times)

    # -- many runs ------------------------------------------------------------------------------------------------

    @contextmanager
    def reserve(self, claim: Guarantee | None, events: Sequence[DpEvent], name: str = "") -> Iterator[Ledger]:
        """Room for a run that claims this and will cost these events, and the ledger that it is to write to.

        A run goes under its name, if it has one: resumed, it takes its own earlier place. So a name stands for one run
        with one set of secrets, whose releases are the same however often they are made. Whatever ends it, what it has
        spent by then stays, and what it spent before it was resumed, too: also in the file, where a kill finds it.
        """
        name = name or uuid.uuid4().hex
        before = self.hold(name, claim, tuple(rows_of(events)))
        own, ended = Ledger(), False
        try:
            yield own
            ended = True
        finally:
            with self._shared():
                kept = [row for row in before if not ended or row[1].what != RESERVED]
                self._runs[name] = _most(own.rows, kept)

    def hold(
        self,
        name: str,
        claim: Guarantee | None,
        rows: tuple[Row, ...],
        over: Mapping[str, tuple[Row, ...]] | None = None,
    ) -> tuple[Row, ...]:
        """Put down these rows under a name, and in the file, or refuse; what was there before.

        What was there stays beside them, as it may be spent: a run that is resumed and killed has not spent less.
        ``over``: runs that end as this one begins, by what they came to. If it is refused, they stay as they were.
        """
        with self._shared():
            terms = self._require_terms(claim)
            before = self._runs.get(name, ())
            ended = {other: came_to for other, came_to in (over or {}).items() if other in self._runs}
            held = _most(rows, before)
            self._require_room(name, held, Neighbours(terms[1]), {**self._runs, **ended})
            self._terms = terms
            self._simulated |= claim is not None and claim.simulated
            self._runs |= {**ended, name: held}
        return before

    def holds(self, name: str) -> bool:
        """Whether anything is put down under this name, in the file as it is now."""
        with self._lock:
            self._read()
            return name in self._runs

    def _require_terms(self, claim: Guarantee | None) -> tuple[str, str]:
        if claim is None or not claim.proven:
            why = "nothing is claimed" if claim is None else claim.why_not
            raise BudgetSpent(f"limit={self.limit:.4g} leaves no room for a run without a guarantee: {why}")
        terms = (claim.level.value, claim.neighbours.value)
        if self._terms not in (None, terms):
            raise BudgetSpent(
                f"ledger is for {self._terms}, which does not compose with {terms}; keep another for these"
            )
        return terms

    def _require_room(
        self,
        name: str,
        held: tuple[Row, ...],
        neighbours: Neighbours,
        runs: Mapping[str, tuple[Row, ...]],
    ) -> None:
        """With the forecast, and with what the run had spent already, if it is resumed."""
        others = [row for other, entered in runs.items() if other != name for row in counted(entered)]

        def with_these(more: tuple[Row, ...]) -> float:
            all_of_it = Ledger(delta=self.delta)
            all_of_it.enter([*others, *more])
            return all_of_it.epsilon(self.delta, neighbours)

        after = with_these(counted(held))
        if after > self.limit * (1 + 1e-9):
            raise BudgetSpent(
                f"epsilon={after:.4g} would be spent in all at delta={self.delta:.0e}, and limit={self.limit:.4g}; "
                f"{with_these(()):.4g} is spent or reserved. Ask for less, or do without this run"
            )

    @property
    def spent(self) -> float:
        """All that was spent or is reserved, as epsilon at the ledger's delta."""
        if self._terms is None:
            return self.epsilon(self.delta)
        return self.epsilon(self.delta, Neighbours(self._terms[1]))

    @property
    def level(self) -> Level | None:
        """Whose exposure it is; None: nothing was entered under a claim yet."""
        return None if self._terms is None else Level(self._terms[0])

    @property
    def simulated(self) -> bool:
        """Whether the noise of any run in it came from a seed: then it hides nothing from whoever has that."""
        return self._simulated

    def __str__(self) -> str:
        of = f" of {self.limit:.4g}" if math.isfinite(self.limit) else ""
        said = f"epsilon {self.spent:.4g}{of} spent at delta={self.delta:.0e}"
        return "; ".join([said, ", ".join(self._terms or ()), SIMULATION if self._simulated else ""]).strip("; ")

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """What is done in here is done to the file, by one process and one thread at a time."""
        with self._lock, self._in_file():
            yield

    @contextmanager
    def _in_file(self) -> Iterator[None]:
        if self._file is None:
            if os.getpid() != self._born_in:  # a fork would count apart
                raise NotPermitted("Ledger without a path cannot go to another process, where it would count apart")
            yield
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_name(self._file.name + ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            yield
            book = Book(self._runs, self._terms, self.limit, self.delta, self._simulated)
            write_for_good(self._file, encode(book))

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        names = self._file.stat().st_nlink
        require(names <= 1, f"names of {self._file}", names, "must be 1: each would become a ledger of its own")
        try:
            book = decode(self._file.read_bytes())
        except InvalidInput as error:  # taken for an empty one, it would let all be spent again
            raise InvalidInput(f"path={self._file} is damaged ({error}); put back a whole copy of it") from error
        if not isinstance(book, Book):
            raise InvalidInput(f"path={self._file} holds no ledger; name another file")
        if math.isinf(self.limit):  # whoever names none takes what is there
            self.limit, self.delta = book.limit, book.delta
        named, kept = (self.limit, self.delta), (book.limit, book.delta)
        require(
            named == kept, f"(limit, delta) of {self._file}", named, f"must be {kept}, as when the ledger was begun"
        )
        self._runs, self._terms, self._simulated = dict(book.runs), book.terms, book.simulated

    def __sklearn_clone__(self) -> Ledger:
        """Clones of an estimator write to the same ledger: a search over settings spends, too."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None:
            raise NotPermitted("Ledger without a path cannot go to another process, where it would count apart")
        return Ledger, (self.limit, self.delta, self.path)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise NotPermitted("Ledger cannot be copied: two of them would each let the whole limit be spent")

    # -- what it comes to -----------------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[Row, ...]:
        own = tuple((client, spent, times) for (client, spent), times in self._times.items())
        return own + tuple(row for rows in self._runs.values() for row in counted(rows))

    def clients(self) -> list[int]:
        """Those with entries of their own."""
        return sorted({client for client, _, _ in self.rows} - {EVERYBODY})

    def events(self, client: int = EVERYBODY) -> Sequence[DpEvent]:
        """All that a unit of this client was exposed to."""
        return [
            event for whose, spent, times in self.rows if whose in (client, EVERYBODY) for event in spent.events(times)
        ]

    def epsilon(self, delta: float, neighbours: Neighbours = Neighbours.ADD_OR_REMOVE) -> float:
        """What the client that was exposed most has spent at this delta; 0 if nothing was."""
        return max(epsilon_of(self.events(client), delta, neighbours) for client in self._most_exposed())

    def _most_exposed(self) -> list[int]:
        """One client of each exposure that no other's covers: pricing takes seconds, and clients are many."""
        own: dict[int, dict[Spend, int]] = {client: {} for client in self.clients() or [EVERYBODY]}
        for client, spent, times in self.rows:
            if client in own:
                own[client][spent] = own[client].get(spent, 0) + times
        exposed = {_exposure(spends): client for client, spends in own.items()}
        return [
            client
            for exposure, client in exposed.items()
            if not any(_covers(other, exposure) for other in exposed if other != exposure)
        ]


def _exposure(spends: Mapping[Spend, int]) -> Exposure:
    return tuple(
        sorted(
            (one.what, one.laplace, one.noise_multiplier, pure, one.sample_rate, times)
            for one, times in spends.items()
            for pure in [-1.0 if one.epsilon is None else one.epsilon]
        )
    )


def _covers(more: Exposure, less: Exposure) -> bool:
    """Whether each release of the one is in the other: with the same noise, as likely at least, and as often."""
    return len(more) == len(less) and all(
        one[:4] == other[:4] and one[4] >= other[4] and one[5] >= other[5]
        for one, other in zip(more, less, strict=True)
    )


def _most(rows: Iterable[Row], others: Iterable[Row]) -> tuple[Row, ...]:
    """Each release as often as in that one of the two in which it is more often."""
    found, more = Ledger(), Ledger()
    found.enter(rows)
    more.enter(others)
    for one, times in more._times.items():
        found._times[one] = max(times, found._times.get(one, 0))
    return found.rows
