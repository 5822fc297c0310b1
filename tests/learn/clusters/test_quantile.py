"""How long vectors are, from a noisy histogram, and the bound that errs least."""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.clusters.quantile import NormBins, best_bound, quantile, rms, standing_out
from coterie.privacy.accounting import epsilon_of
from coterie.rng import Rng

BIN = 2 ** (1 / 4)
FINE = NormBins(per_octave=8)


def found(noisy: Tensor, bins: NormBins, noise: float) -> tuple[Tensor, Tensor]:
    run = standing_out(noisy, bins, noise)
    assert run is not None
    return run


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_without_noise_the_answer_is_the_edge_above_the_true_quantile(scale: float) -> None:
    norms = scale * torch.linspace(1, 2, 1001)
    counted = NormBins().histogram(norms, torch.arange(1001) % 7, 7)
    assert counted.value.shape == (7, len(NormBins()))
    bound = quantile(*found(counted.value.sum(0), NormBins(), 0.0), 0.9)
    assert 1.9 * scale <= bound <= 1.9 * scale * BIN * 1.001


def test_one_unit_moves_the_histogram_by_its_sensitivity() -> None:
    norms = torch.tensor([0.0, 0.3, 5.0, 1e30])
    whole = NormBins().histogram(norms, torch.tensor([0, 0, 1, 1]), 2)
    fewer = NormBins().histogram(norms[:-1], torch.tensor([0, 0, 1]), 2)
    change = whole.value.sum(0) - fewer.value.sum(0)
    assert float(change.norm()) == whole.l2 == 1
    assert whole.value[0, 0] == 1  # a zero norm is in the first bin
    assert whole.value[1, -1] == 1  # a huge one in the last
    light = NormBins().histogram(norms, torch.tensor([0, 0, 1, 1]), 2, torch.tensor([1.0, 1.0, 1.0, 0.25]))
    assert light.value[1, -1] == 0.25


def test_noisy_answers_stay_within_one_bin() -> None:
    """2000 clients, epsilon 0.4: an error beyond one bin is a matter of over 5 standard deviations of noise."""
    noise = 10.0
    assert epsilon_of([GaussianDpEvent(noise)], 1e-6) < 0.4
    generator = Rng.seeded(3).child("norms").torch()
    norms = 20 + torch.randn(2000, generator=generator)
    counted = NormBins().histogram(norms, torch.zeros(2000), 1).value.sum(0)
    exact = quantile(*found(counted, NormBins(), 0.0), 0.9)
    for seed in range(50):
        noisy = counted + noise * torch.randn(len(counted), generator=Rng.seeded(seed).child("noise").torch())
        assert exact / BIN * 0.999 <= quantile(*found(noisy, NormBins(), noise), 0.9) <= exact * BIN * 1.001


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"level=1\.5"):
        quantile(torch.ones(240), torch.ones(240), 1.5)
    with pytest.raises(InvalidInput, match="must be the number of bins"):
        standing_out(torch.ones(3), NormBins(), 0.0)


def test_noise_in_the_far_tail_does_not_set_the_bound() -> None:
    """2000 norms among 480 bins, noise 68: somewhere a bin of noise alone passes 3 deviations in half of all seeds."""
    noise = 68.0
    norms = 10 + 0.5 * torch.randn(2000, generator=Rng.seeded(3).child("norms").torch())
    counted = FINE.histogram(norms, torch.zeros(2000), 1).value.sum(0)
    for seed in range(300):
        noisy = counted + noise * torch.randn(len(counted), generator=Rng.seeded(seed).child("noise").torch())
        assert 9 < quantile(*found(noisy, FINE, noise), 0.9) < 18
        assert 9 < best_bound(*found(noisy, FINE, noise), 1e4) < 18


def test_noise_alone_is_no_histogram() -> None:
    """A run as long as asked for occurs in under one of a thousand; two of 300 would happen once in 27 times."""
    found = 0
    for seed in range(300):
        noise = torch.randn(len(FINE), generator=Rng.seeded(seed).child("noise alone").torch())
        found += standing_out(noise, FINE, 1.0) is not None
    assert found <= 1


def test_the_best_bound_by_hand() -> None:
    """Bins that end at 1, 2 and 4 with their middles at sqrt(1/2), sqrt(2) and sqrt(8); 90, 9 and 1 norms in them.

    Cut off at 1: 9 (sqrt 2 - 1) + (sqrt 8 - 1) = 5.556, squared 30.87; at 2: 0.828, squared 0.686; at 4: nothing. With
    a price p the three err by 30.87 + p, 0.686 + 4 p and 16 p.
    """
    edges, counts = torch.tensor([1.0, 2.0, 4.0]).double(), torch.tensor([90.0, 9.0, 1.0]).double()
    assert best_bound(edges, counts, 0.0) == 4
    assert best_bound(edges, counts, 0.056) == 4  # 0.910 > 0.896
    assert best_bound(edges, counts, 0.058) == 2  # 0.918 < 0.928
    assert best_bound(edges, counts, 10.05) == 2  # 40.89 < 40.92
    assert best_bound(edges, counts, 10.07) == 1  # 40.97 > 40.94
    assert rms(edges, counts) == pytest.approx(math.sqrt((90 + 36 + 16) / 100))


def test_one_record_of_any_length_does_not_move_the_bound() -> None:
    norms = torch.cat([5 + torch.rand(5000, generator=Rng.seeded(0).child("norms").torch()), torch.tensor([1e15])])
    counted = FINE.histogram(norms, torch.zeros(5001), 1).value.sum(0)
    noisy = counted + 20 * torch.randn(len(counted), generator=Rng.seeded(1).child("noise").torch())
    assert 5 < best_bound(*found(noisy, FINE, 20.0), 1e3) < 7
