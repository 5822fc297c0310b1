"""The three attacks on how noise is computed, run against the defences as they are: seeds, bits of floats, sums.

``tests/measure/test_numerics.py`` shows that each attack finds the broken copies of what was here before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest

from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.regularise import L2
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.clusters import statistics
from coterie.learn.whole import whole_rows
from coterie.measure.numerics import ours
from coterie.measure.numerics.floats import audit_floats
from coterie.measure.numerics.mechanism import Mechanism
from coterie.measure.numerics.ours import audit_defence, mechanism_of
from coterie.measure.numerics.seeds import audit_seed
from coterie.measure.numerics.sensitivity import audit_sensitivity
from coterie.privacy.guarantee import Level
from coterie.rng import Rng

DELTA = 1e-6
NOISE = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
FEATURES = 24
RECORD = np.random.default_rng(5).normal(size=(1, FEATURES)).astype(np.float32)
RECORD /= 1.0001 * np.linalg.norm(RECORD)
NOBODY = np.zeros((0, FEATURES), np.float32)
RNG = Rng.seeded(0)
PLACES = ("central", "local", "distributed")
Make = Callable[[], Defence]
MAKES: dict[str, Make] = {
    "central": lambda: CentralNoise({"lloyd 1/sums": NOISE}),
    "local": lambda: LocalNoise({"lloyd 1/sums": NOISE}),
    "distributed": lambda: DistributedNoise({"lloyd 1/sums": NOISE}, clients=3, colluders=1),
    "dp-sgd": lambda: DpSgd(0.5, NOISE),
    "clipped ldp": lambda: ClippedLdp(0.5, NOISE, lighter=0.5),
    "stack": lambda: Stack(L2(0.1), DpSgd(2.0, NOISE)),
}


def mechanism(name: str) -> Mechanism:
    """The defence's own guards, from the key of its secrets to what the server learns."""
    kind, _, of_clients = name.partition(" of ")
    found = mechanism_of(MAKES[kind](), Level.CLIENT if of_clients else Level.RECORD)
    assert found is not None
    return found


every_place = pytest.mark.parametrize("name", [*MAKES, *(f"{one} of clients" for one in PLACES)])


@every_place
def test_the_noise_hangs_on_all_256_bits_of_the_key(name: str) -> None:
    found = audit_seed(mechanism(name), RECORD, DELTA, RNG, draws=512)
    assert (found.given, found.live, found.coincidences) == (256, 256, 0)
    assert not found.broken


@every_place
def test_the_bits_of_what_is_released_tell_nothing(name: str) -> None:
    """A bound at 95 % confidence: a right mechanism is accused in at most one of twenty; the draws are fixed."""
    found = audit_floats(mechanism(name), RECORD, NOBODY, (1.0, DELTA), RNG, trials=300)
    assert not found.broken, found.sentence


@every_place
def test_no_arrangement_of_records_moves_a_sum_by_more_than_one(name: str) -> None:
    tried = mechanism(name)
    found = audit_sensitivity(tried, FEATURES, DELTA, min(50_000, tried.most_records), clips=True)
    assert not found.broken, found.sentence
    assert found.worst <= tried.sensitivity


def test_a_defence_is_audited_by_its_name_alone() -> None:
    found = audit_defence(DpSgd(1.0, 2.0), RNG, trials=200, draws=256)
    assert found is not None
    assert not found.broken
    assert len(found.sentences) == 3
    assert audit_defence(L2(0.1), RNG) is None
    assert audit_defence(DpSgd(1.0, 0.0), RNG) is None


def test_a_client_that_is_longer_than_its_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client-level mechanisms were not tried at all: such a mistake passed."""
    monkeypatch.setattr(statistics, "whole_rows", lambda rows, bound, units, **_: 1.5 * whole_rows(rows, bound, units))
    tried = mechanism("central of clients")
    found = audit_sensitivity(tried, FEATURES, DELTA, 200, clips=True)
    assert found.broken
    assert found.worst == pytest.approx(1.5, rel=1e-3)
    monkeypatch.setattr(ours, "whole_rows", lambda rows, bound, units: 1.5 * whole_rows(rows, bound, units))
    found = audit_sensitivity(mechanism("clipped ldp"), FEATURES, DELTA, 200, clips=True)
    assert found.broken


def test_as_many_examples_as_dpsgd_is_tried_with_betray_a_sum_in_single_precision() -> None:
    def added_one_by_one(records: np.ndarray) -> np.ndarray:
        return np.asarray(np.cumsum(records, axis=0, dtype=np.float32)[-1])

    broken = replace(mechanism("dp-sgd"), exact=added_one_by_one)
    assert audit_sensitivity(broken, FEATURES, DELTA, broken.most_records).broken
