"""What canaries prove of DP-SGD: of an honest one never more than it claims, of one with less noise that it is broken.

A federation of 20 clients with 784-32-10 networks, one round of all their records: one Gaussian release a client, so
that nothing but the audit itself loses anything. Seen by the server, which knows all other records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.data.partition import Iid
from coterie.data.sources.embedded import Mnist5k
from coterie.defences.dpsgd import DpSgd, NoisyGradients
from coterie.flow.guard import ClientGuard
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.canaries import CanaryBound
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.planted import DELTA, Noise, Planted
from coterie.privacy.guarantee import Guarantee
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng

AUDITS, CANARIES = 100, 1000
SIGMA_8, SIGMA_2_6 = 0.6, 1.6  # what costs epsilon 8, and 2.6, at delta 1e-5
LEAST = 1.5


@dataclass(frozen=True)
class CutNoise(DpSgd):
    """It claims its noise multiplier, and adds this part of it: what an audit must find out."""

    part: float = 0.3

    @property
    def client(self) -> ClientGuard:
        return NoisyGradients(self.clip, self.part * self.noise_multiplier)


def audited(defence: DpSgd, seed: int, canaries: int = CANARIES) -> tuple[Guarantee, CanaryBound]:
    """What is claimed of the run with canaries, and what the server proves."""
    rng, examples = Rng.seeded(seed), Mnist5k().load()
    federation = Iid(20).split(examples, rng.child("partition"))
    local = Local(steps=1, batch_size=1000, lr=0.1, poisson=True)  # more than anybody has
    protocol, model = FedAvg(rounds=1, local=local), Dense((784, 32, 10))
    planted = Planted.run(protocol, federation, model, defence, canaries, rng)
    white = planted.found(Noise(defence.clip, defence.noise_multiplier), local)[0]
    return defence.guarantee(protocol.facts(planted.federation, DELTA)), white.bound(DELTA, CONFIDENCE)


def canaries(options: Options, audits: int = AUDITS) -> Iterator[Ratio]:
    """Seeds from 1000 on: what was chosen (how many answers, how canaries look) was chosen on others.

    Of an epsilon of 8 no such audit could prove more than 4.17, so that only of the smaller one "never violated" says
    anything.
    """
    seeds = range(1000 + options.seed, 1000 + options.seed + audits)
    for sigma in (SIGMA_2_6, SIGMA_8):
        found = [audited(DpSgd(1.0, sigma), seed) for seed in seeds]
        claim, bound = found[0]
        could = f"at most {bound.power:.2f} could have been proven"
        told = f"{CANARIES} canaries, claimed epsilon {claim.epsilon:.2f}, {could}"
        largest = max(one.epsilon / said.epsilon for said, one in found)
        name = f"honest DP-SGD of {claim.epsilon:.2f}, measured over claimed epsilon: largest of {audits} audits"
        yield Ratio(name, largest, "", None, 1.0, bound_on_ratio=False, setup=told)
    middle = median(one.epsilon for _, one in found)
    name = f"{LEAST} over the epsilon that is measured of {claim.epsilon:.2f}: median of {audits} audits"
    yield Ratio(name, LEAST / middle, "", None, 1.0, bound_on_ratio=False, setup=told)
    cut = [audited(CutNoise(1.0, SIGMA_2_6), seed) for seed in seeds[: audits // 5]]
    told = f"claimed epsilon {cut[0][0].epsilon:.2f}; the noise is 0.3 of what is claimed"
    name = f"cut noise, claimed over measured epsilon: largest of {len(cut)} audits"
    missed = max(said.epsilon / max(one.epsilon, 1e-9) for said, one in cut)
    yield Ratio(name, missed, "", None, 1.0, bound_on_ratio=False, setup=told)
