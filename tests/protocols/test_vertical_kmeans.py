"""Vertical k-means is k-means of the joined records, and the server learns distances and labels alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from tests.laws.members import by_columns
from tests.ring import blobs, play
from torch import Tensor

from coterie.data.federation import VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.errors import InvalidInput
from coterie.protocols.clusterings.vertical_kmeans import CENTRES, Fusion, Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel


def split(parties: int, records: int = 90) -> VerticalFederation:
    return Vertical(parties).split(blobs([records], features=6).examples, Rng.seeded(0))


def lloyd(x: Tensor, centres: Tensor, steps: int, roots: bool = False) -> tuple[Tensor, Tensor]:
    """The oracle: joined records, one line a step. Means follow the last labels, as the parties' do."""
    for _ in range(steps):
        gaps = x[:, None] - centres[None]
        labels = (gaps.abs() if roots else gaps.square()).sum(2).argmin(1)
        found = [x[labels == k].mean(0) if bool((labels == k).any()) else centres[k] for k in range(len(centres))]
        centres = torch.stack(found)
    return labels, centres


def joined_centres(federation: VerticalFederation, memory: dict[int, dict[str, Tensor]]) -> Tensor:
    centres = torch.empty(len(memory[0][CENTRES]), federation.examples.x[0].numel())
    for party, own in enumerate(federation.columns):
        centres[:, own] = memory[party][CENTRES]
    return centres


@pytest.mark.parametrize("fusion", Fusion)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_it_is_lloyd_on_the_joined_records(fusion: Fusion, steps: int) -> None:
    federation = by_columns()
    done = play(VerticalKMeans(3, steps, fusion, Start.RECORDS), federation, None)
    x = federation.examples.x.double()
    labels, centres = lloyd(x, x[done.state.chosen], steps, fusion is Fusion.ROOTS)
    assert torch.equal(done.state.labels, labels)
    torch.testing.assert_close(joined_centres(federation, done.ring.memory).double(), centres, rtol=1e-5, atol=1e-5)


def test_it_ends_where_scikit_learn_does() -> None:
    federation = split(3)
    done = play(VerticalKMeans(4, 100), federation, None)
    x = federation.examples.x.numpy()
    theirs = KMeans(4, init=x[done.state.chosen.numpy()], n_init=1, algorithm="lloyd").fit(x)
    assert done.state.still
    np.testing.assert_array_equal(done.state.labels.numpy(), theirs.labels_)
    np.testing.assert_allclose(
        joined_centres(federation, done.ring.memory).numpy(), theirs.cluster_centers_, rtol=1e-4, atol=1e-4
    )


def test_who_holds_which_columns_does_not_matter() -> None:
    labels = [play(VerticalKMeans(3, 50), split(parties), None).state.labels for parties in (1, 2, 6)]
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[0], labels[2])


def test_roots_are_another_algorithm() -> None:
    """Two centres, a record for which the sum of roots decides otherwise: |2| + |2| > |3| + 0, but 4 + 4 < 9."""
    x = torch.tensor([[0.0, 0.0], [2.0, 2.0], [3.0, 0.0]])
    squares, roots = (lloyd(x[:1], x[1:], 1, roots)[0] for roots in (False, True))
    assert (int(squares), int(roots)) == (0, 1)


def test_k_means_plus_plus_spreads_its_records() -> None:
    """Of three far blobs each gets one, nearly always; records drawn blindly often miss one."""
    examples = blobs([120], features=6).examples
    federation = Vertical(2).split(examples, Rng.seeded(0))
    spread = {
        start: sum(
            len(
                examples.y[
                    play(VerticalKMeans(3, 1, start_on=start), federation, None, seed=seed).state.chosen
                ].unique()
            )
            for seed in range(20)
        )
        for start in (Start.PLUS_PLUS, Start.RECORDS)
    }
    assert spread[Start.PLUS_PLUS] > spread[Start.RECORDS] + 5


def test_the_server_is_sent_distances_and_no_columns_or_centres() -> None:
    server, tape = ThreatModel("server", server=True), None
    tape = Tape([server])
    done = play(VerticalKMeans(3, 4), by_columns(), None, tape=tape)
    view = tape.view(server)
    assert {str(kind) for kind in view.kinds()} == {"seed", "distances", "result"}
    for round in view.rounds("distances"):
        assert view.sent(round, "distances").values.keys() == {"distances"}
        assert view.sent(round, "distances").values["distances"].shape == (3, 1, len(by_columns().examples), 3)
    assert not view.sent(view.last("result"), "result").values
    assert set(vars(done.state)) == {"round", "labels", "chosen", "nearest", "still"}


def test_a_limit_and_an_end() -> None:
    federation = split(2)
    limited, free = (play(VerticalKMeans(4, steps), federation, None) for steps in (1, 100))
    assert not limited.state.still
    assert limited.state.round == 3 + 1
    assert free.state.still
    assert free.state.round < 3 + 100


def test_fewer_distinct_records_than_clusters() -> None:
    examples = blobs([6], features=6).examples.take(torch.zeros(8, dtype=torch.int64))  # one record, eight times
    federation = Vertical(2).split(examples, Rng.seeded(0))
    for start in Start:
        done = play(VerticalKMeans(3, 5, start_on=start), federation, None)
        assert torch.equal(done.state.labels, done.state.labels[:1].expand(8))
        assert all(torch.isfinite(kept[CENTRES]).all() for kept in done.ring.memory.values())


def test_more_clusters_than_records() -> None:
    with pytest.raises(InvalidInput, match="clusters=99 must be at most 12, the records that there are"):
        play(VerticalKMeans(99), split(2, records=6), None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((), "parties=0 must be at least 1"),
        (((0, 1), ()), r"columns of party 1=\[\] must be at least one; leave that party out"),
        (((0,), (9,)), r"columns of party 1=\[9\] must lie in 0..5"),
        (((0, 1), (1, 2)), "must not give one column to two parties"),
    ],
)
def test_columns_that_cannot_be(columns: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        VerticalFederation(
            blobs([9], features=6).examples, tuple(torch.tensor(own, dtype=torch.int64) for own in columns)
        )
