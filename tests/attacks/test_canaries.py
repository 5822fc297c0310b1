"""Canaries are found where they are, not where they are not, and a broken mechanism by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ring import blobs, digits

from coterie.attacks.shadows import Seat
from coterie.bench.canaries import SIGMA_2_6, SIGMA_8, CutNoise, audited
from coterie.data.canaries import with_canaries
from coterie.defences.dpsgd import DpSgd
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.claims import Outcome, judge_guarantee
from coterie.measure.epsilon import auc
from coterie.measure.planted import Noise, Planted, bounds
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng


def test_canaries_are_planted_by_coins_of_their_own() -> None:
    before = blobs((12, 0, 9, 12))
    after, canaries = with_canaries(before, 400, Rng.seeded(0))
    assert set(canaries.clients.tolist()) == {0, 2, 3}  # nobody without data
    assert 160 < int(canaries.included.sum()) < 240  # outside with probability 6e-5
    start = len(before.examples)
    for client in range(4):
        rows = after.train[client]
        assert rows[rows < start].tolist() == before.train[client].tolist()
        taken = (canaries.included & (canaries.clients == client)).nonzero().flatten() + start
        assert rows[rows >= start].tolist() == taken.tolist()
    assert torch.equal(after.examples.x[start:], canaries.examples.x)
    low, high = before.examples.x.amin(0), before.examples.x.amax(0)
    assert bool(((canaries.examples.x == low) | (canaries.examples.x == high)).all())


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(InvalidInput, match="canaries=1"):
        with_canaries(blobs(), 1, Rng.seeded(0))


def test_an_honest_claim_stands_and_cut_noise_is_found_out() -> None:
    """A false alarm has probability 5 % at most an audit; of the two here none is seen to come near it."""
    for seed in (2000, 2001):
        claim, bound = audited(DpSgd(1.0, SIGMA_8), seed)
        assert judge_guarantee(claim, [bound]).outcome is Outcome.HOLDS
        assert claim.epsilon == pytest.approx(8.0, abs=0.1)
        assert bound.epsilon > 1.5
    claim, bound = audited(CutNoise(1.0, SIGMA_2_6), 2000)
    assert judge_guarantee(claim, [bound]).outcome is Outcome.VIOLATED


def test_final_models_tell_of_canaries_to_who_was_never_asked() -> None:
    """A recipient of the final models need not have taken part."""
    (one,) = [
        found
        for found in planted(Defence(), FedAvg(rounds=1, participation=0.1, local=Local(steps=2, lr=0.1)), 3).found(
            Noise(), Local(steps=2, lr=0.1)
        )
        if found.seat is Seat.FINAL
    ]
    assert len(one.scores.inside) > 0


def planted(defence: Defence, protocol: FedAvg | Ifca, seed: int = 0) -> Planted:
    return Planted.run(protocol, digits(10), Dense((64, 16, 10)), defence, 200, Rng.seeded(seed))


def test_without_noise_nearly_all_are_found_by_whoever_reads_uploads() -> None:
    local = Local(steps=1, batch_size=1000, lr=0.1)
    for protocol in (FedAvg(rounds=3, local=local), Ifca(rounds=3, local=local, clusters=2, candidates=4)):
        white, black = planted(Defence(), protocol).found(Noise(), local)
        assert auc(white.scores).estimate > 0.95
        assert 0.3 < auc(black.scores).estimate <= 1.0
        shown = bounds([white, black], 1e-5, 0.95)
        assert shown[0].confidence == pytest.approx(0.975)
        assert shown[0].epsilon > 2


def test_who_can_read_nothing_is_left_out() -> None:
    local = Local(steps=1, batch_size=1000, lr=0.1)
    found = planted(SecureSums(), FedAvg(rounds=2, local=local)).found(Noise(), local)
    assert [one.seat for one in found] == [Seat.FINAL]


def test_strong_noise_hides_them() -> None:
    """An AUC of 100 and 100 has a deviation of 0.04 by chance: beyond 0.36 and 0.64 with probability 5e-4."""
    local = Local(steps=1, batch_size=1000, lr=0.1, poisson=True)
    found = planted(DpSgd(1.0, 200.0), FedAvg(rounds=2, local=local)).found(Noise(1.0, 200.0), local)
    for one in found:
        assert abs(auc(one.scores).estimate - 0.5) < 0.14
        assert one.bound(1e-5, 0.95).epsilon < 0.5
    assert np.isfinite(found[0].scores.inside).all()
