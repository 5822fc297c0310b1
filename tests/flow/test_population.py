"""Who is asked."""

from __future__ import annotations

import pytest
import torch

from coterie.errors import InvalidInput
from coterie.flow.protocol import Population
from coterie.rng import Rng

PEOPLE = Population(torch.tensor([5, 0, 3, 4, 2, 1]), torch.tensor([0, 0, 2, 0, 0, 1]))
RNG = Rng.seeded(0)


def test_present() -> None:
    assert PEOPLE.present(0).tolist() == [0, 3, 4]
    assert PEOPLE.present(1).tolist() == [0, 3, 4, 5]
    assert PEOPLE.present(9).tolist() == [0, 2, 3, 4, 5]
    with pytest.raises(InvalidInput, match="clients in round 0=0 must be at least 1"):
        Population(torch.tensor([0, 5]), torch.tensor([0, 1])).present(0)


@pytest.mark.parametrize(("share", "count"), [(1.0, 5), (0.5, 3), (0.4, 2), (0.3, 2), (0.001, 1)])
def test_a_share_of_those_present(share: float, count: int) -> None:
    """Half of five is rounded up; at least one is asked."""
    for round in range(2, 20):
        asked = PEOPLE.sample(round, share, RNG).tolist()
        assert len(asked) == count
        assert asked == sorted(set(asked))
        assert set(asked) <= {0, 2, 3, 4, 5}


def test_everybody_s_turn_comes_equally_often() -> None:
    """400 rounds of 2 in 5: each is asked 160 times, deviation 9.8; six of them once in 1e8 seeds (five clients)."""
    counts = torch.zeros(6)
    for round in range(2, 402):
        counts[PEOPLE.sample(round, 0.4, RNG)] += 1
    assert counts[1] == 0
    assert bool(((counts[[0, 2, 3, 4, 5]] - 160).abs() < 59).all())


def test_a_round_s_sample_is_its_own() -> None:
    assert PEOPLE.sample(3, 0.4, RNG).tolist() == PEOPLE.sample(3, 0.4, RNG).tolist()
    assert len({tuple(PEOPLE.sample(round, 0.4, RNG).tolist()) for round in range(2, 30)}) > 3
