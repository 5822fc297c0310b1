"""Every defence, on every protocol that it fits: one line a member."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.laws.members import MEMBERS, Member

from coterie.defences.adaptive_ldp import AdaptiveLdp, Budget, PlainLdp
from coterie.defences.authenticated import Authenticated
from coterie.defences.blinding import Blinding
from coterie.defences.ckks_sums import CkksSums
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd
from coterie.defences.mingling.defence import Mingling
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.published import PublishedNoise
from coterie.defences.private_grid import PrivateGrid
from coterie.defences.proven_sums import ProvenSums
from coterie.defences.randomised_response.defence import PerturbOnce, RandomisedResponse
from coterie.defences.randomised_response.mechanisms import generalised, piecewise
from coterie.defences.regularise import L2, Dropout
from coterie.defences.robust import Krum, Median, NormClip, TrimmedMean
from coterie.defences.secure_sums import PairwiseMasks, SecureSums, Smallest
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.flow.stack import Stack
from coterie.learn.generative.duel import Bout
from coterie.seal.mock import MockCipher

Make = Callable[[Protocol[Any]], Defence]


@dataclass(frozen=True)
class Shield:
    """A defence at work, and at the setting at which it changes nothing."""

    active: Make
    neutral: Make
    silent: bool = False  # an honest run under it is as it was: what it is for takes an adversary
    to_the_grid: bool = False  # sealed values are rounded to a grid of 2^-24, which its neutral setting does too


def _noise(size: float) -> Callable[[Protocol[Any]], dict[str, float]]:
    return lambda protocol: dict.fromkeys(protocol.releases(), size)


LITTLE, NONE = _noise(0.05), _noise(0.0)

DEFENCES = {
    "DP-SGD": Shield(lambda _: DpSgd(0.5, 0.3), lambda _: DpSgd(math.inf, 0.0)),
    "dropout": Shield(lambda _: Dropout(0.3), lambda _: Dropout(0.0)),
    "L2": Shield(lambda _: L2(0.1), lambda _: L2(0.0)),
    "central noise": Shield(lambda on: CentralNoise(LITTLE(on)), lambda on: CentralNoise(NONE(on))),
    "local noise": Shield(lambda on: LocalNoise(LITTLE(on)), lambda on: LocalNoise(NONE(on))),
    "distributed noise": Shield(
        lambda on: DistributedNoise(LITTLE(on), clients=8, colluders=0, dropouts=1),
        lambda on: DistributedNoise(NONE(on), clients=8, colluders=0, dropouts=1),
        to_the_grid=True,
    ),
    "distributed noise, masks": Shield(
        lambda on: DistributedNoise(LITTLE(on), clients=8, colluders=0, dropouts=1, masks=PairwiseMasks()),
        lambda on: DistributedNoise(NONE(on), clients=8, colluders=0, dropouts=1, masks=PairwiseMasks()),
        to_the_grid=True,
    ),
    "randomised response": Shield(
        lambda _: RandomisedResponse(generalised(1.0, 16), bound=40.0), lambda _: RandomisedResponse()
    ),
    "perturb once": Shield(lambda _: PerturbOnce(piecewise(1.0), -6.0, 6.0), lambda _: PerturbOnce()),
    "layers": Shield(
        lambda _: Stack(PerturbOnce(piecewise(4.0), -6.0, 6.0, ((0,), (), (1, 2))), SecureSums()),
        lambda _: Stack(PerturbOnce(), SecureSums()),
        to_the_grid=True,
    ),
    "private grid": Shield(lambda _: PrivateGrid(0.5, 0.1, -6.0, 6.0), lambda _: PrivateGrid()),
    "authenticated": Shield(lambda _: Authenticated(bytes(32)), lambda _: Authenticated(bytes(32)), silent=True),
    "blinding": Shield(lambda _: Blinding(), lambda _: Blinding(0.0, permute=False)),
    "CKKS sums": Shield(lambda _: CkksSums(), lambda _: CkksSums(), to_the_grid=True),
    "proven sums": Shield(
        lambda _: ProvenSums(bound=400.0, sampled=2),
        lambda _: ProvenSums(bound=400.0, bits=16, sampled=1),
        to_the_grid=True,
    ),
    "published noise": Shield(
        lambda on: PublishedNoise.planned(on.releases(), 4.0, 1e-6),
        lambda on: PublishedNoise(
            {name: 0.0 for name in on.releases() if name.split("/")[1] not in ("weights", "counts")},
            laplace={name: 0.0 for name in on.releases() if name.split("/")[1] in ("weights", "counts")},
        ),
    ),
    "secure sums": Shield(lambda _: SecureSums(), lambda _: SecureSums(), to_the_grid=True),
    "mingling": Shield(
        lambda _: Mingling(threshold=1, exact=False, cipher=MockCipher(), partition=False),
        lambda _: Mingling(rate=1e-9, threshold=1, exact=False, cipher=MockCipher(), partition=False),
        to_the_grid=True,
    ),
    "exact mingling, masks": Shield(
        lambda _: Mingling(smallest=Smallest(1)),
        lambda _: Mingling(cipher=MockCipher()),
        to_the_grid=True,
    ),
    "adaptive LDP": Shield(
        lambda _: AdaptiveLdp(Budget(2.0, 1.0, 4), similar=-1.0, bout=Bout(steps=1, batch=4)),
        lambda _: AdaptiveLdp(probability=0.0, high=0.0, medium=0.0),
    ),
    "plain LDP": Shield(lambda _: PlainLdp(), lambda _: PlainLdp(sensitivity=0.0)),
    "clipped LDP": Shield(
        lambda _: ClippedLdp(1.0, 2.0, Budget(2.0, 1.0, 4), lighter=0.5), lambda _: ClippedLdp(math.inf, 0.0)
    ),
    "norm clipping": Shield(lambda _: NormClip(0.2), lambda _: NormClip(math.inf)),
    "median": Shield(lambda _: Median(), lambda _: TrimmedMean(0.0)),
    "trimmed mean": Shield(lambda _: TrimmedMean(0.3), lambda _: TrimmedMean(0.0)),
    "Krum": Shield(lambda _: Krum(), lambda _: Krum(bad=0)),
    "stack": Shield(
        lambda _: Stack(DpSgd(0.5, 0.3), L2(0.1)), lambda _: Stack(DpSgd(math.inf, 0.0), L2(0.0), Dropout(0.0))
    ),
    "stack that seals": Shield(
        lambda _: Stack(L2(0.1), SecureSums()), lambda _: Stack(L2(0.0), SecureSums()), to_the_grid=True
    ),
}


def fitting() -> Iterator[tuple[str, Shield, Member]]:
    """Every defence on every protocol that it fits."""
    for name, shield in DEFENCES.items():
        for on, member in MEMBERS.items():
            if not shield.active(member.protocol).fits(member.protocol):
                yield f"{name} on {on}", shield, member


PAIRS = {name: (shield, member) for name, shield, member in fitting()}
every_pair = pytest.mark.parametrize(("shield", "member"), PAIRS.values(), ids=PAIRS.keys())
FEW: dict[
    str, tuple[Shield, Member]
] = {}  # of each defence, the first protocol that it fits: where a law is about the defence and is not cheap
for _name, _pair in PAIRS.items():
    FEW.setdefault(_name.split(" on ")[0], _pair)
every_defence = pytest.mark.parametrize(("shield", "member"), FEW.values(), ids=FEW.keys())
