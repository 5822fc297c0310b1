"""The three attacks on how noise is computed, run against the defences as they are: seeds, bits of floats, sums.

``tests/measure/test_numerics.py`` shows that each attack finds the broken copies of what was here before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from tests.ring import turn

from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.turn import Roots
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.lloyd import Points
from coterie.learn.clusters.statistics import statistics
from coterie.measure.numerics.floats import audit_floats
from coterie.measure.numerics.mechanism import Array, Mechanism
from coterie.measure.numerics.seeds import audit_seed
from coterie.measure.numerics.sensitivity import audit_sensitivity
from coterie.rng import KEY_BYTES, Rng, Secrets
from coterie.wire.messages import Contributions, Kind, Published

DELTA = 1e-6
NOISE = float(dp_accounting.get_sigma_gaussian(1.0, DELTA))
FEATURES = 24
KIND = Kind("lloyd", 1)
RECORD = np.random.default_rng(5).normal(size=(1, FEATURES)).astype(np.float32)
RECORD /= 1.0001 * np.linalg.norm(RECORD)
NOBODY = np.zeros((0, FEATURES), np.float32)
RNG = Rng.seeded(0)
Make = Callable[[], NoisySums]
MAKES: dict[str, Make] = {
    "central": lambda: CentralNoise({"lloyd 1/sums": NOISE}),
    "local": lambda: LocalNoise({"lloyd 1/sums": NOISE}),
    "distributed": lambda: DistributedNoise({"lloyd 1/sums": NOISE}, clients=3, colluders=1),
}
CLIENTS = {"central": 1, "local": 1, "distributed": 3}


def answers(records: Array, clients: int) -> Contributions:
    """All records are the first client's; one cluster about the origin, with a bound of 1."""
    public = {"centres": torch.zeros(1, FEATURES), "bound": torch.ones(())}
    offsets = torch.tensor([0] + [len(records)] * clients)
    sums = statistics("lloyd 1", public, Points(torch.from_numpy(records), offsets), RecordClip)["sums"]
    return Contributions(
        torch.arange(clients), {"sums": sums.unsqueeze(1)}, torch.ones(clients), torch.ones(clients, 1)
    )


def mechanism(name: str) -> Mechanism:
    """The defence's own guards, from the key of its secrets to what the server learns."""
    defence, clients = MAKES[name](), CLIENTS[name]

    def release(records: Array, source: Secrets) -> Array:
        now = replace(turn(kind=KIND), roots=Roots(RNG, source))
        sent = defence.client.contribute(answers(records, clients), Cohort(torch.arange(clients), now))
        steps = defence.server.collect(Ask(KIND, 0, sent.ids, Published({}), None), now)
        next(steps)
        try:
            steps.send(Replies(iter([sent])))
        except StopIteration as done:
            return np.asarray(defence.server.release(done.value, now).values["sums"].flatten().numpy())
        raise AssertionError("one request is all there is")

    def exact(records: Array) -> Array:
        return Sums.of(answers(records, clients)).values["sums"].flatten().numpy()

    def source(seed: int) -> Secrets:
        return Secrets(seed.to_bytes(KEY_BYTES, "little"), reproducible=True)

    return Mechanism(release, exact, source, 8 * KEY_BYTES, NOISE)


every_place = pytest.mark.parametrize("name", MAKES)


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
    found = audit_sensitivity(mechanism(name), FEATURES, DELTA, most_records=50_000, clips=True)
    assert not found.broken, found.sentence
    assert found.worst <= 1
