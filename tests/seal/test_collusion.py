"""The bound on collusion: by hand where everybody holds everything, above what happens where not."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.seal.collusion import RISK, most_colluders, risk
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


def test_who_drops_out_helps_to_cut_the_ring() -> None:
    """With a third gone, one colluder among twenty neighbours is too many; with nobody gone it is far from enough."""
    assert most_colluders(1000, 20) == 0
    assert most_colluders(1000, 20, gone=0) == 59
    assert most_colluders(1000, 60) < most_colluders(1000, 60, gone=0)
    assert most_colluders(1000, None) == most_colluders(1000, None, gone=0)


def test_those_who_tally_bear_their_share() -> None:
    """Of a hundred neighbours 67 must collude, of the thirty that tally 21."""
    assert most_colluders(1000, 100, gone=0, tallied=True) < most_colluders(1000, 100, gone=0)


def test_whoever_draws_its_keys_anew_is_charged_for_it() -> None:
    assert risk(1000, 60, 6, asks_once=False, gone=0) * 2**-40 <= RISK < risk(1000, 60, 30, asks_once=False, gone=0)


@pytest.mark.parametrize(
    ("clients", "neighbours", "colluders", "gone"),
    [(60, 4, 20, 0), (60, 6, 30, 0), (80, 22, 50, 0), (60, 6, 10, 20), (80, 8, 5, 25)],
)
def test_the_risk_is_no_less_than_how_often_it_happens(
    clients: int, neighbours: int, colluders: int, gone: int
) -> None:
    """400 rings; the estimate may exceed the bound by five standard errors of a fair coin."""
    bad = 0
    for number in range(400):
        roster = Roster((tuple(range(clients)),), tuple(range(clients)), neighbours, number.to_bytes(4, "little"))
        honest = range(colluders, clients)
        read = any(
            sum(holder < colluders for holder in roster.holders(client)) >= roster.needed(client) for client in honest
        )
        bad += read or bool(roster.exposed(honest[gone:]))
    assert bad / 400 <= risk(clients, neighbours, colluders, gone=gone) + 5 * np.sqrt(0.25 / 400)
