"""Gaussian noise on sums that one unit moves by at most 1: how much of it each sum gets, and what it guarantees.

Where the noise is added decides whom one must trust, and that is the only difference between the three defences built
on this: ``CentralNoise``, ``DistributedNoise`` and ``LocalNoise``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from coterie.errors import InvalidInput, nearest, require
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.whole import STEP, UNITS
from coterie.privacy.accounting import Guarantee, Level, Trust, epsilon_near, guarantee_of, split_gaussian
from coterie.privacy.grid import ENTRIES, NoiseGrid
from coterie.privacy.guarantee import Against, Neighbours, RunFacts
from coterie.privacy.ledger import EVERYBODY, Spend
from coterie.rng import Secrets

RECORD_SHARES = {
    "reach/norms": 0.03,
    "middle/sums": 0.1,
    "middle/counts": 0.01,
    "outer/outer": 0.2,
    "weights/weights": 0.8,
    "bound/norms": 0.01,
    "centres/sums": 0.3,
    "centres/counts": 0.1,
    "centres/norms": 0.01,
    "lloyd/sums": 1.2,
    "lloyd/counts": 0.06,
    "lloyd/norms": 0.04,
}
CLIENT_SHARES = {
    "reach/norms": 0.1,
    "middle/sums": 0.3,
    "middle/counts": 0.03,
    "outer/outer": 1.0,
    "weights/weights": 0.5,
    "bound/norms": 0.1,
    "centres/sums": 0.5,
    "centres/counts": 0.05,
    "lloyd/sums": 1.5,
    "lloyd/counts": 0.05,
}
SHARES: Mapping[Level, Mapping[str, float]] = {Level.RECORD: RECORD_SHARES, Level.CLIENT: CLIENT_SHARES}
"""The stated rule: parts of the squared signal-to-noise ratio, tuned on mixtures and on census data.

With many records noise is small, and which optimum is found depends on how well the server's points are weighed. With
few clients the start is what everything hangs on. Counts need little: sums are about the old centres, so a wrong count
scales a small step; those of the cells are also the weights by which they are merged.
"""

STEPS: Mapping[Level, int] = {Level.RECORD: 8, Level.CLIENT: 1}
"""Steps of Lloyd for which a budget is planned where the caller names no number; fewer are taken if nothing moves."""

RISE = 5.0
"""The last step of Lloyd has so many times the first one's part: the last decides the result, the others the labels."""


def plan_noise(
    releases: Sequence[str],
    epsilon: float,
    delta: float,
    shares: Mapping[str, float],
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE,
) -> dict[str, float]:
    """Noise multipliers, one for each release, that together cost exactly (epsilon, delta) between such neighbours.

    A share goes by the release's name without the number of its step; Lloyd's steps divide theirs so that each has more
    than the one before (``RISE``), and other numbered steps divide theirs evenly.
    """
    require(len(releases) > 0, "releases", (), "must be at least one: this protocol has no sums to add noise to")
    plain = {release: _without_number(release) for release in releases}
    for name, share in shares.items():
        require(share > 0, f"shares[{name!r}]", share, "must be positive; leave a release out to give it nothing")
    for name in plain.values():
        if name not in shares:
            raise InvalidInput(
                f"shares have no part for {name!r}, which the protocol releases; it has {sorted(shares)}"
            )
    known = {*plain.values(), *RECORD_SHARES, *CLIENT_SHARES}
    for name in shares:
        if name not in known:
            raise InvalidInput(f"share {name!r} {nearest(name, known)}")
    parts = {release: _weight(release, plain) for release in releases}
    totals = {name: sum(parts[release] for release in releases if plain[release] == name) for name in plain.values()}
    parted = {release: shares[name] * parts[release] / totals[name] for release, name in plain.items()}
    times = 2 if neighbours is Neighbours.REPLACE else 1  # one unit goes and another comes
    return {release: times * z for release, z in split_gaussian(epsilon, delta, parted).items()}


def _weight(release: str, plain: Mapping[str, str]) -> float:
    """This step's weight among those that divide a share."""
    name = plain[release]
    steps = [other for other in plain if plain[other] == name]
    rises = name.startswith("lloyd/") and len(steps) > 1
    return float(RISE ** (steps.index(release) / (len(steps) - 1))) if rises else 1.0


def _without_number(release: str) -> str:
    kind, leaf = release.split("/")
    return f"{kind.split()[0]}/{leaf}"


