"""Distances blinded by what the parties share and the server does not: an offset, a scale and an order for each record.

The server only needs to know which total is the least, so every record's numbers may be scaled by a positive factor,
shifted, and put in an order that the parties alone know; they are told a place, and know the cluster. Masked sums
(``SecureSums``) belong on top: ``Stack(Blinding(), SecureSums())``.

What is left to the server is the shape of a record's totals: their ratios, sorted, and over many steps their range, for
scales are drawn anew. That is less than distances, but with many known records more than the assignments
(``attacks.distance_geometry.Seen.SHAPES``). One party that hands over what they share opens everything.

A server that chooses the centres again and again would have a ratio of known distances each time, and with that every
column. So parties blind for one request a round, start on different records, in the first round alone, and else go by
the places of the round before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import NotPermitted, require
from coterie.flow.cohort import Cohort, Memory
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import Params
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.rng import Secrets
from coterie.wire.messages import Contributions, Published

RECORDS = "records"  # published: on which centres start
LAST = "blinding: the last round"
LABELS, OF, AMONG = "labels", "of", "among"  # published: places of the least totals, of which round, among how many
NO_RECORDS = "its server does not look for the least number of a record, and blinded numbers serve for nothing else"
READS = "the server draws records by their distances, which it cannot do blindly; start on records that it draws freely"


@dataclass(frozen=True)
class Blinding(Defence):
    """``spread``: scales lie between 2^-spread and 2^spread, and offsets between 0 and 2^spread; 0: neither.

    ``permute``: also the order. The server then cannot see that nothing moves any more, so all steps are run. Without
    it the server tells the parties clusters of its own choice, and reads every column off centres that it knows.
    """

    spread: float = 4.0
    permute: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.spread <= 16, "spread", self.spread, "must lie in 0..16: masked sums have so many bits")

    @property
    def client(self) -> ClientGuard:
        return BlindingClient(self.spread, self.permute) if self.spread or self.permute else ClientGuard()

    def fits(self, protocol: AnyProtocol) -> str:
        if not protocol.tells_records:
            return NO_RECORDS
        return READS if getattr(protocol, "seedings", 0) else ""

    def guarantee(self, run: RunFacts) -> Guarantee:
        why = (
            "records are hidden by what the parties share, not by noise, so there is no epsilon; in a run from a seed, "
            "what they share follows from the seed"
        )
        return Guarantee.none(why, Level.RECORD, Trust.NO_COLLUSION)


@dataclass(frozen=True)
class BlindingClient(ClientGuard):
    spread: float
    permute: bool

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        for leaf in sent.values.values():
            for memory in cohort.memory:
                self._permit(cohort, memory, leaf.shape[-1])
        shared = _shared(cohort.turn, cohort.turn.round)
        return replace(sent, values={name: self._blinded(leaf, shared) for name, leaf in sent.values.items()})

    def _permit(self, cohort: Cohort, memory: Memory, numbers: int) -> None:
        """Centres that the server chose tell it which number is whose, and so does a second answer in one round."""
        round, given = cohort.turn.round, cohort.given
        chosen = given[RECORDS].flatten() if RECORDS in given else None
        if round <= memory.get(LAST, -1):
            raise NotPermitted(f"round {round} was blinded before, or is past; a second answer would open the first")
        if chosen is not None and (round > 0 or len(chosen.unique()) < len(chosen)):
            raise NotPermitted(
                f"records={chosen.tolist()} of round {round} must be different ones, in the first round alone: the "
                "server would know which of the blinded numbers is whose"
            )
        if chosen is None and _origin(given) != (round - 1, numbers):
            raise NotPermitted(f"places in round {round} must be those of the round before, among {numbers}")
        memory[LAST] = round

    def _blinded(self, leaf: Tensor, shared: Secrets) -> Tensor:
        """Of a leaf (clients, 1, records, numbers)."""
        records, numbers = leaf.shape[-2:]
        if self.spread:
            powers = _uniform(shared.child("scale"), records) * (2 * self.spread) - self.spread
            offsets = _uniform(shared.child("offset"), records) * 2.0**self.spread
            leaf = leaf.double() * torch.from_numpy(2.0**powers).unsqueeze(1) + torch.from_numpy(offsets).unsqueeze(1)
        if self.permute:
            order = _orders(shared, records, numbers).expand(*leaf.shape)
            leaf = leaf.gather(-1, order)
        return leaf

    def receive(self, published: Published, turn: Turn) -> Published:
        """The clusters of the places that the server found."""
        if LABELS not in published.values or not self.permute:
            return published
        places = published.values[LABELS][0].long()
        of, among = _origin(published.values)
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < among:
            raise NotPermitted(f"places up to {int(places.max())} among {among} must be those of least totals")
        order = _orders(_shared(turn, of), len(places), among)
        labels = order.gather(1, places.unsqueeze(1))[:, 0].to(published.values[LABELS].dtype)
        return replace(published, values={**published.values, LABELS: labels.unsqueeze(0)})


def _origin(told: Params) -> tuple[int, int]:
    """Of which round's totals the places are, and among how many."""
    missing = [name for name in (OF, AMONG) if name not in told or told[name].numel() != 1]
    if missing:
        raise NotPermitted(f"places={missing} must come with one number each: of which round, and among how many")
    return int(told[OF]), int(told[AMONG])


def _shared(turn: Turn, round: int) -> Secrets:
    """What all parties know in this round. In a simulation they have one root; deployed ones must agree on one."""
    return turn.roots.secrets.child("shared by the parties", "round", round)


def _uniform(secrets: Secrets, count: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = (secrets.words(count) >> np.uint64(11)).astype(np.float64)
    return found * 2.0**-53


def _orders(shared: Secrets, records: int, numbers: int) -> Tensor:
    """(records, numbers): which number stands at each place, in an order of each record's own."""
    words = shared.child("order").words(records * numbers).reshape(records, numbers)
    return torch.from_numpy(np.argsort(words, axis=1))
