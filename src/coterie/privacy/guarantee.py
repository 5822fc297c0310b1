"""What may be said about a defence, and what must be known of a run to say it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from dp_accounting import DpEvent

from coterie.errors import require
from coterie.learn.sgd import Local

DELTA = 1e-5
"""At which epsilons are stated where nobody names another."""


class Level(Enum):
    """Whose presence is hidden."""

    RECORD = "record"
    CLIENT = "client"
    VALUE = "value"


class Trust(Enum):
    """Whom one must trust for the guarantee to hold."""

    TRUSTED_AGGREGATOR = "trusted aggregator: the server sees exact contributions and adds the noise"
    DISTRIBUTED_NOISE = "distributed noise under secure aggregation: the server sees only the noisy sum"
    NO_COLLUSION = "no collusion: the server sees only ciphertexts, as long as no client hands it the shared key"
    COMMON_SECRET = "a common secret: the server sees noisy sums and sketches, as long as no party hands it that secret"
    SECURE_SUMS = "secure sums: the server sees sums over clusters and how many clients are in each, round by round"
    HIDDEN_SUMS = "hidden sums: the server sees no sum; with one client's key it sees sums over clusters and sizes"
    LOCAL_NOISE = "local noise: each client adds all the noise itself and trusts nobody"


class Neighbours(Enum):
    """Which two data sets must look alike.

    Where it is public who takes part (a roster, the number of a client's records), a unit cannot come or go unseen;
    what is hidden is all that it holds. That costs what adding or removing one costs. Replacing takes twice the noise.
    """

    ADD_OR_REMOVE = "one unit added or removed"
    REPLACE = "one unit replaced by another"
    ZERO_OUT = "one unit's data replaced by none, who takes part being public"

    @staticmethod
    def usual(trust: Trust, level: Level) -> Neighbours:
        """What is meant by a trust model if nothing else is said.

        In the local model each client answers for itself and replacement is what everybody means. The roster of clients
        is public, so a client cannot be added or removed; its records can.
        """
        if trust is Trust.LOCAL_NOISE:
            return Neighbours.REPLACE
        return Neighbours.ZERO_OUT if level is Level.CLIENT else Neighbours.ADD_OR_REMOVE


class Whom(Enum):
    """Against whom something is hidden."""

    PUBLIC = "the public"
    PARTICIPANT = "another participant"
    SERVER = "the server"
    COALITION = "the server with colluding clients"


ONLOOKERS = (Whom.PUBLIC, Whom.PARTICIPANT, Whom.SERVER)
"""Whoever may see what a client sends."""


@dataclass(frozen=True)
class Against:
    """What one who sees this much can learn at most; infinity: he is trusted."""

    whom: Whom
    epsilon: float
    clients: int = 0  # how many collude with him

    def __str__(self) -> str:
        who = self.whom.value if not self.clients else f"the server with {self.clients} colluding"
        return f"{who} {self.epsilon:.4g}" if math.isfinite(self.epsilon) else f"{who}: nothing is hidden"


SIZES = "how many records a client has is public, and is told where clients count by their samples"
AS_MANY = "how many records a client has is public, so what is hidden is which ones"
KNOWN = "taken to be known to all"
STOPS = "when the run ends follows from how well models do on clients' test rows, which no noise covers"
SIMULATION = "simulation: reproducible noise hides nothing from whoever has the seed"


@dataclass(frozen=True)
class Attainable:
    """What could be stated of the same defence, and what must change for that, in words."""

    changes: tuple[str, ...]
    guarantee: Guarantee

    def __str__(self) -> str:
        return f"with {'; '.join(self.changes)}: {self.guarantee}"


@dataclass(frozen=True)
class Guarantee:
    """A formal privacy statement, or the statement that there is none and why.

    ``simulated``: the noise came from a seed. What is stated then holds for the same run with secret noise.
    """

    epsilon: float
    delta: float
    level: Level
    trust: Trust
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE
    proven: bool = True
    why_not: str = ""
    events: tuple[DpEvent, ...] = field(default=(), repr=False)  # what it is the price of; none: not told
    ripple: float = field(default=0.0, repr=False)  # how far, in the logarithm, probabilities may be from the events'
    simulated: bool = False
    against: tuple[Against, ...] = ()  # each adversary with the epsilon that holds against it; none: not told apart
    leaves: tuple[str, ...] = ()  # what it leaves open, in words
    attainable: tuple[Attainable, ...] = ()  # where nothing is proven: what would be, of another run

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "epsilon", self.epsilon, "must not be negative")
        require(0 <= self.delta < 1, "delta", self.delta, "must lie in [0, 1)")
        require(
            self.proven == (self.why_not == ""),
            "why_not",
            self.why_not,
            "is given exactly when nothing is proven",
        )
        require(
            not self.proven or math.isfinite(self.epsilon),
            "epsilon",
            self.epsilon,
            "is no guarantee; use Guarantee.none(...) and say why",
        )

    @staticmethod
    def none(why_not: str, level: Level, trust: Trust, stated: float = math.inf) -> Guarantee:
        """No proof. ``stated`` is the epsilon that a paper calls it nevertheless, for the auditor to try."""
        require(why_not != "", "why_not", why_not, "must say why there is no guarantee")
        return Guarantee(stated, 0.0, level, trust, proven=False, why_not=why_not)

    def beside(self, reveals: str) -> Guarantee:
        """The same, if a client's answers tell nothing of its raw data but what is noised."""
        if not reveals or not self.proven:
            return self
        why = f"what is noised is ({self.epsilon:.4g}, {_small(self.delta)})-DP, but a client also reveals {reveals}"
        return Guarantee.none(why, self.level, self.trust, stated=self.epsilon)

    def against_onlookers(self) -> Guarantee:
        """The same, said of each who may see what a client sends: it has added the noise itself."""
        return replace(self, against=tuple(Against(whom, self.epsilon) for whom in ONLOOKERS)) if self.proven else self

    @property
    def provisos(self) -> tuple[str, ...]:
        """What must be said beside a proven epsilon: what it leaves public, against whom it holds, what undoes it."""
        if not self.proven:
            return ()
        sizes = [SIZES] if self.level is Level.RECORD and self.neighbours is Neighbours.ZERO_OUT else []
        against = [f"against {', '.join(map(str, self.against))}"] if self.against else []
        return (*sizes, *self.leaves, *against, *([SIMULATION] if self.simulated else []))

    def __str__(self) -> str:
        stated = f"({self.epsilon:.4g}, {_small(self.delta)})-DP at {self.level.value} level, {self.neighbours.value}"
        if self.proven:
            return "; ".join([stated, self.trust.value, *self.provisos])
        return f"no formal guarantee: {self.why_not}" + (
            f" (stated: epsilon={self.epsilon:.4g})" if math.isfinite(self.epsilon) else ""
        )


@dataclass(frozen=True)
class Pool:
    """Records that are sampled from together, and in how many local trainings (at most one a round, for most)."""

    size: int
    trainings: int


@dataclass(frozen=True)
class RunFacts:
    """A run, as far as a guarantee depends on it; ``Trainer.facts`` makes it.

    A record's exposure is the pools that it was in. Only exposures that can be the worst one are kept.
    """

    clients: int
    rounds: int
    local: Local
    exposures: tuple[tuple[Pool, ...], ...]
    delta: float
    reveals: str = ""  # what a client's answers say about its raw data without passing its gradient guard
    bounded: Level | None = None  # the unit whose share in every sum is scaled to norm 1 at most; None: nothing is
    numbers_a_record: int = 0  # how many numbers each client tells of each single record in the whole run
    columns: tuple[int, ...] = ()  # how many each client holds, where they hold columns of the same records
    a_round: int = 0  # how many clients are asked together at the least; 0: all

    @property
    def trainings(self) -> int:
        """In how many local trainings a record was, at most."""
        return max((sum(pool.trainings for pool in exposure) for exposure in self.exposures), default=0)

    @property
    def asked(self) -> int:
        return self.a_round or self.clients


def _small(delta: float) -> str:
    return f"{delta:.0e}" if delta else "0"
