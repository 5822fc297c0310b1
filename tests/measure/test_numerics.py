"""The numerics audit finds each break of its references, and nothing on the one that is right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from tests.references import broken_mechanisms as broken
from tests.references import exact_noise

from coterie.errors import InvalidInput
from coterie.files import Array
from coterie.measure.claims import Outcome, judge_guarantee
from coterie.measure.numerics.audit import audit_numerics
from coterie.measure.numerics.floats import audit_floats, reachable
from coterie.measure.numerics.mechanism import Mechanism
from coterie.measure.numerics.seeds import audit_seed, find_seed, live_bits
from coterie.measure.numerics.sensitivity import Cascade, audit_sensitivity, change
from coterie.privacy.accounting import Guarantee, Level, Trust
from coterie.rng import Rng

DELTA = 1e-6
NOISE = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
CLAIM = Guarantee(1.0, DELTA, Level.RECORD, Trust.LOCAL_NOISE)
FEATURES = 24
RECORD = np.random.default_rng(5).normal(size=(1, FEATURES)).astype(np.float32)
RECORD /= 1.0001 * np.linalg.norm(RECORD)
NOBODY = np.zeros((1, FEATURES), np.float32)
RNG = Rng.seeded(0)


# -- what is right ----------------------------------------------------------------------------------------------------


def test_nothing_is_found_on_whole_numbers() -> None:
    """The floats' bound is wrong in at most 5 % of audits; the draws are fixed."""
    found = audit_numerics(
        exact_noise.on_the_grid(NOISE), RECORD, NOBODY, CLAIM, RNG, trials=300, draws=600, most_records=20_000
    )
    assert not found.broken
    assert judge_guarantee(CLAIM, found.bounds).outcome is Outcome.HOLDS
    seed, floats, sensitivity = found.sentences
    assert seed == (
        "All 256 bits of the seed change the noise, and 600 different seeds gave different releases: a bottleneck of "
        "up to 16 bits would have shown."
    )
    assert floats.startswith("The bits of the released numbers show no more than is claimed: epsilon >= 0")
    assert sensitivity == "No arrangement tried moves the sum by more than 1; 1 is claimed."


def test_bits_of_the_grid_accuse_in_at_most_5_percent() -> None:
    """100 audits of one release on the grid; more than 5 at a rate of 1 % have probability 5e-4."""
    steps = 1 << 12

    def release(records: Array, source: np.random.Generator) -> Array:
        noise = np.rint(source.normal(0, NOISE * steps, records.shape[1]))
        return np.asarray((exact_noise.grid(records).sum(0) + noise) / steps)

    quick = Mechanism(release, exact_noise.exact_sums, np.random.default_rng, 128, NOISE)
    alarms = sum(
        audit_floats(quick, RECORD, NOBODY, (1.0, DELTA), Rng.seeded(seed), trials=200).broken for seed in range(100)
    )
    assert alarms <= 5


def test_the_reference_has_the_moments_of_its_noise() -> None:
    """4,000 draws: mean and variance within 5 deviations, false alarm 1e-6."""
    source = random.Random(3)
    drawn = np.array([exact_noise.discrete_gaussian(7, source) for _ in range(4000)])
    assert abs(drawn.mean()) < 5 * 7 / math.sqrt(4000)
    assert abs(drawn.var() / 49 - 1) < 5 * math.sqrt(2 / 4000)


# -- the seed ---------------------------------------------------------------------------------------------------------


def test_32_of_64_bits_are_found_dead() -> None:
    found = audit_seed(broken.torch_seeded(NOISE), NOBODY, DELTA, RNG)
    assert (found.live, found.bits) == (32, 32)
    assert found.sentence == (
        "Of 64 bits of the seed 32 change nothing: the noise hangs on 32 bits, and whoever tries them all subtracts it."
    )
    assert found.bound is not None
    assert judge_guarantee(CLAIM, [found.bound]).outcome is Outcome.VIOLATED


