"""What is written down of releases, and what a run's entries cost whoever is in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import dp_accounting
from dp_accounting import DpEvent

from coterie.errors import InvalidInput
from coterie.privacy.accounting import dpsgd_events, pure_events
from coterie.wire.codec import register

EVERYBODY = -1  # where noise is added to a sum over all, each client is exposed by it


@register
@dataclass(frozen=True)
class Spend:
    """A noisy release in which a unit took part: with what noise for what it can change, and how likely it was in.

    One that is not Gaussian has its worst-case ``epsilon`` in place of a noise multiplier, or is ``laplace``, whose
    multiplier is the scale over what a unit can change.
    """

    what: str  # "dp-sgd", "lloyd 1/sums"
    noise_multiplier: float = 0.0  # 0: no noise, which costs infinity
    sample_rate: float = 1.0
    epsilon: float | None = None
    laplace: bool = False

    def events(self, times: int) -> list[DpEvent]:
        if self.epsilon is not None:
            return pure_events(self.epsilon, times)
        if self.laplace:
            return [dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(self.noise_multiplier), times)]
        return dpsgd_events(self.sample_rate, self.noise_multiplier, times)


Row = tuple[int, Spend, int]
"""Whose (a client or ``EVERYBODY``), what, and how often."""


RESERVED = "reserved"
"""What a forecast's entries are called."""


def counted(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """A run's entries as they are priced, all of them everybody's: what is made again after a stop is paid for once.

    A reservation is a forecast for whoever is exposed most, so it stands for as many releases with the same noise that
    a client is as likely to be in, or less. What a client had spent beyond that counts beside it.
    """
    reserved = Counter[Spend]()
    for client, one, times in rows:
        if one.what == RESERVED and client == EVERYBODY:
            reserved[one] += times
    own: dict[int, list[Row]] = {}
    for row in rows:
        if row[1].what != RESERVED or row[0] != EVERYBODY:
            own.setdefault(row[0], []).append(row)
    beyond, left = _beyond(own.pop(EVERYBODY, ()), reserved)
    for spent in own.values():
        beyond += _beyond(spent, left)[0]
    return (*((EVERYBODY, one, times) for one, times in reserved.items()), *_whoever(beyond))


def _whoever(rows: Iterable[Row]) -> Iterator[Row]:
    """What costs nobody less: each mechanism as often as any client met it, at the highest rate of any.

    Another run may deal the same records to other clients: the one that was exposed most here may hold in the next what
    the one that is exposed most there held here.
    """
    met, rates = Counter[tuple[int, Spend]](), dict[Spend, float]()
    for client, one, times in rows:
        if client == EVERYBODY:
            yield client, one, times
            continue
        mechanism = replace(one, sample_rate=1.0)
        met[client, mechanism] += times
        rates[mechanism] = max(rates.get(mechanism, 0.0), one.sample_rate)
    most = dict[Spend, int]()
    for (_, mechanism), times in met.items():
        most[mechanism] = max(most.get(mechanism, 0), times)
    for mechanism, times in most.items():
        yield EVERYBODY, replace(mechanism, sample_rate=rates[mechanism]), times


def _beyond(spent: Iterable[Row], reserved: Counter[Spend]) -> tuple[list[Row], Counter[Spend]]:
    """What of these entries is not reserved for, and what is left of the reservation."""
    left, found = reserved.copy(), []
    for client, one, times in spent:
        for room in left:
            if _stands_for(room, one):
                taken = min(times, left[room])
                left[room] -= taken
                times -= taken
        if times:
            found.append((client, one, times))
    return found, left


def _stands_for(reserved: Spend, spent: Spend) -> bool:
    kinds = [(one.noise_multiplier, one.epsilon, one.laplace) for one in (reserved, spent)]
    return kinds[0] == kinds[1] and reserved.sample_rate >= spent.sample_rate * (1 - 1e-12)


def rows_of(events: Iterable[DpEvent], times: int = 1) -> Iterator[Row]:
    """Events as entries that expose everybody."""
    for event in events:
        match event:
            case dp_accounting.NoOpDpEvent():
                continue
            case dp_accounting.GaussianDpEvent(noise_multiplier=z):
                yield EVERYBODY, Spend(RESERVED, float(z)), times
            case dp_accounting.RandomizedResponseDpEvent(noise_parameter=p, num_buckets=k):
                pure = math.log1p((1 - p) * k / p) if p > 0 else math.inf
                yield EVERYBODY, Spend(RESERVED, epsilon=pure), times
            case dp_accounting.LaplaceDpEvent(noise_multiplier=b):
                yield EVERYBODY, Spend(RESERVED, float(b), laplace=True), times
            case dp_accounting.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp_accounting.GaussianDpEvent(noise_multiplier=z)
            ):
                yield EVERYBODY, Spend(RESERVED, float(z), float(rate)), times
            case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
                yield from rows_of([inner], times * int(count))
            case dp_accounting.ComposedDpEvent(events=inner):
                yield from rows_of(inner, times)
            case _:
                known = "Gaussian noise, sampled or not, Laplace noise and randomised response"
                raise InvalidInput(f"event={event!r} cannot be entered; ledgers know {known}")
