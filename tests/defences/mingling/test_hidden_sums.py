"""The default: the server reads no sum, nobody reads a sum of too few, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.defences.mingling.federation import COLLUDING, IFCA, MODEL, SERVER, close, models, run
from tests.ring import blobs, play

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import ClusterLeftOut, PairwiseMasks, RoundLeftOut, Smallest
from coterie.errors import NotPermitted
from coterie.flow.guard import Defence
from coterie.learn.params import flatten
from coterie.protocols.ifca import Ifca
from coterie.seal.mock import MockCipher
from coterie.wire.messages import Contributions
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape

MANY = blobs([8] * 30, groups=3)


# -- sealed is plain -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(
    "defence",
    [
        Mingling(cipher=MockCipher()),
        Mingling(threshold=3, smallest=Smallest(1)),
        Mingling(threshold=3, smallest=Smallest(1), cipher=PairwiseMasks(4, width=5)),
    ],
    ids=["shared key", "masks", "masks, few neighbours, short words"],
)
def test_exact_mingling_is_ifca_to_the_grid_at_every_participation(defence: Mingling, participation: float) -> None:
    """Ten rounds; at a tenth, three clients a round, so that some cluster is empty in most of them."""
    protocol = replace(IFCA, rounds=10, participation=participation)
    plain, sealed = (play(protocol, MANY, MODEL, defence=one) for one in (Defence(), defence))
    close(models(sealed), plain.state.published.values, atol=5e-5)


@pytest.mark.parametrize("participation", [0.1, 1.0])
@pytest.mark.parametrize(
    "defence",
    [Mingling(cipher=MockCipher()), Mingling(threshold=3, smallest=Smallest(1))],
    ids=["shared key", "masks"],
)
def test_layers_that_clusters_share_are_averaged_by_those_who_open_the_sums(
    defence: Mingling, participation: float
) -> None:
    """The paper's system setting: the first layer is everybody's, the second a cluster's."""
    first = next(iter(MODEL.init(0))).split(".")[0]
    protocol = replace(IFCA, rounds=6, participation=participation, shared=(first,))
    assert not defence.fits(protocol)
    plain, sealed = (play(protocol, MANY, MODEL, defence=one) for one in (Defence(), defence))
    found = models(sealed)
    close(found, plain.state.published.values, atol=5e-5)
    common = [name for name in found if name.startswith(first)]
    assert 0 < len(common) < len(found)
    assert all(torch.equal(found[name][0], leaf) for name in common for leaf in found[name])


def test_at_a_tenth_some_clusters_are_empty_indeed() -> None:
    tape = Tape([SERVER])
    play(replace(IFCA, rounds=10, participation=0.1), MANY, MODEL, tape=tape)
    view = tape.view(SERVER)
    empty = [int((view.sent(round).membership.sum(0) == 0).sum()) for round in view.rounds()]
    assert sum(count > 0 for count in empty) >= 5


# -- what is left out ------------------------------------------------------------------------------------------------


class Placed(Ifca):
    """Client i is truly in cluster 0, but for the last ``few``, which are in cluster 1."""

    few = 1

    def answer(self, kind: Any, models: Any, cohort: Any, guard: Any) -> Contributions:
        sent = super().answer(kind, models, cohort, guard)
        true = (cohort.ids >= 12 - self.few).long()
        return replace(sent, membership=torch.nn.functional.one_hot(true, self.clusters).float())


class PlacedTwo(Placed):
    few = 2


class PlacedThree(Placed):
    few = 3


@pytest.mark.parametrize(("placed", "opened"), [(Placed, False), (PlacedTwo, False), (PlacedThree, True)])
def test_a_sum_of_fewer_than_three_true_members_is_never_made(placed: type[Placed], opened: bool) -> None:
    """Everybody is a member of every cluster, so twelve are in each sum; not even with the key is there more to see."""
    defence, tape = Mingling(threshold=3), Tape([COLLUDING])
    protocol = placed(rounds=1, local=IFCA.local, clusters=3, candidates=0)
    if opened:
        done = run(defence, protocol, tape=tape)
    else:
        with pytest.warns(ClusterLeftOut, match=r"clusters \[1\]"):
            done = run(defence, protocol, tape=tape)
    total = done.state.published.sealed[SEALED]
    start = flatten(done.asks[0].published.values).double()
    sums = total.open(defence.key)
    moved = (flatten(models(done)) - start).abs().amax(1) > 1e-3
    assert moved.tolist() == [True, opened, False]
    if not opened:  # twelve times what it was
        torch.testing.assert_close(sums[1, :-3] / 12, start[1], rtol=0, atol=1e-7)
        assert sums[1, -3:].tolist() == [0, 12, 0]
    assert total.sizes(defence.key) == [12 - placed.few, placed.few, 0]


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClusterLeftOut")
def test_the_server_cannot_tell_which_cluster_was_left_out() -> None:
    """Its view of the same clients, with one and with three true members in a cluster, is as long everywhere."""
    seen = []
    for placed in (Placed, PlacedThree):
        tape = Tape([SERVER])
        done = run(Mingling(threshold=3), placed(rounds=1, local=IFCA.local, clusters=3, candidates=0), tape=tape)
        view, published = done.ring.view(SERVER), done.state.published
        with pytest.raises(NotPermitted):
            published.sealed[SEALED].open(None)
        sent = {str(kind): view.sent(0, kind) for kind in view.kinds()}
        lengths = {kind: (len(one), list(map(len, one.notes)), one.membership.tolist()) for kind, one in sent.items()}
        assert published.sizes is not None
        seen.append((lengths, published.sizes.tolist(), published.sealed[SEALED].nbytes))
    assert seen[0] == seen[1]


def test_members_that_stop_answering_beyond_the_spare_ones_leave_the_round_out() -> None:
    """Sizes were counted with them; without them a sum could be of fewer than three."""
    once = PlacedThree(rounds=1, local=IFCA.local, clusters=3, candidates=0)
    with pytest.warns(RoundLeftOut, match="1 members of cluster 0 stopped answering, more than spare=0"):
        left = run(Mingling(threshold=3), once, lost=lambda asked: {11} if asked.kind.part == "masked" else ())
    close(models(left), left.asks[0].published.values, atol=0)
    with pytest.warns(ClusterLeftOut, match=r"clusters \[1\] have fewer than 4 true members"):
        run(
            Mingling(threshold=3, smallest=Smallest(3, spare=1)),
            once,
            lost=lambda asked: {11} if asked.kind.part == "masked" else (),
        )


def test_server_and_one_client_open_sums_and_no_client() -> None:
    defence, tape = Mingling(threshold=3, smallest=Smallest(1)), Tape([COLLUDING])
    done = run(defence, replace(IFCA, rounds=2), tape=tape)
    view = done.ring.view(COLLUDING)
    masked = view.sent(0, "train/masked").sealed[SEALED]
    for key in (None, defence.key):
        with pytest.raises(NotPermitted, match="single clients"):
            masked.open(key)
    given = view.received(1).published
    assert not given.sealed
    assert given.sizes is not None
    assert int(given.sizes.sum()) == 12
