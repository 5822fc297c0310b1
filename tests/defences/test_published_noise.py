"""FedDP-KMeans as published: it runs, its noise is what it says, and its outer products are worth less than stated."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from tests.ring import blobs, play

from coterie.defences.noisy_sums.published import PublishedNoise
from coterie.errors import InvalidInput
from coterie.measure.clustering import kmeans_cost
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import Level
from coterie.privacy.noise import _digit_chances, discrete_laplace
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.scott_kmeans import ScottKMeans
from coterie.recipes.federated_kmeans.runs.memberships import published_outer_products
from coterie.recipes.federated_kmeans.runs.problems import gaussians
from coterie.rng import Secrets

DELTA = 1e-6
SERVER = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) * 2


def test_what_it_states_and_what_it_guarantees() -> None:
    """The public code's 3.133; with an eleventh of the noise on outer products it is several times that."""
    scott = ScottKMeans(10, server_data=SERVER)
    noise = PublishedNoise.planned(scott.releases(), 11.0, DELTA)
    assert noise.stated_epsilon(DELTA) == pytest.approx(3.133, abs=0.02)
    said = noise.guarantee(scott.facts(blobs(), DELTA))
    assert said.proven
    assert 10 < said.epsilon < 30
    assert said.epsilon == pytest.approx(epsilon_of(said.events, DELTA), rel=1e-6)


def test_the_audit_finds_its_outer_products_false() -> None:
    found = published_outer_products(trials=2000, seed=0)
    assert found["sums"]["epsilon"] > 2 * found["claim"]


def test_it_finds_the_clusters_and_spends_what_it_forecasts() -> None:
    given = gaussians(20, 500, seed=1)
    assert given.truth is not None
    scott = ScottKMeans(10, server_data=given.server)
    noise = PublishedNoise.planned(scott.releases(), scott.bound, DELTA)
    done = play(scott, given.federation, None, defence=noise)
    best = kmeans_cost(given.x, torch.stack([given.x[given.truth == label].mean(0) for label in range(10)]))
    assert kmeans_cost(given.x, done.state.known["centres"][0]) < 1.1 * best
    facts = scott.facts(given.federation, DELTA)
    assert done.ring.ledger.epsilon(DELTA) == pytest.approx(epsilon_of(noise.events(facts), DELTA), rel=1e-3)


@pytest.mark.parametrize("scale", [0.7, 3.0, 50.0])
def test_discrete_laplace_has_its_probabilities(scale: float) -> None:
    """Chi-square over single values; false alarm once in a million keys."""
    count, ratio = 40_000, math.exp(-1 / scale)
    seen = Counter(discrete_laplace(count, scale, Secrets.seeded(3).child(str(scale))).tolist())
    bulk = range(-round(3 * scale) - 1, round(3 * scale) + 2)
    expected = np.array([count * (1 - ratio) / (1 + ratio) * ratio ** abs(x) for x in bulk])
    found = np.array([seen[x] for x in bulk])
    rest = count - found.sum(), count - expected.sum()
    statistic = ((found - expected) ** 2 / expected).sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    assert statistic < chi2.isf(1e-6, len(expected))


def test_discrete_laplace_has_its_tails() -> None:
    """Chances of 2^-64 and less used to be zero: from some value on there was none, and nothing was charged for it."""
    chances = _digit_chances(2.0**20)
    assert chances[0] == pytest.approx(2**127 * (1 - 2**-21), rel=1e-12)
    assert [chance < 2**64 for chance in chances].count(True) >= 1
    assert len(chances) == 20 + math.ceil(math.log2(128 * math.log(2)))


def test_it_hides_records_alone() -> None:
    with pytest.raises(InvalidInput, match=r"must be Level\.RECORD"):
        ScottKMeans(3, Level.CLIENT, server_data=SERVER)
    with pytest.raises(InvalidInput, match="server_data=None must be given"):
        ScottKMeans(3)
    clients = FederatedLloyd(3, Level.CLIENT, centres=torch.eye(3), bound=1.0)
    assert "a client adds to many" in PublishedNoise.planned(clients.releases(), 1.0, DELTA).fits(clients)
    other = FederatedLloyd(3, Level.RECORD, centres=torch.eye(3), bound=1.0)
    assert "another protocol" in PublishedNoise.planned(ScottKMeans(3, server_data=SERVER).releases(), 1.0, DELTA).fits(
        other
    )
