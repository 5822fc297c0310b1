"""Who takes part in a round of secure sums, who masks with whom, and who keeps whose shares: all of it public.

With ``neighbours``, clients stand on a ring in an order that is drawn anew in every round (Bell et al., CCS 2020): a
member of a cluster shares masks with so many nearest members, and its secrets with so many nearest clients. The order
follows from everybody's public keys, so no party chooses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from torch import Tensor

from coterie.errors import require
from coterie.seal.cipher import binary
from coterie.seal.streams import derive
from coterie.wire.codec import register

LEAST = 3  # members of a mingled cluster
HOLDERS = 20  # others that keep a client's shares, at least: with fewer, a few drop-outs would end the round
COMMITTEE = 30  # clients that add up shares of a tally, where not all do


@register
@dataclass(frozen=True)
class Roster:
    """Who takes part in the round, and who is in which mingled cluster."""

    members: tuple[tuple[int, ...], ...]  # (slots,) clients, in order
    ids: tuple[int, ...]
    neighbours: int | None = None  # None: everybody masks with everybody, and keeps everybody's shares
    salt: bytes = b""  # from which the order on the ring follows; empty: by number

    @staticmethod
    def of(ids: Sequence[int], membership: Tensor, neighbours: int | None = None, salt: bytes = b"") -> Roster:
        flags = binary(membership, ids)
        members = tuple(
            tuple(sorted(client for client, inside in zip(ids, column.tolist(), strict=True) if inside))
            for column in flags.T
        )
        return Roster(members, tuple(sorted(ids)), neighbours, salt)

    def __post_init__(self) -> None:
        here = set(self.ids)
        require(len(here) == len(self.ids), "ids", list(self.ids), "must all be different")
        for slot, members in enumerate(self.members):
            require(
                len(set(members)) == len(members) and here.issuperset(members),
                f"members of cluster {slot}",
                list(members),
                "must be different, and of those who take part",
            )
        require(
            self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0),
            "neighbours",
            self.neighbours,
            "must be even and at least 2, or None for all pairs",
        )

    def masked_by(self, present: Iterable[int]) -> Roster:
        """Those of the clients that can mask, cluster by cluster; one with fewer than three of them is left out."""
        return _masked_by(self, frozenset(present))

    @property
    def threshold(self) -> int:
        """How many must answer for the sums to open: more than two thirds."""
        return two_thirds(len(self.ids))

    # -- who keeps whose shares ------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(_ring(self.salt, self.ids))}

    def holders(self, client: int) -> list[int]:
        """Who keeps a share of this client's secrets, itself among them."""
        if self.neighbours is None or max(self.neighbours, HOLDERS) >= len(self.ids) - 1:
            return list(self.ids)
        ring, at, reach = _ring(self.salt, self.ids), self._places[client], max(self.neighbours, HOLDERS) // 2
        return [ring[(at + step) % len(ring)] for step in range(-reach, reach + 1)]

    def needed(self, client: int) -> int:
        """How many of them must answer for a secret to be put together: more than two thirds."""
        return two_thirds(len(self.holders(client)))

    @property
    def committee(self) -> tuple[int, ...]:
        """Who adds up the shares of a tally."""
        return self.ids if self.neighbours is None else _ring(self.salt, self.ids)[:COMMITTEE]

    def number(self, client: int) -> int:
        """By which a holder's share is known."""
        return self._numbers[client]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {client: number for number, client in enumerate(self.ids)}

    # -- who masks with whom ---------------------------------------------------------------------------------------

    def slots_of(self, client: int) -> list[int]:
        return [slot for slot, places in enumerate(self.positions) if client in places]

    @cached_property
    def positions(self) -> tuple[dict[int, int], ...]:
        """Of each cluster's members, in order."""
        return tuple({client: at for at, client in enumerate(members)} for members in self.members)

    @cached_property
    def _rings(self) -> tuple[tuple[list[int], dict[int, int]], ...]:
        """Each cluster's members as they stand on the ring, and where each is."""
        rings = [sorted(members, key=self._places.__getitem__) for members in self.members]
        return tuple((ring, {client: at for at, client in enumerate(ring)}) for ring in rings)

    def partners(self, client: int, slot: int) -> list[int]:
        ring, places = self._rings[slot]
        if self.neighbours is None or self.neighbours >= len(ring) - 1:
            return [other for other in ring if other != client]
        at, reach = places[client], self.neighbours // 2
        return [ring[(at + step) % len(ring)] for step in range(-reach, reach + 1) if step != 0]

    def exposed(self, survivors: Iterable[int]) -> str:
        """What the sums over these survivors would give away; empty if nothing but themselves."""
        return _exposed(self, frozenset(survivors))


def two_thirds(count: int) -> int:
    """More than two thirds of so many."""
    return 2 * count // 3 + 1


# The clients of a simulation ask the same of the same roster, and rosters of a thousand are long.


@lru_cache(maxsize=8)
def _ring(salt: bytes, ids: tuple[int, ...]) -> tuple[int, ...]:
    if not salt:
        return tuple(sorted(ids))
    return tuple(sorted(ids, key=lambda client: derive(client.to_bytes(8, "little"), b"ring", salt)))


@lru_cache(maxsize=8)
def _masked_by(roster: Roster, here: frozenset[int]) -> Roster:
    kept = [tuple(client for client in members if client in here) for members in roster.members]
    return replace(roster, members=tuple(members if len(members) >= LEAST else () for members in kept))


@lru_cache(maxsize=8)
def _exposed(roster: Roster, here: frozenset[int]) -> str:
    for slot, members in enumerate(roster.members):
        left = here.intersection(members)
        if 0 < len(left) < LEAST:
            return f"cluster {slot} has {len(left)} left, fewer than {LEAST}"
        if left and not _connected(roster, left, slot):
            return f"cluster {slot} falls apart into groups that share no mask"
    return ""


def _connected(roster: Roster, here: frozenset[int], slot: int) -> bool:
    if roster.neighbours is None:
        return True
    first = min(here)
    reached, todo = {first}, [first]
    while todo:
        fresh = here.intersection(roster.partners(todo.pop(), slot)) - reached
        reached |= fresh
        todo += fresh
    return reached == here
