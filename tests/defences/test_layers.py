"""Layered protection: cheap noise on columns of low sensitivity, masked sums over all of them."""

from __future__ import annotations

import pytest
import torch
from tests.ring import play

from coterie.attacks.distance_geometry import CURIOUS_SERVER, RECORD, DistanceGeometry
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.data.partition.features import Vertical
from coterie.defences.randomised_response.defence import PerturbOnce
from coterie.defences.randomised_response.mechanisms import piecewise
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.stack import Stack
from coterie.measure.columns import correlations
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.tape import Tape


def test_layers_hide_the_marked_columns_and_the_totals_tell_the_others() -> None:
    """Paper 003's layered protection: cheap noise on some columns, masked sums over all of it."""
    draws = torch.Generator().manual_seed(8)
    x = torch.rand(500, 6, generator=draws)
    parties = Vertical(columns=((0, 1), (2, 3), (4, 5))).split(
        Examples(x, torch.zeros(500, dtype=torch.int64), 1, "uniform"), Rng.seeded(0)
    )
    layers = Stack(PerturbOnce(piecewise(0.5), marked=((1,), (), (0, 1))), SecureSums())
    protocol = VerticalKMeans(8, 8, start_on=Start.RECORDS)
    done = play(protocol, parties, None, defence=layers, tape=Tape([CURIOUS_SERVER]))
    rows = torch.arange(80)
    held = Auxiliary(Examples(x[rows], torch.zeros(80, dtype=torch.int64), 1, "known", {RECORD: rows}))
    found = correlations(DistanceGeometry().infer(done.ring.view(CURIOUS_SERVER), held, Rng.seeded(0)), x)
    assert float(found[[0, 2, 3]].min()) > 0.9
    assert float(found[[1, 4, 5]].max()) < 0.5
    said = PerturbOnce(piecewise(0.5), marked=((1,), (), (0, 1))).guarantee(protocol.facts(parties))
    assert not said.proven
    assert "3 of 6 columns are not marked" in said.why_not
    every = PerturbOnce(piecewise(0.5), marked=((0, 1), (0, 1), (0, 1))).guarantee(protocol.facts(parties))
    assert every.epsilon == pytest.approx(3.0)
    with pytest.raises(InvalidInput, match=r"marked\[0\]=\(1, 1\) must be places"):
        PerturbOnce(piecewise(1.0), marked=((1, 1),))
    with pytest.raises(InvalidInput, match=r"marked\[0\]=\[7\] must lie in 0..1"):
        play(protocol, parties, None, defence=PerturbOnce(piecewise(1.0), marked=((7,),)))
