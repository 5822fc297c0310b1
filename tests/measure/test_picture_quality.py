"""Structural similarity and noise ratio against scikit-image, and the pairing of a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from coterie.errors import InvalidInput
from coterie.measure.picture_quality import matched, psnr, ssim


def pictures(count: int, channels: int, side: int, seed: int) -> torch.Tensor:
    return torch.rand(count, channels, side, side + 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("channels", "side", "sigma"), [(1, 28, 1.5), (3, 32, 1.5), (1, 11, 1.5), (1, 8, 0.9)])
def test_as_scikit_image_has_it(channels: int, side: int, sigma: float) -> None:
    truth = pictures(4, channels, side, 0)
    found = (truth + 0.2 * pictures(4, channels, side, 1)).clamp(0, 1)
    for one, other, mine, noise in zip(found, truth, ssim(found, truth), psnr(found, truth), strict=True):
        a, b = one.double().numpy(), other.double().numpy()
        theirs = structural_similarity(
            a, b, gaussian_weights=True, sigma=sigma, use_sample_covariance=False, data_range=1.0, channel_axis=0
        )
        assert float(mine) == pytest.approx(theirs, abs=1e-9)
        assert float(noise) == pytest.approx(peak_signal_noise_ratio(b, a, data_range=1.0), abs=1e-9)


def test_equal_pictures_and_other_spans() -> None:
    truth = pictures(2, 1, 12, 0)
    assert ssim(truth, truth).tolist() == pytest.approx([1, 1])
    assert psnr(truth, truth).tolist() == [math.inf, math.inf]
    other = pictures(2, 1, 12, 1)
    np.testing.assert_allclose(ssim(5 * other, 5 * truth, 5.0), ssim(other, truth), rtol=1e-6)
    np.testing.assert_allclose(psnr(5 * other, 5 * truth, 5.0), psnr(other, truth), rtol=1e-6)


def test_a_batch_is_paired_whatever_its_order() -> None:
    truth = pictures(5, 1, 16, 0)
    order = torch.tensor([3, 0, 4, 1, 2])
    found = truth[order] + 0.05 * pictures(5, 1, 16, 1)
    assert matched(found, truth) == list(enumerate(order.tolist()))


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="must be \\(pictures, channels, rows, columns\\)"):
        ssim(torch.rand(1, 1, 8, 8), torch.rand(2, 1, 8, 8))
    with pytest.raises(InvalidInput, match="pixels a side=2 must be at least 3"):
        ssim(torch.rand(1, 1, 2, 9), torch.rand(1, 1, 2, 9))
