"""Exact records from successive centres: what moves alone is read, what moves in company is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.attacks.distance_geometry import assignments
from coterie.attacks.successive_centres import (
    CURIOUS_SERVER,
    SHOWN,
    Exposed,
    MovedRecords,
    ShownCentres,
    decided,
    pairs,
)
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.clusters.clipping import RecordClip
from coterie.measure.exposed import TrueRecords, exact
from coterie.measure.judge import judge
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.rng import Rng
from coterie.wire.tape import Tape


def test_one_record_that_moves_is_a_difference() -> None:
    x = torch.tensor([3.0, -1.0])
    moved = torch.stack([-x, torch.zeros(2), x])
    assert [found.tolist() for found in pairs(moved, torch.tensor([-1.0, 0.0, 1.0]))] == [x.tolist()]
    assert list(pairs(moved, torch.tensor([-2.0, 0.0, 2.0]))) == []  # two of them: their sum, which is nobody
    other = torch.stack([-x, torch.ones(2), x - 1])
    assert list(pairs(other, torch.tensor([-1.0, 0.0, 1.0]))) == []  # somebody else came or went, too


def test_a_record_is_decided_if_nothing_makes_up_for_it() -> None:
    """Records 0 and 1 are always together; 2 leaves them once, and 3 is alone in the end."""
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=torch.float64)
    labels = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]])
    centres = torch.stack([torch.stack([x[one == j].mean(0) for j in (0, 1)]) for one in labels])
    found = decided(labels, centres)
    assert found.whose.tolist() == [2, 3]
    torch.testing.assert_close(found.columns, x[2:])


def uniform(records: int = 400) -> torch.Tensor:
    return torch.rand(records, 3, generator=torch.Generator().manual_seed(2))


def lloyd(defence: Defence | None, level: Level | None = None) -> tuple[Exposed, torch.Tensor]:
    rows = blobs((80, 80, 80), features=3)
    x = rows.examples.x
    protocol = FederatedLloyd(4, level, centres=x[:4] + 0.01, steps=12, bound=50.0 if level else None)
    tape = Tape([CURIOUS_SERVER])
    view = play(protocol, rows, None, defence=defence, tape=tape).ring.view(CURIOUS_SERVER)
    attack = MovedRecords(RecordClip) if level else MovedRecords()
    return attack.infer(view, Auxiliary(), Rng.seeded(0)), x[rows.train.rows]


@pytest.mark.parametrize("defence", [None, SecureSums()])
def test_federated_lloyd_gives_records_away(defence: Defence | None) -> None:
    found, x = lloyd(defence)
    assert len(found.columns) > 0
    read = exact(found, x)
    assert int(read.sum()) >= len(found.columns) * 0.9
    assert judge(found, TrueRecords(x)).score == pytest.approx(float(read.double().mean()))
    assert (set(found.whose.tolist()) == {-1}) == (defence is not None)


def test_noise_takes_them_away() -> None:
    protocol = FederatedLloyd(4, Level.RECORD, centres=torch.zeros(4, 3), steps=12, bound=50.0)
    found, x = lloyd(LocalNoise(dict.fromkeys(protocol.releases(), 5.0)), Level.RECORD)
    assert int(exact(found, x).sum()) == 0


def shown(labels: torch.Tensor, x: torch.Tensor, clusters: int) -> Auxiliary:
    rows = [x[one == j].mean(0) if bool((one == j).any()) else x[0] * 0 for one in labels for j in range(clusters)]
    held = Examples(torch.stack(rows), torch.zeros(len(rows), dtype=torch.int64), 1, "centres")
    return Auxiliary(parts={SHOWN: held})


def test_centres_that_are_shown_decide_records_of_vertical_k_means() -> None:
    x = uniform()
    parties: VerticalFederation = Vertical(2).split(
        Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "uniform"), Rng.seeded(0)
    )
    view = play(VerticalKMeans(5, 30), parties, None, tape=Tape([CURIOUS_SERVER])).ring.view(CURIOUS_SERVER)
    labels = torch.stack(assignments(view))
    held = shown(labels, parties.part(0), 5)
    found = ShownCentres().infer(view, held, Rng.seeded(0))
    assert len(found.whose) > 0
    torch.testing.assert_close(found.columns.float(), parties.part(0)[found.whose], atol=1e-3, rtol=0)
    wrong = replace(held, parts={SHOWN: held.part(SHOWN).take(torch.arange(3))})
    with pytest.raises(InvalidInput, match="centres shown=3 must be as many"):
        ShownCentres().infer(view, wrong, Rng.seeded(0))