def test_a_bottleneck_behind_a_hash_is_found_by_coincidence() -> None:
    """8 pairs are expected among 2^18 releases from 2^32; none at all has probability 3e-4."""
    mechanism = broken.hashed_then_seeded(NOISE)
    assert live_bits(mechanism, NOBODY, RNG) == 128
    found = audit_seed(mechanism, NOBODY[:, :8], DELTA, RNG)
    assert found.coincidences > 0
    assert 31 < found.bits < 35
    assert found.broken
    assert "equal releases" in found.sentence


def test_a_small_seed_is_recovered_and_the_world_with_it() -> None:
    mechanism = broken.torch_seeded(NOISE)
    released = mechanism.seeded(RECORD, 777 + (5 << 40))  # the upper bits are lost
    assert find_seed(mechanism, [NOBODY, RECORD], released, range(1000)) == (777, 1)
    assert find_seed(mechanism, [NOBODY], released, range(1000)) is None


def test_no_noise_at_all_has_no_bits() -> None:
    """The seed then says nothing, and the numbers themselves everything."""
    silent = Mechanism(lambda records, source: broken.exact(records), broken.exact, random.Random, 256, NOISE)
    found = audit_numerics(silent, RECORD, NOBODY, CLAIM, RNG, trials=500)
    assert not found.seed.broken
    assert found.seed.sentence.startswith("Nothing is known of the seed beyond its 256 bits: one release holds about 0")
    assert found.floats.broken
    assert judge_guarantee(CLAIM, found.bounds).outcome is Outcome.VIOLATED


def test_a_short_seed_is_no_seed() -> None:
    short = replace(exact_noise.on_the_grid(NOISE), seed_bits=64)
    found = audit_seed(short, NOBODY[:, :8], DELTA, RNG, draws=256)
    assert found.broken
    assert "a seed of 64 bits where 112 are needed, and whoever tries" in found.sentence


def test_a_release_of_few_bits_is_not_accused_of_its_coincidences() -> None:
    coarse = exact_noise.on_the_grid(1 / exact_noise.STEPS)
    found = audit_seed(coarse, NOBODY[:, :2], DELTA, RNG, draws=300)
    assert not found.broken
    assert "too few to tell seeds apart; release more coordinates" in found.sentence


def test_coordinates_with_the_same_noise_are_not_accused_either() -> None:
    """One draw of few bits in every coordinate looks like many bits; the next releases tell the seeds apart."""

    def release(records: Array, source: random.Random) -> Array:
        return broken.exact(records) + exact_noise.discrete_gaussian(3, source)

    found = audit_seed(Mechanism(release, broken.exact, random.Random, 256, 3.0), NOBODY, DELTA, RNG, draws=300)
    assert found.tells
    assert (found.live, found.coincidences) == (256, 0)
    assert not found.broken


# -- the floats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_the_bits_of_float_noise_tell(dtype: torch.dtype, seed: int) -> None:
    mechanism = broken.float_noise(NOISE, dtype)
    found = audit_floats(mechanism, RECORD, NOBODY, (1.0, DELTA), Rng.seeded(seed))
    assert found.broken
    assert found.bound.epsilon > 4
    assert found.bound.confidence == pytest.approx(0.95)
    assert found.test.startswith("reachable")
    assert judge_guarantee(CLAIM, [found.bound]).outcome is Outcome.VIOLATED


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_was_computed_is_reachable(dtype: type[np.float32 | np.float64]) -> None:
    drawn = np.random.default_rng(0).normal(size=(500, FEATURES)).astype(dtype)
    noise: Array = drawn * np.asarray(NOISE, dtype)
    for about in (NOBODY[0].astype(dtype), RECORD[0].astype(dtype), 100 * RECORD[0].astype(dtype)):
        assert reachable(about + noise, about, NOISE, dtype).all()
    assert not reachable(RECORD[0].astype(dtype) + noise, NOBODY[0], NOISE, dtype).all()


