"""Gaussian noise on sums that one unit moves by at most 1: how much of it each sum gets, and what it guarantees.

Where the noise is added decides whom one must trust, and that is the only difference between the three defences built
on this: ``CentralNoise``, ``DistributedNoise`` and ``LocalNoise``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from coterie.errors import InvalidInput, nearest, require
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import Params
from coterie.privacy.accounting import Guarantee, Level, Trust, guarantee_of, split_gaussian
from coterie.privacy.guarantee import RunFacts
from coterie.privacy.ledger import EVERYBODY, Spend

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


def plan_noise(releases: Sequence[str], epsilon: float, delta: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Noise multipliers, one for each release, that together cost exactly (epsilon, delta).

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
    return split_gaussian(
        epsilon, delta, {release: shares[name] * parts[release] / totals[name] for release, name in plain.items()}
    )


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

    A sum that is not named is refused, wherever the noise is added: it would leave without any.
    """

    noise: Mapping[str, float] = field(default_factory=dict)

    trust: ClassVar[Trust]

    def __post_init__(self) -> None:
        for name, deviation in self.noise.items():
            require(0 <= deviation < math.inf, f"noise[{name!r}]", deviation, "must be a finite number of at least 0")

    def fits(self, protocol: AnyProtocol) -> str:
        missing = [name for name in protocol.releases() if name not in self.noise]
        if not protocol.releases():
            return "it has no sums in which a unit's share is bounded, so no noise covers what one can change"
        return f"no noise is planned for {', '.join(missing)}" if missing else ""

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        return [GaussianDpEvent(deviation) for deviation in self.noise.values()]

    def guarantee(self, run: RunFacts) -> Guarantee:
        if run.bounded is None:
            why = "contributions are not bounded, so no noise covers what one unit can change; set a level"
            return Guarantee.none(why, Level.RECORD, self.trust)
        if run.reveals:
            return Guarantee.none(f"a client also reveals {run.reveals}", run.bounded, self.trust)
        return guarantee_of(self.events(run), run.delta, run.bounded, self.trust, clip=1.0)


def deviations(noise: Mapping[str, float], turn: Turn, leaves: Params) -> dict[str, float]:
    """The deviation planned for each leaf of this request's answer."""
    found = {}
    for leaf in leaves:
        name = f"{turn.kind}/{leaf}"
        if name not in noise:
            raise InvalidInput(
                f"sum {name!r} has no noise planned and would leave without any; give plan_noise all releases "
                f"of the protocol. Planned: {sorted(noise)}"
            )
        found[leaf] = noise[name]
    return found


def spend(planned: Mapping[str, float], turn: Turn, clients: Iterable[int] = (EVERYBODY,)) -> None:
    """Write down what these releases cost those who are in them."""
    for leaf, deviation in planned.items():
        turn.ledger.spend(Spend(f"{turn.kind}/{leaf}", deviation), clients)


def client_noise(leaves: Params, ids: Tensor, deviation: Mapping[str, float], turn: Turn) -> dict[str, Tensor]:
    """The leaves (clients, ...) with noise from each client's own stream."""
    noisy = {}
    for name, leaf in leaves.items():
        if deviation[name] == 0:
            noisy[name] = leaf
            continue
        drawn = torch.stack(
            [torch.randn(leaf.shape[1:], generator=turn.secrets(one, "noise", name).torch()) for one in ids.tolist()]
        )
        noisy[name] = leaf + drawn.mul_(deviation[name])
    return noisy
