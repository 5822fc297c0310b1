"""A weighted grid with a guarantee against the server: noise on what parties tell of clusters, phantoms in sketches.

For ``protocols.clusterings.weighted_grid`` (Li, Wang and Li 2023). Sums and counts of local clusters get Gaussian noise
on whole numbers; sketches are private by themselves once phantoms and a floor are added (Smith, Song and Thakurta
2020), for whoever does not know the secret that the parties share. One party that hands it to the server opens the
others' memberships, not their columns.

Where we differ: a record has one level with all parties, so their sketches are priced as one release, and phantoms are
records that all parties have, as many in each node of the grid (``learn.clusters.sketches``). With phantoms of each
party's own, every sketch was private and all of them were not: of two parties at a stated epsilon of 1, a high level
that both told gave away more than 9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from torch import Tensor

from coterie.errors import require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.clusters.sketches import common, cost, phantom_levels, veil
from coterie.privacy.accounting import as_gaussian, guarantee_of, noise_for
from coterie.privacy.grid import NoiseGrid
from coterie.privacy.guarantee import Against, Guarantee, Level, Neighbours, RunFacts, Trust, Whom
from coterie.privacy.ledger import Spend
from coterie.privacy.public_range import PublicRange
from coterie.wire.messages import Contributions

NO_GRID = "it tells no sketches of clusters; use it with WeightedGrid"
NOTHING = "no noise was asked for, so nothing is hidden"
FIRST = 0  # the party that writes down what all parties' sketches cost together
COUNTED = 0.5  # what a record adds to its count, as a part of the most that it adds to its sum
BESIDE = 2  # requests that tell of no record's columns: widths at first, members at last
MOST_ENTRIES = 1 << 20  # of one release: each has its ripple


@dataclass(frozen=True)
class PrivateGrid(Defence):
    """Multiplier of the noise on each request's sums, and epsilon of one element in one sketch; None: no noise.

    ``low`` and ``high`` are public and must be the protocol's. ``planned`` finds both from what all of it may cost.
    """

    noise_multiplier: float | None = None
    sketch_epsilon: float = 0.01
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        given = self.noise_multiplier
        require(given is None or given > 0, "noise_multiplier", given, "must be positive, or None for no noise")
        require(self.sketch_epsilon > 0, "sketch_epsilon", self.sketch_epsilon, "must be positive")
        _ = self.span

    @property
    def span(self) -> PublicRange:
        return PublicRange.of(self.low, self.high)

    @staticmethod
    def planned(epsilon: float, delta: float, run: RunFacts, low: float = 0.0, high: float = 1.0) -> PrivateGrid:
        """Half of the budget, by squared signals over noise, for centres and half for memberships."""
        if math.isinf(epsilon):
            return PrivateGrid(None, low=low, high=high)

        def of(scale: float) -> PrivateGrid:
            steps = max(1, run.rounds - BESIDE)
            each = math.sqrt(run.clients * steps / run.numbers_a_record) / scale
            return PrivateGrid(scale, min(1.0, each), low, high)

        return of(noise_for(epsilon, delta, lambda scale: of(scale).events(run), Neighbours.REPLACE))

    @property
    def presumes(self) -> bool:
        return True

    @property
    def client(self) -> ClientGuard:
        return ClientGuard() if self.noise_multiplier is None else GridClient(self, self.noise_multiplier)

    def fits(self, protocol: AnyProtocol) -> str:
        if not getattr(protocol, "sketches", 0):
            return NO_GRID
        own, its = (self.low, self.high), (getattr(protocol, "low", None), getattr(protocol, "high", None))
        if self.noise_multiplier is None or own == its:
            return ""
        return f"its noise is for columns in {own}, and the protocol's are in {its}: a record would change more"

    @property
    def of_a_sketch(self) -> float:
        """As noise: what replacing a record costs in one sketch of all parties. It leaves one node for another."""
        return as_gaussian(2 * cost(*veil(self.sketch_epsilon)))

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        if self.noise_multiplier is None:
            return ()
        sums = SelfComposedDpEvent(GaussianDpEvent(self.noise_multiplier), run.clients * (run.rounds - BESIDE))
        told = SelfComposedDpEvent(GaussianDpEvent(self.of_a_sketch), run.numbers_a_record)
        return [sums, told]

    def guarantee(self, run: RunFacts) -> Guarantee:
        if self.noise_multiplier is None:
            return Guarantee.none(NOTHING, Level.RECORD, Trust.COMMON_SECRET)
        ripple = MOST_ENTRIES * run.clients * run.rounds * _grid(self.noise_multiplier, 1, self.span.half).ripple
        events = self.events(run)
        found = guarantee_of(events, run.delta, Level.RECORD, Trust.COMMON_SECRET, 1.0, Neighbours.REPLACE, ripple)
        found = replace(found, against=tuple(self._against(found.epsilon)) if found.proven else ())
        return found.beside(run.reveals)

    def _against(self, epsilon: float) -> Iterator[Against]:
        """A party has the secret, and what comes out follows from sketches in which nothing is random to it."""
        for whom in (Whom.PUBLIC, Whom.SERVER):
            yield Against(whom, epsilon)
        yield Against(Whom.PARTICIPANT, math.inf)


def _grid(multiplier: float, width: int, half: int) -> NoiseGrid:
    return NoiseGrid.over(math.ceil(half * math.sqrt(width * (1 + COUNTED**2))), multiplier)


@dataclass(frozen=True)
class GridClient(ClientGuard):
    defence: PrivateGrid
    multiplier: float

    @property
    def reveals(self) -> str:
        return ""

    def columns(self, cohort: Cohort) -> tuple[Tensor, ...]:
        return tuple(self.defence.span.on_grid(own) for own in cohort.columns)

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        parties, turn = sent.ids.tolist(), cohort.turn
        if "sketches" in sent.values:
            return self._veiled(sent, cohort)
        if "sums" not in sent.values:
            return sent
        turn.ledger.spend(Spend(f"{turn.kind}/sums", self.multiplier), times=len(parties))
        rows_of_both = [
            self._noised(sums, counts, own.shape[1], cohort, party)
            for sums, counts, own, party in zip(
                sent.values["sums"], sent.values["counts"], cohort.columns, parties, strict=True
            )
        ]
        sums, counts = (torch.stack(part) for part in zip(*rows_of_both, strict=True))
        return replace(sent, values={"sums": sums, "counts": counts})

    def _veiled(self, sent: Contributions, cohort: Cohort) -> Contributions:
        turn, leaf, centres = cohort.turn, sent.values["sketches"], cohort.given["centres"]
        phantoms, floor = veil(self.defence.sketch_epsilon)
        secret = common(turn.roots.secrets, centres.numpy()).child("phantoms")
        everybody = phantom_levels(centres.shape[1], leaf.shape[-2], leaf.shape[-1], phantoms, secret)
        added = torch.from_numpy(everybody[sent.ids.numpy()]).to(leaf.dtype).clamp_min(floor)
        if FIRST in sent.ids.tolist():
            turn.ledger.spend(Spend(f"{turn.kind}/sketches", self.defence.of_a_sketch), times=leaf.shape[-1])
        return replace(sent, values={"sketches": leaf.maximum(added.view_as(leaf))})

    def _noised(self, sums: Tensor, counts: Tensor, width: int, cohort: Cohort, party: int) -> tuple[Tensor, Tensor]:
        """One vector: sums in steps, and counts so weighted that they take their part of its norm."""
        span = self.defence.span
        grid, weight = _grid(self.multiplier, width, span.half), math.floor(COUNTED * span.half * math.sqrt(width))
        whole = span.steps(sums[..., :width]).flatten()
        heads = counts.round().long().flatten() * weight
        drawn = grid.noised(torch.cat([whole, heads]).numpy(), cohort.turn.secrets(party, "noise"))
        told = torch.from_numpy(grid.values(drawn, 1.0))
        released = torch.zeros_like(sums)
        released[..., :width] = (told[: len(whole)] * span.step).view(*sums.shape[:-1], width)
        return released, (told[len(whole) :] / weight).view(counts.shape)
