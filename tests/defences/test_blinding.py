"""Blinded distances: the same clustering, and a server that sees shapes alone."""

from __future__ import annotations

import pytest
import torch
from tests.laws.members import by_columns
from tests.ring import play

from coterie.attacks.distance_geometry import CURIOUS_SERVER, DistanceGeometry, Seen, assignments
from coterie.defences.blinding import Blinding
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.stack import Stack
from coterie.protocols.clusterings.vertical_kmeans import CENTRES, LABELS, Start, VerticalKMeans
from coterie.wire.tape import Tape

PROTOCOL = VerticalKMeans(3, steps=6, start_on=Start.RECORDS)


@pytest.mark.parametrize("defence", [Blinding(), Stack(Blinding(), SecureSums()), Blinding(0.0), Blinding(3.0, False)])
def test_the_parties_end_where_they_would_without_it(defence: Blinding | Stack) -> None:
    bare = play(PROTOCOL, by_columns(), None)
    blinded = play(PROTOCOL, by_columns(), None, defence=defence)
    assert torch.equal(blinded.ring.models(blinded.state)[LABELS], bare.ring.models(bare.state)[LABELS])
    for party in range(3):
        torch.testing.assert_close(blinded.ring.memory[party][CENTRES], bare.ring.memory[party][CENTRES])


def test_places_tell_the_server_nothing_of_the_clusters() -> None:
    """Each record's order is its own and new in every round: places and clusters agree as often as chance has it.

    64 records, 6 rounds and 3 places: agreement of a third with a deviation of 0.024; the bound is five deviations.
    """
    tape = Tape([CURIOUS_SERVER])
    done = play(PROTOCOL, by_columns(), None, defence=Stack(Blinding(), SecureSums()), tape=tape)
    truth = done.ring.models(done.state)[LABELS][0].long()
    assert done.state.round == 6  # the server cannot see that nothing moves
    places = assignments(tape.view(CURIOUS_SERVER))
    agree = torch.stack([(one == truth).double().mean() for one in places]).mean()
    assert abs(float(agree) - 1 / 3) < 0.12


def test_the_server_s_totals_are_blinded_too() -> None:
    tape = Tape([CURIOUS_SERVER])
    play(PROTOCOL, by_columns(), None, defence=Stack(Blinding(), SecureSums()), tape=tape)
    bare = Tape([CURIOUS_SERVER])
    play(PROTOCOL, by_columns(), None, tape=bare)
    seen = tape.view(CURIOUS_SERVER).sent(1, "distances/opened").values["distances"][0, 0]
    plain = bare.view(CURIOUS_SERVER).sent(1, "distances").values["distances"].double().sum(0)[0]
    shape, true_shape = (
        (x.sort(1).values - x.min(1, keepdim=True).values) / (x.max(1).values - x.min(1).values).unsqueeze(1)
        for x in (seen, plain)
    )
    torch.testing.assert_close(shape, true_shape, rtol=1e-3, atol=1e-3)  # what is left
    scale = (seen.max(1).values - seen.min(1).values) / (plain.max(1).values - plain.min(1).values)
    assert float(scale.max() / scale.min()) > 8


def test_what_it_does_not_fit() -> None:
    with pytest.raises(InvalidInput, match="draws records by their distances, which it cannot do blindly"):
        play(VerticalKMeans(3), by_columns(), None, defence=Blinding())
    with pytest.raises(InvalidInput, match=r"spread=17.0 must lie in 0..16"):
        Blinding(17.0)
    assert "no epsilon" in Blinding().guarantee(PROTOCOL.facts(by_columns())).why_not
    assert DistanceGeometry(Seen.SHAPES).party is None
