"""What was spent, written down as it is spent. A forecast of a run's cost is compared with this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dp_accounting import DpEvent

from coterie.privacy.accounting import dpsgd_events, epsilon_of, pure_events
from coterie.privacy.guarantee import Neighbours
from coterie.wire.codec import register

EVERYBODY = -1  # where noise is added to a sum over all, each client is exposed by it


@register
@dataclass(frozen=True)
class Spend:
    """A noisy release in which a unit took part: with what noise for what it can change, and how likely it was in.

    One that is not Gaussian has its worst-case ``epsilon`` in place of a noise multiplier.
    """

    what: str  # "dp-sgd", "lloyd 1/sums"
    noise_multiplier: float = 0.0  # 0: no noise, which costs infinity
    sample_rate: float = 1.0
    epsilon: float | None = None

    def events(self, times: int) -> list[DpEvent]:
        if self.epsilon is not None:
            return pure_events(self.epsilon, times)
        return dpsgd_events(self.sample_rate, self.noise_multiplier, times)


Row = tuple[int, Spend, int]
"""Whose (a client or ``EVERYBODY``), what, and how often."""


Exposure = tuple[tuple[str, float, float, float, int], ...]
"""All releases of one client: what, with which noise, at which epsilon, how likely, and how often."""


@dataclass
class Ledger:
    """How often each client's units were exposed to which release. Entries only ever grow."""

    _times: dict[tuple[int, Spend], int] = field(default_factory=dict)

    def spend(self, spent: Spend, clients: Iterable[int] = (EVERYBODY,), times: int = 1) -> None:
        for client in clients:
            self._times[client, spent] = self._times.get((client, spent), 0) + times

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple((client, spent, times) for (client, spent), times in self._times.items())

    def enter(self, rows: Iterable[Row]) -> None:
        """What was written down elsewhere: in a worker, before a restart."""
        for client, spent, times in rows:
            self.spend(spent, (client,), times)

    def clients(self) -> list[int]:
        """Those with entries of their own."""
        return sorted({client for client, _ in self._times} - {EVERYBODY})

    def events(self, client: int = EVERYBODY) -> Sequence[DpEvent]:
        """All that a unit of this client was exposed to."""
        return [
            event
            for (whose, spent), times in self._times.items()
            if whose in (client, EVERYBODY)
            for event in spent.events(times)
        ]

    def epsilon(self, delta: float, neighbours: Neighbours = Neighbours.ADD_OR_REMOVE) -> float:
        """What the client that was exposed most has spent at this delta; 0 if nothing was."""
        return max(epsilon_of(self.events(client), delta, neighbours) for client in self._most_exposed())

    def _most_exposed(self) -> list[int]:
        """One client of each exposure that no other's covers: pricing takes seconds, and clients are many."""
        exposed = {self._exposure(client): client for client in self.clients() or [EVERYBODY]}
        return [
            client
            for exposure, client in exposed.items()
            if not any(_covers(other, exposure) for other in exposed if other != exposure)
        ]

    def _exposure(self, client: int) -> Exposure:
        own = [(spent, times) for (whose, spent), times in self._times.items() if whose == client]
        return tuple(
            sorted((one.what, one.noise_multiplier, one.epsilon or 0.0, one.sample_rate, times) for one, times in own)
        )


def _covers(more: Exposure, less: Exposure) -> bool:
    """Whether each release of the one is in the other: with the same noise, as likely at least, and as often."""
    return len(more) == len(less) and all(
        one[:3] == other[:3] and one[3] >= other[3] and one[4] >= other[4]
        for one, other in zip(more, less, strict=True)
    )
