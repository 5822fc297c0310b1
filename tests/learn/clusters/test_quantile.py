from __future__ import annotations

import pytest
import torch
from dp_accounting import GaussianDpEvent

from coterie.errors import InvalidInput
from coterie.learn.clusters.quantile import NormBins, quantile
from coterie.privacy.accounting import epsilon_of
from coterie.rng import Rng

BIN = 2 ** (1 / 4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_without_noise_the_answer_is_the_edge_above_the_true_quantile(scale: float) -> None:
    norms = scale * torch.linspace(1, 2, 1001)
    owners = torch.arange(1001) % 7
    found = NormBins().histogram(norms, owners, 7)
    assert found.value.shape == (7, len(NormBins()))
    bound = quantile(found.value.sum(0), NormBins(), 0.9, noise=0.0)
    assert 1.9 * scale <= bound <= 1.9 * scale * BIN * 1.001


def test_one_unit_moves_the_histogram_by_its_sensitivity() -> None:
    norms = torch.tensor([0.0, 0.3, 5.0, 1e30])
    whole = NormBins().histogram(norms, torch.tensor([0, 0, 1, 1]), 2)
    fewer = NormBins().histogram(norms[:-1], torch.tensor([0, 0, 1]), 2)
    change = whole.value.sum(0) - fewer.value.sum(0)
    assert float(change.norm()) == whole.l2 == 1
    assert whole.value[0, 0] == 1  # a zero norm is in the first bin
    assert whole.value[1, -1] == 1  # a huge one in the last


def test_noisy_answers_stay_within_one_bin() -> None:
    """2000 clients, epsilon 0.4: an error beyond one bin is a matter of over 5 standard deviations of noise."""
    noise = 10.0
    assert epsilon_of([GaussianDpEvent(noise)], 1e-6) < 0.4
    generator = Rng.seeded(3).child("norms").torch()
    norms = 20 + torch.randn(2000, generator=generator)
    counted = NormBins().histogram(norms, torch.zeros(2000), 1).value.sum(0)
    exact = quantile(counted, NormBins(), 0.9, noise=0.0)
    for seed in range(50):
        noisy = counted + noise * torch.randn(len(counted), generator=Rng.seeded(seed).child("noise").torch())
        assert exact / BIN * 0.999 <= quantile(noisy, NormBins(), 0.9, noise) <= exact * BIN * 1.001


def test_nothing_above_the_noise_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="set the clipping bound by hand"):
        quantile(torch.ones(240), NormBins(), 0.9, noise=10.0)
    with pytest.raises(InvalidInput, match=r"level=1\.5"):
        quantile(torch.ones(240), NormBins(), 1.5, noise=0.0)
    with pytest.raises(InvalidInput, match="must be the number of bins"):
        quantile(torch.ones(3), NormBins(), 0.5, noise=0.0)


def test_noise_in_the_far_tail_does_not_set_the_bound() -> None:
    """2000 norms among 480 bins, noise 68: somewhere a bin of noise alone passes 3 deviations in half of all seeds."""
    bins, noise = NormBins(per_octave=8), 68.0
    norms = 10 + 0.5 * torch.randn(2000, generator=Rng.seeded(3).child("norms").torch())
    counted = bins.histogram(norms, torch.zeros(2000), 1).value.sum(0)
    for seed in range(300):
        noisy = counted + noise * torch.randn(len(counted), generator=Rng.seeded(seed).child("noise").torch())
        assert 9 < quantile(noisy, bins, 0.9, noise) < 18


def test_noise_alone_is_no_histogram() -> None:
    """A run as long as asked for occurs in under one of a thousand; two of 300 would happen once in 27 times."""
    bins, found = NormBins(per_octave=8), 0
    for seed in range(300):
        noise = torch.randn(len(bins), generator=Rng.seeded(seed).child("noise alone").torch())
        try:
            quantile(noise, bins, 0.95, 1.0)
            found += 1
        except InvalidInput:
            pass
    assert found <= 1