# -- the sums ---------------------------------------------------------------------------------------------------------


def summing(exact: Callable[[Array], Array]) -> Mechanism:
    return replace(exact_noise.on_the_grid(NOISE), exact=exact)


@pytest.mark.parametrize(
    ("records", "moved", "epsilon"), [(12_096, 2.9, 3.2), (44_096, 28.0, 50.0), (348_096, 1695.0, 1e4)]
)
def test_one_record_moves_a_float32_sum_by_far_more_than_itself(records: int, moved: float, epsilon: float) -> None:
    found = audit_sensitivity(summing(broken.sparse_sums), 1, DELTA, records)
    assert found.worst > moved
    assert found.records <= records
    assert found.bound is not None
    assert found.bound.epsilon > epsilon
    assert judge_guarantee(CLAIM, [found.bound]).outcome is Outcome.VIOLATED


@pytest.mark.parametrize("sums", [broken.index_add_sums, broken.reversed_sums, broken.lane_sums])
def test_other_orders_are_found_too(sums: Callable[[Array], Array]) -> None:
    found = audit_sensitivity(summing(sums), 3, DELTA)
    assert found.worst > 1.3
    assert found.broken


@pytest.mark.parametrize("sums", [exact_noise.exact_sums, broken.exact])
def test_whole_numbers_and_doubles_are_not_moved(sums: Callable[[Array], Array]) -> None:
    found = audit_sensitivity(summing(sums), 2, DELTA, clips=False)
    assert found.worst == pytest.approx(1, abs=1e-6)
    assert not found.broken
    assert found.bound is None


def test_a_cascade_by_hand() -> None:
    """4,096 ones; one more or not; 100 times -(1 - 2^-8) / 4096. Without the one each counts as 1 / 4096."""
    inside, outside = Cascade(4096, 100, 24).records(1, np.float32)
    assert (len(inside), len(outside)) == (4197, 4196)
    assert broken.sparse_sums(inside).tolist() == [4097]
    assert broken.sparse_sums(outside).tolist() == [4096 - 100 / 4096]
    assert change(broken.sparse_sums, inside, outside) == 1 + 100 / 4096


def test_what_must_be_clipped_is_tried() -> None:
    def clipped(records: Array) -> Array:
        norms = np.linalg.norm(records.astype(np.float64), axis=1, keepdims=True)
        return np.asarray((records / np.maximum(norms, 1)).sum(0))

    def overflows(records: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt((records * records).sum(1, keepdims=True))
            return np.asarray((records / np.maximum(norms, 1) * (norms / norms)).sum(0))

    assert not audit_sensitivity(summing(clipped), 2, DELTA, 64, clips=True).broken
    worst = audit_sensitivity(summing(overflows), 2, DELTA, 64, clips=True)
    assert math.isinf(worst.worst)
    assert worst.bound is not None
    assert math.isinf(worst.bound.epsilon)


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidInput, match="draws=10"):
        audit_seed(exact_noise.on_the_grid(NOISE), NOBODY, DELTA, RNG, draws=10)
    with pytest.raises(InvalidInput, match="most_records=1"):
        audit_sensitivity(summing(broken.exact), 1, DELTA, 1)
    with pytest.raises(InvalidInput, match="delta=0"):
        audit_sensitivity(summing(broken.exact), 1, 0.0)
    with pytest.raises(InvalidInput, match="type of floats"):
        audit_sensitivity(summing(broken.exact), 1, DELTA, dtype=np.int64)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least one"):
        audit_floats(exact_noise.on_the_grid(NOISE), RECORD, NOBODY, (1.0, DELTA), RNG, tests={})
    with pytest.raises(InvalidInput, match="seed_bits=0"):
        replace(exact_noise.on_the_grid(NOISE), seed_bits=0)
