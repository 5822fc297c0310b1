"""What a curious server is shown of clusters under the default: nothing but bits that are uniform without a key.

Every run here has the same clients, data and drop-outs, and only the clusters differ: whatever the server could
count, compare or time (who answers, in which order, how many bytes, what is published) must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.defences.mingling.federation import FEDERATION, IFCA, MODEL, SERVER, run
from tests.ring import play
from torch.nn.functional import one_hot

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import ClientsDropped, ClusterLeftOut, PairwiseMasks, Smallest
from coterie.errors import InvalidInput
from coterie.learn.params import Params
from coterie.protocols.ifca import Ifca
from coterie.seal.masked import MaskedBatch
from coterie.seal.veil import HiddenSum
from coterie.wire.messages import TRAIN, Contributions, Down, Kind
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape
from coterie.wire.view import View

Where = Callable[[int, int], int]  # round and client to cluster
WHERE: dict[str, Where] = {
    "apart": lambda round, client: client % 3,
    "together": lambda round, client: 1,
    "unequal": lambda round, client: 0 if client < 9 else 2,
    "moving": lambda round, client: (client // 4 + round) % 3,
    "two alone": lambda round, client: 2 if client < 2 else 0,  # fewer than may be summed
}


class Placed(Ifca):
    """Everybody trains what it would, for the cluster that the test names; some answer what no mask can hide."""

    where: Where
    spoilt: Sequence[int] = ()

    def answer(self, kind: Kind, models: Params, cohort: Any, guard: Any) -> Contributions:
        sent = super().answer(kind, models, cohort, guard)
        if kind != TRAIN:
            return sent
        chosen = torch.tensor([self.where(cohort.turn.round, client) for client in sent.ids.tolist()])
        leaves = dict(sent.values)
        for at, cluster in enumerate(chosen.tolist()):
            if cluster in self.spoilt:
                leaves = {name: leaf.index_fill(0, torch.tensor([at]), torch.inf) for name, leaf in leaves.items()}
        return replace(sent, values=leaves, membership=one_hot(chosen, self.clusters).float())


def placed(where: Where, spoilt: Sequence[int] = (), **changed: Any) -> Placed:
    protocol = Placed(rounds=4, local=IFCA.local, clusters=3, candidates=6, **changed)
    object.__setattr__(protocol, "where", where)
    object.__setattr__(protocol, "spoilt", spoilt)
    return protocol


def shown(protocol: Ifca, defence: Mingling) -> list[object]:
    """All that the server can tell apart but the bits of keys, boxes and masked words."""
    tape = Tape([SERVER])
    done = play(protocol, FEDERATION, MODEL, defence=defence, tape=tape, lost=lost)
    view, found = done.ring.view(SERVER), list[object]()
    for kind in view.kinds():
        for round in view.rounds(kind):
            if view.has_sent(round, kind):
                sent = view.sent(round, kind)
                found.append((str(kind), round, sent.ids.tolist(), sent.weights.tolist(), sent.membership.tolist()))
                found.append((sorted(sent.values), [len(note) for note in sent.notes], _lengths(sent)))
            found.append(_published(view, round, kind))
    traffic = done.ring.traffic
    down = {kind: count for kind, count in traffic.down.items() if kind != str(TRAIN)}  # padded sizes, in digits
    return [*found, dict(traffic.up), down, done.ring.metrics.rows]


def lost(asked: Down) -> Sequence[int]:
    """Client 5 never shares in odd rounds, and comes back in even ones."""
    return [5] if asked.kind.part == "shares" and asked.round % 2 else []


def _lengths(sent: Contributions) -> list[list[int]]:
    batch = sent.sealed.get(SEALED)
    rows = batch.words if isinstance(batch, MaskedBatch) else ()
    return [[-1 if words is None else len(words) for words in row] for row in rows]


def _published(view: View, round: int, kind: Kind) -> object:
    sums = view.received(round, kind).published.sealed.get(SEALED)
    if not isinstance(sums, HiddenSum):
        return None
    return [None if one is None else (one.slot, one.places, len(one.words)) for one in sums.sums], sums.fresh


@pytest.mark.filterwarnings(f"ignore::{ClusterLeftOut.__module__}.{ClusterLeftOut.__name__}")
@pytest.mark.parametrize("changed", [{}, {"participation": 0.5}], ids=["everybody", "half"])
@pytest.mark.parametrize(
    "defence",
    [lambda: Mingling(), lambda: Mingling(cipher=PairwiseMasks(4, width=5)), lambda: Mingling(smallest=Smallest(2, 1))],
    ids=["default", "neighbours, short words", "spare"],
)
def test_the_server_is_shown_the_same_whoever_is_in_which_cluster(
    defence: Callable[[], Mingling], changed: dict[str, Any]
) -> None:
    first = shown(placed(WHERE["apart"], **changed), defence())
    for name, where in WHERE.items():
        assert shown(placed(where, **changed), defence()) == first, name


@pytest.mark.filterwarnings(f"ignore::{ClientsDropped.__module__}.{ClientsDropped.__name__}")
def test_answers_that_no_mask_can_hide_are_not_told_by_silence() -> None:
    """A cluster that diverges does so for all who are truly in it."""
    first = shown(placed(WHERE["apart"]), Mingling())
    with pytest.warns(ClientsDropped, match="has nothing to add"):
        assert shown(placed(WHERE["apart"], spoilt=[1]), Mingling()) == first


def test_what_a_client_cannot_open_it_does_not_read_out() -> None:
    """A refusal may reach the server: it must not say what the sums weigh."""
    defence = Mingling(smallest=Smallest(1))
    done = run(defence, replace(IFCA, rounds=1))
    published = done.ring.protocol.result(done.state)
    total = published.sealed[SEALED]
    assert isinstance(total, HiddenSum)
    refusals = []
    for half in (0, 1):  # of all words there are: what opens as positive with the one does not with the other
        spoilt = tuple(
            None
            if one is None
            else replace(one, words=np.full_like(one.words, half << (np.iinfo(one.words.dtype).bits - 1)))
            for one in total.sums
        )
        try:
            defence.client.receive(replace(published, sealed={SEALED: replace(total, sums=spoilt)}), None)  # type: ignore[arg-type]
        except InvalidInput as refusal:
            refusals.append(str(refusal))
    assert refusals
    assert all("weights of opened sums" in refusal for refusal in refusals)
    assert not any(sign.isdigit() for refusal in refusals for sign in refusal)
