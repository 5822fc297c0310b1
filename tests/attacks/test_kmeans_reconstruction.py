"""The paper's two reconstructions on the protocol as it ran, under each trust model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.attacks.reconstruction import (
    CURIOUS_SERVER,
    OTHERS,
    REST,
    ClientReconstruction,
    RecordReconstruction,
    seen,
)
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import SHARES, plan_noise
from coterie.errors import InvalidInput
from coterie.estimators import federate, run_clustering
from coterie.flow.guard import Defence
from coterie.learn.clusters.clipping import Unclipped
from coterie.measure.findings import Finding
from coterie.measure.judge import judge
from coterie.measure.reconstruction import Originals, client_shift, cosine, cosines, finding
from coterie.measure.verdicts import Verdict
from coterie.privacy.guarantee import Level, Trust
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import View

FEATURES, CLUSTERS, CLIENTS, EACH, TRIALS = 20, 3, 4, 15, 30
CENTRES = 3 * torch.eye(CLUSTERS, FEATURES)


def parts(seed: int) -> list[Tensor]:
    draws = Rng.seeded(seed).child("points").torch()
    labels = torch.randint(CLUSTERS, (CLIENTS, EACH), generator=draws)
    return list(CENTRES[labels] + torch.randn(CLIENTS, EACH, FEATURES, generator=draws))


def lloyd(level: Level | None) -> FederatedLloyd:
    return FederatedLloyd(CLUSTERS, level, centres=CENTRES, steps=1, bound=3.0)


def defence(trust: Trust | None, level: Level) -> Defence:
    if trust is None:
        return Defence()
    noise = plan_noise(lloyd(level).releases(), 1.0, 1e-6, SHARES[level])
    match trust:
        case Trust.TRUSTED_AGGREGATOR:
            return CentralNoise(noise)
        case Trust.LOCAL_NOISE:
            return LocalNoise(noise)
        case _:
            return DistributedNoise(noise, clients=CLIENTS)


def recorded(federation: Federation, trust: Trust | None, level: Level, seed: int) -> View:
    tape = Tape([CURIOUS_SERVER])
    run_clustering(lloyd(None if trust is None else level), federation, Rng.seeded(seed), defence(trust, level), tape)
    return tape.view(CURIOUS_SERVER)


def examples(x: Tensor) -> Examples:
    return Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "known")


def record_trial(trust: Trust | None, seed: int) -> float:
    points = parts(seed)
    attack = RecordReconstruction(0, unit=Unclipped if trust is None else lloyd(Level.RECORD).unit)
    auxiliary = Auxiliary(parts={REST: examples(points[0][1:]), OTHERS: examples(torch.cat(points[1:]))})
    guess = attack.infer(recorded(federate(points), trust, Level.RECORD, seed), auxiliary, Rng.seeded(seed))
    return cosines(guess, Originals({0: points[0][0]}))[0]


def client_trial(trust: Trust | None, level: Level, seed: int) -> float:
    points = parts(seed)
    unit = Unclipped if trust is None else lloyd(level).unit
    view = recorded(federate(points), trust, level, seed)
    guess = ClientReconstruction(0, unit=unit, others=tuple(points[1:])).infer(view, Auxiliary(), Rng.seeded(seed))
    truth = client_shift(points[0], {"centres": CENTRES})
    return cosines(guess, Originals({0: truth}))[0]


def over_trials(trial: object, *arguments: object) -> Finding:
    return finding([trial(*arguments, seed) for seed in range(TRIALS)], "reconstruction")  # type: ignore[operator]


@pytest.mark.parametrize("trust", [None, Trust.TRUSTED_AGGREGATOR])
def test_a_server_that_is_sent_exact_sums_rebuilds_the_record(trust: Trust | None) -> None:
    found = over_trials(record_trial, trust)
    assert found.score > 0.9999
    assert found.verdict is Verdict.LEAKS


@pytest.mark.parametrize("trust", [Trust.LOCAL_NOISE, Trust.DISTRIBUTED_NOISE])
def test_noise_before_the_server_leaves_it_nothing(trust: Trust) -> None:
    """At epsilon 1 the mean cosine is 0.01 or less, and 30 trials scatter by 0.04: a false alarm once in 20 seeds."""
    found = over_trials(record_trial, trust)
    assert 0 in found.interval
    assert abs(found.score) < 0.15
    assert found.chance == 0


@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
def test_a_client_s_mean(level: Level) -> None:
    """Clipped records bend the mean a little; a client's clipped means keep their direction."""
    assert over_trials(client_trial, None, level).score > 0.9999
    assert over_trials(client_trial, Trust.TRUSTED_AGGREGATOR, level).score > 0.98
    if level is Level.CLIENT:
        for trust in (Trust.LOCAL_NOISE, Trust.DISTRIBUTED_NOISE):
            found = over_trials(client_trial, trust, level)
            assert 0 in found.interval


def test_a_finding_by_hand() -> None:
    view = recorded(federate(parts(0)), None, Level.RECORD, 0)
    auxiliary = Auxiliary(parts={REST: examples(parts(0)[0][1:])})
    guess = RecordReconstruction(0, unit=Unclipped).infer(view, auxiliary, Rng.seeded(0))
    one = judge(guess, Originals({0: parts(0)[0][0]}), "records")
    assert one.score == pytest.approx(1)
    assert not one.interval.is_known
    assert one.verdict is Verdict.UNDECIDED
    assert cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])) == pytest.approx(0.96)
    assert cosine(torch.zeros(2), torch.ones(2)) == 0


def test_a_step_that_was_not_run_is_named() -> None:
    view = recorded(federate(parts(0)), None, Level.RECORD, 0)
    with pytest.raises(InvalidInput, match="kind='lloyd 9' was not asked in this run"):
        seen(view, "lloyd 9", 0, Unclipped)
