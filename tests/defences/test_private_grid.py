"""The weighted grid: sketches count, phantoms hide, and what comes out clusters at the price that is stated."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.ring import play

from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.private_grid import PrivateGrid
from coterie.errors import InvalidInput
from coterie.learn.clusters.sketches import GROWTH, cost, size, sketched, veil, veiled
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng, Secrets


def blocks(records: int = 4000) -> VerticalFederation:
    """Four groups, of which each party can tell two apart."""
    draws = torch.Generator().manual_seed(1)
    group = torch.randint(0, 4, (records,), generator=draws)
    places = torch.stack([group % 2, group % 2, group // 2, group // 2], 1) * 0.6 + 0.2
    x = (places + 0.05 * torch.randn(records, 4, generator=draws)).clamp(0, 1)
    return Vertical(columns=((0, 1), (2, 3))).split(Examples(x, group, 4, "blocks"), Rng.seeded(0))


def test_sketches_count_sets_and_unions() -> None:
    """Of 4,096 levels a size has a relative deviation of 1.6 %: six of them are allowed."""
    labels = np.repeat(np.arange(3), (500, 2000, 0))
    found = sketched(labels, 3, 4096, Secrets.seeded(0))
    assert size(found[0]) == pytest.approx(500, rel=0.1)
    assert size(found[1]) == pytest.approx(2000, rel=0.1)
    assert size(found[2]) == 0
    assert size(found.max(0)) == pytest.approx(2500, rel=0.1)
    again = sketched(np.repeat(np.arange(2), (2499, 1)), 2, 4096, Secrets.seeded(0))
    assert size(np.maximum(found[1], again[0])) == pytest.approx(2500, rel=0.1)  # the same elements: no more of them


def test_phantoms_count_and_nothing_is_below_the_floor() -> None:
    phantoms, floor = veil(0.01)
    empty = np.full((2, 4096), -1, dtype=np.int16)
    hidden = veiled(empty, phantoms, floor, Secrets.seeded(3))
    assert hidden.min() == floor
    assert size(hidden[0], floor) == pytest.approx(phantoms, rel=0.15)


def chances(elements: int, floor: int) -> np.ndarray:
    """Of each level from the floor on, exactly."""
    below = (1 - np.exp(-GROWTH * np.arange(floor + 1, floor + 400.0))) ** elements
    return np.diff(below, prepend=0.0)


@pytest.mark.parametrize("epsilon", [0.003, 0.05, 0.7])
def test_one_element_changes_no_probability_beyond_epsilon(epsilon: float) -> None:
    phantoms, floor = veil(epsilon)
    assert cost(phantoms, floor) <= epsilon
    for fewer, more in pairwise(range(phantoms, phantoms + 5)):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(chances(more, floor) / chances(fewer, floor))
        likely = chances(fewer, floor) > 1e-13  # below, the difference of two powers is rounding
        assert np.abs(ratios[likely]).max() <= epsilon * (1 + 1e-2)
    if phantoms > 1:  # and with half of the phantoms it does
        less, with_one = (chances(phantoms // 2 + one, floor)[:60] for one in (0, 1))
        assert np.abs(np.log(with_one / less)).max() > epsilon


def misses(found: torch.Tensor) -> float:
    """How far the farthest of the four true centres is from one that was found."""
    truth = torch.cartesian_prod(torch.tensor([0.2, 0.8]), torch.tensor([0.2, 0.8]))[:, [0, 0, 1, 1]]
    return float(torch.cdist(truth, found).amin(1).max())


def test_the_grid_finds_groups_that_no_party_could() -> None:
    done = play(WeightedGrid(4, local=3), blocks(), None)
    assert misses(done.state.found) < 0.1


def test_it_does_so_at_a_price_and_says_which() -> None:
    protocol, federation = WeightedGrid(4, local=3), blocks()
    facts = protocol.facts(federation, 1e-6)
    defence = PrivateGrid.planned(8.0, 1e-6, facts)
    said = defence.guarantee(facts)
    assert said.proven
    assert 7.9 < said.epsilon <= 8.0 + 1e-6
    done = play(protocol, federation, None, defence=defence)
    assert misses(done.state.found) < 0.15
    spent = done.ring.ledger.epsilon(1e-6, said.neighbours)
    assert spent == pytest.approx(said.epsilon, rel=1e-6)


def test_much_noise_leaves_nothing_to_find() -> None:
    federation = blocks(300)
    facts = WeightedGrid(4, local=3, sketches=64).facts(federation, 1e-6)
    defence = PrivateGrid.planned(0.05, 1e-6, facts)
    found = [
        misses(play(WeightedGrid(4, local=3, sketches=64), federation, None, defence=defence, seed=seed).state.found)
        for seed in range(3)
    ]
    assert min(found) > 0.1


def test_what_is_asked_wrongly() -> None:
    assert "use it with WeightedGrid" in PrivateGrid(1.0).fits(VerticalKMeans())
    with pytest.raises(InvalidInput, match="local=1 must be at least 2"):
        WeightedGrid(local=1)
    with pytest.raises(InvalidInput, match="noise_multiplier=0 must be positive"):
        PrivateGrid(0)
    with pytest.raises(InvalidInput, match="clusters=10 must be at most 4, the nodes of the grid"):
        play(WeightedGrid(10, local=2), blocks(), None)
    with pytest.raises(InvalidInput, match="above 65536"):
        play(WeightedGrid(10, local=300), blocks(), None)
    assert PrivateGrid.planned(math.inf, 1e-6, WeightedGrid().facts(blocks())).noise_multiplier is None