@dataclass(frozen=True)
class NoisySums(Defence):
    """What the three have in common. ``noise`` names every sum of the run, "request/leaf", and its deviation.

    All noise is discrete, drawn from secrets, and added to whole numbers of steps (``coterie.learn.whole.UNITS``), so
    what a sum gets is the next larger deviation that its grid has. A sum that is not named is refused, wherever the
    noise is added: it would leave without any.
    """

    noise: Mapping[str, float] = field(default_factory=dict)
    neighbours: Neighbours | None = None  # None: what is usual where one trusts so (``Neighbours.usual``)

    trust: ClassVar[Trust]

    def __post_init__(self) -> None:
        for name, deviation in self.noise.items():
            require(0 <= deviation < math.inf, f"noise[{name!r}]", deviation, "must be a finite number of at least 0")

    @classmethod
    def within(
        cls,
        epsilon: float,
        delta: float,
        releases: Sequence[str],
        level: Level,
        *,
        shares: Mapping[str, float] | None = None,
        neighbours: Neighbours | None = None,
        **settings: Any,
    ) -> Self:
        """With so much noise on each release that all of them together cost (epsilon, delta) at this level."""
        near = neighbours or Neighbours.usual(cls.trust, level)
        noise = plan_noise(releases, epsilon, delta, SHARES[level] if shares is None else shares, near)
        return cls(noise, near, **settings)

    @property
    def presumes(self) -> bool:
        return True

    @property
    def shares(self) -> int:
        """How many independent draws are in each sum for certain."""
        return 1

    def fits(self, protocol: AnyProtocol) -> str:
        missing = [name for name in protocol.releases() if name not in self.noise]
        if not protocol.releases():
            return "it has no sums in which a unit's share is bounded, so no noise covers what one can change"
        if not self.noise:
            return "no noise is planned: what a unit adds to a sum must be bounded, by a level of 'record' or 'client'"
        return f"no noise is planned for {', '.join(missing)}" if missing else ""

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        return [GaussianDpEvent(multiplier(grid_of(deviation, self.shares))) for deviation in self.noise.values()]

    @property
    def ripple(self) -> float:
        """How far, in the logarithm, the probabilities of a run are from those that its events describe, at most."""
        grids = [grid_of(deviation, self.shares) for deviation in self.noise.values()]
        return ENTRIES * sum(grid.ripple for grid in grids if grid is not None)

    def guarantee(self, run: RunFacts) -> Guarantee:
        if run.bounded is None:
            why = "contributions are not bounded, so no noise covers what one unit can change; set a level"
            return Guarantee.none(why, Level.RECORD, self.trust)
        if run.reveals:
            return Guarantee.none(f"a client also reveals {run.reveals}", run.bounded, self.trust)
        near = self.neighbours or Neighbours.usual(self.trust, run.bounded)
        found = guarantee_of(self.events(run), run.delta, run.bounded, self.trust, 1.0, near, self.ripple)
        return replace(found, against=tuple(self.against(run.delta, near))) if found.proven else found

    def against(self, delta: float, neighbours: Neighbours) -> Iterator[Against]:
        """Each adversary, and what holds against it."""
        return iter(())

    def epsilon(self, delta: float, neighbours: Neighbours, shares: int = 1) -> float:
        """What all releases cost if so many independent draws are in each that the adversary does not know."""
        grids = [grid_of(deviation, self.shares) for deviation in self.noise.values()]
        known = [0.0 if grid is None else replace(grid, shares=shares).multiplier for grid in grids]
        return epsilon_near([GaussianDpEvent(z) for z in known], delta, self.ripple, neighbours)


Grids = Mapping[str, NoiseGrid | None]
"""By leaf; None: no noise is planned."""


@lru_cache(maxsize=1024)
def grid_of(deviation: float, shares: int) -> NoiseGrid | None:
    return NoiseGrid.over(UNITS, deviation, shares) if deviation > 0 else None


def multiplier(grid: NoiseGrid | None) -> float:
    return 0.0 if grid is None else grid.multiplier


def grids_of(
    noise: Mapping[str, float], turn: Turn, leaves: Iterable[str], shares: int = 1
) -> dict[str, NoiseGrid | None]:
    """The grid of each leaf of this request's answer."""
    found = {}
    for leaf in leaves:
        name = f"{turn.kind}/{leaf}"
        if name not in noise:
            raise InvalidInput(
                f"sum {name!r} has no noise planned and would leave without any; give plan_noise all releases "
                f"of the protocol. Planned: {sorted(noise)}"
            )
        found[leaf] = grid_of(noise[name], shares)
    return found


def told(grids: Grids, draws: float = 1.0) -> dict[str, float]:
    """The deviation of each sum's noise, of which there are ``draws`` times as many draws as its grid has shares."""
    return {leaf: 0.0 if grid is None else grid.deviation * math.sqrt(draws) for leaf, grid in grids.items()}


def spend(grids: Grids, turn: Turn, clients: Iterable[int] = (EVERYBODY,)) -> None:
    """Write down what these releases cost those who are in them."""
    for leaf, grid in grids.items():
        turn.ledger.spend(Spend(f"{turn.kind}/{leaf}", multiplier(grid)), clients)


def noised(values: Tensor, grid: NoiseGrid | None, secrets: Secrets) -> Tensor:
    """The values (...) with noise, in steps of the noise, int64; without a grid, in those of the contributions.

    What a protocol sends at a level is on the contributions' grid already. What else comes is rounded to it: nothing is
    claimed of that.
    """
    steps = values.double() * UNITS
    largest = float(steps.abs().max()) if steps.numel() else 0.0
    require(largest < 2.0**53, "largest sum", "beyond the grid", f"must be below {2.0**53 / UNITS:.3g}; scale it down")
    whole = steps.round_().long()
    return whole if grid is None else torch.from_numpy(grid.noised(whole.numpy(), secrets))


def values_of(noised: Tensor, grid: NoiseGrid | None) -> Tensor:
    """``noised`` in the measure of the contributions, float64."""
    return noised.double() * (STEP / (1 if grid is None else grid.multiple))
