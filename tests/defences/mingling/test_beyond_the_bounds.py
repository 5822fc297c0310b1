"""One colluder more than the guarantee bears, and a server that does not follow the protocol: what is refused, and what
the docs say is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.defences.mingling.federation import FEDERATION, IFCA, SERVER, run
from tests.defences.mingling.test_hidden_sums import Placed, PlacedThree
from tests.ring import turn
from torch import Tensor

from coterie.defences.mingling.client import VOTES
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import SampledSets, TagRule
from coterie.defences.secure_sums import MASKED, Smallest
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.params import flatten
from coterie.rng import Rng
from coterie.seal import shamir
from coterie.seal.veil import HiddenSum
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Down, Message, Published
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

EVERY_LINK = ThreatModel("changes what all clients are told", taps=frozenset(range(12)))
LOCAL = IFCA.local
alone = Placed(rounds=1, local=LOCAL, clusters=3, candidates=0)  # client 11 in cluster 1, the others in cluster 0
three = PlacedThree(rounds=1, local=LOCAL, clusters=3, candidates=0)  # 9, 10 and 11 in cluster 1


def answers(protocol: Placed) -> Tensor:
    """What each client trained, times its weight, (clients, length): as IFCA shows it."""
    tape = Tape([SERVER])
    run(Defence(), protocol, tape=tape)
    sent = tape.view(SERVER).sent(0)
    return flatten(sent.values, leading=2)[:, 0].double() * sent.weights.unsqueeze(1)


def opened(defence: Mingling, protocol: Placed, cluster: int, **options: Any) -> Tensor:
    """The sum of a cluster, without its counts."""
    sums: Tensor = run(defence, protocol, **options).state.published.sealed[SEALED].open(defence.key)
    return sums[cluster, :-3]


def test_members_that_collude_subtract_themselves() -> None:
    """Of three true members two collude: what is left of the sum is the third's. So three bear one colluder."""
    defence, own = Mingling(threshold=3), answers(three)
    left = opened(defence, three, 1) - own[9] - own[10]
    torch.testing.assert_close(left, own[11], rtol=0, atol=1e-5)
    assert "with 1 of the 12" in defence.guarantee(three.facts(FEDERATION)).why_not


def test_without_a_smallest_size_a_client_alone_in_its_cluster_is_read_with_one_key() -> None:
    """Twelve are in the sum, and eleven of them with zeros."""
    found = opened(Mingling(threshold=3, smallest=Smallest(1)), alone, 1)
    torch.testing.assert_close(found, answers(alone)[11], rtol=0, atol=1e-5)


@dataclass(frozen=True)
class MovesCounts:
    """A server that takes two off the count of the first cluster, which it cannot read, and adds them to the second."""

    threat: ThreatModel = EVERY_LINK

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if isinstance(message, Down) and message.kind.part == MASKED:
            tally = (decode(message.common) + np.array([-2, 2, 0])) % shamir.PRIME
            return replace(message, common=encode(tally))
        return message


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClusterLeftOut")
def test_a_server_that_moves_counts_has_a_sum_of_one_made_that_only_a_client_opens() -> None:
    server, defence = MovesCounts(), Mingling(threshold=3)
    found = opened(defence, alone, 1, tape=Tape([server.threat]), adversaries=[server])
    torch.testing.assert_close(found, answers(alone)[11], rtol=0, atol=1e-5)
    assert float((opened(defence, alone, 1) - found).abs().max()) > 1  # else the sum says nothing new


def test_clusters_that_change_places_are_refused_and_would_tell_everything() -> None:
    """Under other numbers a client shows other sets, and its cluster is what they have in common."""
    total = run(Mingling(), replace(IFCA, rounds=1)).state.published.sealed[SEALED]
    assert isinstance(total, HiddenSum)
    with pytest.raises(InvalidInput, match=r"clusters of the sums=\[1, 0, 2\] must be in order"):
        replace(total, sums=(total.sums[1], total.sums[0], total.sums[2]))
    clients, common = torch.arange(200), torch.ones(200, 5, dtype=torch.bool)
    for round in range(6):
        order = torch.from_numpy(np.random.default_rng(round).permutation(5))  # cluster c is numbered order[c]
        rule = TagRule(5, 0.5, 2, partition=True)
        common &= SampledSets(rule).membership(clients, order[clients % 5], Rng.seeded(0))[:, order]
    assert int((common.sum(1) == 1).sum()) > 150
    assert bool(common[clients, clients % 5].all())


def test_no_other_sum_opens_as_a_vote() -> None:
    """Clients name the winner of what a server calls a vote: it could ask them about any sum."""
    defence = Mingling(threshold=3)
    total = run(defence, replace(IFCA, rounds=1)).state.published.sealed[SEALED]
    votes = defence.client.receive(Published({}, sealed={VOTES: total}), turn()).values
    assert min(float(leaf.abs().max()) for leaf in votes.values()) > 1e6  # noise
    assert float(total.open(defence.key).abs().max()) < 1e4
