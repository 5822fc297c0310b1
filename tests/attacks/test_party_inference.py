"""Clusters tell a party of another's columns what its own do not, and nothing where it was told none."""

from __future__ import annotations

import pytest
import torch
from tests.ring import play

from coterie.attacks.distance_geometry import RECORD
from coterie.attacks.party_inference import OWN, PartyInference, curious_party
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.blinding import Blinding
from coterie.defences.secure_sums import SecureSums
from coterie.errors import NotPermitted
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.measure.columns import correlations
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

PARTY, NOBODY = curious_party(1), ThreatModel("nobody")
RECORDS = 300


def federation() -> VerticalFederation:
    x = torch.rand(RECORDS, 4, generator=torch.Generator().manual_seed(4))
    examples = Examples(x, torch.zeros(RECORDS, dtype=torch.int64), 1, "uniform")
    return Vertical(columns=((0, 1), (2,), (3,))).split(examples, Rng.seeded(0))


def views(defence: Defence | None = None) -> tuple[View, View]:
    tape = Tape([PARTY, NOBODY])
    done = play(VerticalKMeans(6, 5, start_on=Start.RECORDS), federation(), None, defence=defence, tape=tape)
    return done.ring.view(PARTY), done.ring.view(NOBODY)


def held(known: int = 60) -> Auxiliary:
    rows = torch.arange(known)
    of = torch.zeros(RECORDS, dtype=torch.int64)
    theirs = Examples(federation().part(0)[rows], of[rows], 1, "known", {RECORD: rows})
    return Auxiliary(theirs, {OWN: Examples(federation().part(1), of, 1, OWN)})


def recovered(view: View, told: bool) -> float:
    guess = PartyInference(PARTY, told).infer(view, held(), Rng.seeded(0))
    return float(correlations(guess, federation().part(0)).mean())


@pytest.mark.parametrize("defence", [None, Stack(Blinding(), SecureSums())])
def test_assignments_tell_what_independent_columns_do_not(defence: Defence | None) -> None:
    """The parties need the clusters, so hiding them from the server hides nothing from them."""
    view, _ = views(defence)
    assert recovered(view, told=True) > 0.5
    assert abs(recovered(view, told=False)) < 0.2


def test_who_was_told_nothing_guesses_nothing() -> None:
    with pytest.raises(NotPermitted):
        recovered(views()[1], told=True)
