"""The bound on collusion: by hand where everybody holds everything, above what happens where not."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.seal.collusion import _risk, most_colluders
from coterie.seal.roster import Roster


def test_where_everybody_holds_everything() -> None:
    assert most_colluders(12, None) == 8  # nine of twelve put a secret together
    assert most_colluders(12, None, asks_once=False) == 5  # with six, 3 + 6 answer each of two questions
    assert most_colluders(3, None) == 1  # one other is left to hide behind


def test_more_neighbours_bear_more() -> None:
    bounds = [most_colluders(1000, neighbours) for neighbours in (4, 20, 60, 200, None)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
    assert most_colluders(1000, 60, asks_once=False) < most_colluders(1000, 60)


@pytest.mark.parametrize(("clients", "neighbours", "colluders"), [(60, 4, 20), (60, 6, 30), (80, 22, 50)])
def test_the_risk_is_no_less_than_how_often_it_happens(clients: int, neighbours: int, colluders: int) -> None:
    """400 rings; the estimate may exceed the bound by five standard errors of a fair coin."""
    bad = 0
    for number in range(400):
        roster = Roster((tuple(range(clients)),), tuple(range(clients)), neighbours, number.to_bytes(4, "little"))
        honest = range(colluders, clients)
        read = any(
            sum(holder < colluders for holder in roster.holders(client)) >= roster.needed(client) for client in honest
        )
        bad += read or bool(roster.exposed(honest))
    assert bad / 400 <= _risk(clients, neighbours, colluders, asks_once=True) + 5 * np.sqrt(0.25 / 400)
