"""The audit on a real release: noisy cluster sums of a federation, with and without one record."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.learn.clusters.clipping import Clip, RecordClip, Unclipped
from coterie.learn.clusters.lloyd import cluster_sums, nearest, packed_outer_products
from coterie.learn.clusters.points import Points
from coterie.measure.claims import Outcome, Promise, judge_guarantee
from coterie.measure.curves import curve_of
from coterie.measure.epsilon import Scores, epsilon_lower_bound
from coterie.measure.intervals import Floats
from coterie.privacy.accounting import Level, Trust, guarantee_of
from coterie.rng import Rng

DELTA = 1e-6
MULTIPLIER = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
BOUND = 2.0
CENTRES = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
TRIALS = 20_000


def federation(with_record: bool) -> Points:
    own = [torch.randn(20, 3, generator=Rng.seeded(0).child("client", client).torch()) for client in range(3)]
    record = torch.tensor([[9.0, -6.0, 2.0]])  # norm 11, so clipping matters
    return Points.of([torch.cat([own[0], record]) if with_record else own[0], *own[1:]])


def sums(points: Points, clip: Clip) -> Tensor:
    return cluster_sums(points, nearest(points.x, CENTRES), 2, clip).value.sum(0).flatten()


def outer(points: Points, clip: Clip) -> Tensor:
    return packed_outer_products(points, clip).value.sum(0)


def audited(inside: Tensor, outside: Tensor, deviation: float, seed: int) -> Promise:
    """The optimal test knows both possible sums, and projects what was released on their difference."""
    direction = (inside - outside) / (inside - outside).norm()
    noise = Rng.seeded(seed).child("noise").numpy()

    def released(value: Tensor) -> Floats:
        noisy = value.numpy() + deviation * noise.standard_normal((TRIALS, len(value)))
        return np.asarray(noisy @ direction.numpy(), dtype=np.float64)

    scores = Scores(released(inside), released(outside))
    claim = guarantee_of(
        [dp_accounting.GaussianDpEvent(MULTIPLIER)], DELTA, Level.RECORD, Trust.TRUSTED_AGGREGATOR, clip=BOUND
    )
    bound = epsilon_lower_bound(scores, DELTA, Rng.seeded(seed), curve=curve_of(claim))
    return judge_guarantee(claim, [bound])


@pytest.mark.parametrize("seed", range(3))
def test_the_release_as_it_is_passes_and_each_break_fails(seed: int) -> None:
    clip = RecordClip(BOUND)
    inside, outside = (sums(federation(with_record), clip) for with_record in (True, False))
    assert audited(inside, outside, MULTIPLIER * BOUND, seed).outcome is Outcome.HOLDS
    assert audited(inside, outside, MULTIPLIER * BOUND / 2, seed).outcome is Outcome.VIOLATED  # half the noise
    long, short = (sums(federation(with_record), Unclipped()) for with_record in (True, False))
    assert audited(long, short, MULTIPLIER * BOUND, seed).outcome is Outcome.VIOLATED  # no clipping


@pytest.mark.parametrize("seed", range(3))
def test_noise_scaled_to_the_clip_is_too_little_for_outer_products(seed: int) -> None:
    """Their sensitivity is the square of the clip; the public code of FedDP-KMeans takes the clip itself."""
    clip = RecordClip(BOUND)
    inside, outside = (outer(federation(with_record), clip) for with_record in (True, False))
    right = packed_outer_products(federation(True), clip).l2
    assert right == BOUND**2
    assert math.isclose(float((inside - outside).norm()), right, rel_tol=1e-4)
    assert audited(inside, outside, MULTIPLIER * right, seed).outcome is Outcome.HOLDS
    assert audited(inside, outside, MULTIPLIER * BOUND, seed).outcome is Outcome.VIOLATED
