"""The weighted grid: sketches count, phantoms hide, and what comes out clusters at the price that is stated."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.ring import play

from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.private_grid import PrivateGrid
from coterie.errors import InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.turn import Roots, Turn
from coterie.learn.clusters.sketches import GROWTH, Levels, cost, phantom_levels, size, sketched, veil
from coterie.privacy.grid import NoiseGrid, Whole
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.protocols.clusterings.weighted_grid import LOCAL, MEMBERS, WeightedGrid
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


def test_phantoms_count_in_every_choice_of_sets() -> None:
    phantoms, floor = veil(0.01)
    hidden = np.maximum(phantom_levels(3, 2, 4096, phantoms, Secrets.seeded(3)), floor)
    assert size(hidden[0, 0], floor) == pytest.approx(4 * phantoms, rel=0.1)  # of 2^3 choices half are in each set
    assert size(hidden[:2, 0].max(0), floor) == pytest.approx(6 * phantoms, rel=0.1)
    assert size(hidden.max((0, 1)), floor) == pytest.approx(8 * phantoms, rel=0.1)


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


RUNS, SKETCHES = 2000, 512


def what_parties_tell(parties: int, defence: PrivateGrid, choice: int, seed: int) -> Levels:
    """(parties, runs, sketches): of the first set of each, where one record is in that choice of sets."""
    federation = Vertical(parties).split(
        Examples(torch.full((1, parties), float(choice)), torch.zeros(1, dtype=torch.int64), 1, "one"), Rng.seeded(0)
    )
    protocol = WeightedGrid(1, local=2, sketches=RUNS * SKETCHES)
    centres = torch.tensor([[0.0], [1.0]]).expand(1, parties, 2, 1).contiguous()
    turn = Turn(0, Roots.seeded(seed), MEMBERS)
    columns = tuple(map(federation.part, range(parties)))
    cohort = Cohort(torch.arange(parties), turn, columns=columns, given={"centres": centres})
    guard = defence.client
    sent = guard.contribute(protocol.answer(MEMBERS, {"centres": centres}, cohort, guard), cohort)
    return sent.values["sketches"][:, 0, 0].numpy().astype(np.int16).reshape(parties, RUNS, SKETCHES)


def test_a_level_that_several_parties_tell_is_nobodys() -> None:
    """With phantoms of each party's own and epsilon 1, three parties told one high level in 3 % of the runs if the
    record was in all three sets, and in none of 10,000 if it was not. False alarm 1e-6."""
    parties = 3
    facts = WeightedGrid(4, local=2, sketches=SKETCHES).run_of(parties, 1e-6)
    defence = PrivateGrid.planned(1.0, 1e-6, facts)
    phantoms, _ = veil(defence.sketch_epsilon)
    high = math.log(0.05 * phantoms**2) / GROWTH

    def told(choice: int) -> int:
        """In how many runs some high level is told by all parties."""
        levels = what_parties_tell(parties, defence, choice, seed=choice)
        return int(((levels == levels[0]).all(0) & (levels[0] > high)).any(1).sum())

    within, elsewhere = told(0), told(1)
    assert within > 0
    allowed = math.exp(defence.guarantee(facts).epsilon) * (elsewhere + 4.9 * math.sqrt(elsewhere + 1)) + RUNS * 1e-6
    assert within <= allowed + 4.9 * math.sqrt(allowed)


def test_bounds_of_others_than_the_protocols_bound_nothing() -> None:
    """Columns from 0 to 100 under noise for those from 0 to 1: a record moved the sums by 87 times what it may."""
    protocol = WeightedGrid(4, local=3, low=0.0, high=100.0)
    defence = PrivateGrid(1.0)
    assert "its noise is for columns in (0.0, 1.0), and the protocol's are in (0.0, 100.0)" in defence.fits(protocol)
    with pytest.raises(InvalidInput, match="a record would change more"):
        play(protocol, blocks(), None, defence=defence)
    assert not PrivateGrid(1.0, high=100.0).fits(protocol)
    assert not PrivateGrid().fits(protocol)


def moved(
    defence: PrivateGrid, low: float, high: float, value: float, others: int, monkeypatch: pytest.MonkeyPatch
) -> float:
    """By how much one more record with this value moves what is noised, over what the noise is made for."""
    totals, protocol = [], WeightedGrid(1, local=2, low=low, high=high)
    noised = NoiseGrid.noised

    def seen(self: NoiseGrid, total: Whole, secrets: Secrets) -> NDArray[np.int64]:
        totals.append((total.astype(np.float64), self.units))
        return noised(self, total, secrets)

    monkeypatch.setattr(NoiseGrid, "noised", seen)
    rest = low + (high - low) * torch.linspace(0, 1, others, dtype=torch.float64)
    centres = torch.tensor([low, 3e38]).view(1, 1, 2, 1)
    for x in (rest, torch.cat([rest, torch.tensor([value], dtype=torch.float64)])):
        cohort = Cohort(
            torch.arange(1), Turn(1, Roots.seeded(0), LOCAL), columns=(x.unsqueeze(1),), given={"centres": centres}
        )
        guard = defence.client
        guard.contribute(protocol.answer(LOCAL, {"centres": centres}, cohort, guard), cohort)
    (without, units), (with_it, _) = totals
    return float(np.linalg.norm(with_it - without)) / units


def test_a_record_moves_sums_by_what_it_is_priced_at_however_far_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """In floats about a middle of floats it was up to 1.0007 times that near 3e10, and 1.03 times near 1e12."""
    draws = np.random.default_rng(0)
    for far in (1.0, 2.0**30, 2.0**35, 2.0**39):
        for _ in range(20):
            low = far * (1 + draws.random())
            high, others = low + 0.5 + draws.random(), int(draws.integers(3, 3000))
            for value in (low, high):
                assert moved(PrivateGrid(1.0, low=low, high=high), low, high, value, others, monkeypatch) <= 1
    with pytest.raises(InvalidInput, match="is so far from 0"):
        PrivateGrid(1.0, low=1e15, high=1e15 + 0.375)
    with pytest.raises(InvalidInput, match="is so far from 0"):
        WeightedGrid(low=1e15, high=1e15 + 0.375)


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
    assert "as long as no party hands it that secret" in str(said)
    assert "another participant: nothing is hidden" in str(said)  # it knows levels and phantoms
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
