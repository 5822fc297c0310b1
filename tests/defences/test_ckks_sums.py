"""Sums under CKKS: the same clusters, a server that sees assignments alone, and a party that sees the totals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.attacks.distance_geometry import CURIOUS_SERVER, RECORD, DistanceGeometry, Seen
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.ckks_sums import LEAST, LENGTH, AddingServer, CkksSums, SealingClient, _places
from coterie.defences.secure_sums import ClientsDropped
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.cohort import FOR_ONE_TURN
from coterie.flow.guard import ClientGuard
from coterie.measure.columns import correlations
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Down, Kind, Published
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

PROTOCOL = VerticalKMeans(4, steps=8, start_on=Start.RECORDS)
OPENER = ThreatModel("the party that opens", clients=frozenset({0}), keys=frozenset({SHARED_KEY}))


def parties() -> VerticalFederation:
    examples = blobs((60, 60, 60), features=6).examples
    return Vertical(columns=((0, 1), (2, 3), (4, 5))).split(examples, Rng.seeded(0))


def test_the_clusters_are_the_same_and_the_server_sees_where_the_least_are() -> None:
    bare, tape = play(PROTOCOL, parties(), None), Tape([CURIOUS_SERVER])
    done = play(PROTOCOL, parties(), None, defence=CkksSums(), tape=tape)
    assert torch.equal(done.state.labels, bare.state.labels)
    view = tape.view(CURIOUS_SERVER)
    for round in view.rounds("distances"):
        sent = view.sent(round, "distances")
        assert not sent.values
        with pytest.raises(NotPermitted):
            sent.sealed[SEALED].open(None)
        table = view.sent(round, "distances/opened").values["distances"]
        assert set(table.unique().tolist()) == {0.0, 1.0}
        assert bool((table == 0).sum(-1).eq(1).all())


def test_the_server_s_half_holds_a_name_and_no_key() -> None:
    defence = CkksSums()
    server = defence.server
    assert isinstance(server, AddingServer)
    assert defence.key is not None
    secret = defence.key.to_bytes()
    held = encode(server.context)  # all that it has, as bytes
    assert vars(server).keys() == {"context"}
    assert not any(secret[at : at + 32] in held for at in range(0, len(secret) - 32, 32))
    with pytest.raises(NotPermitted):
        defence.cipher.seal(torch.ones(1, 4), defence.key, [0]).add(torch.ones(1, 1)).open(server.context)


def test_what_the_server_reads_is_the_floor_and_what_the_opener_reads_is_everything() -> None:
    federation, tape = parties(), Tape([CURIOUS_SERVER, OPENER])
    done = play(PROTOCOL, federation, None, defence=CkksSums(), tape=tape)
    truth = federation.examples.x
    rows = torch.arange(0, 180, 15)
    known = Auxiliary(Examples(truth[rows], torch.zeros(len(rows), dtype=torch.int64), 1, "known", {RECORD: rows}))

    def read(threat: ThreatModel, seen: Seen) -> float:
        attack = replace(DistanceGeometry(seen), threat=threat)
        return float(correlations(attack.infer(done.ring.view(threat), known, Rng.seeded(0)), truth).mean())

    assert read(OPENER, Seen.TOTALS) > 0.99
    assert read(CURIOUS_SERVER, Seen.TOTALS) < read(CURIOUS_SERVER, Seen.ASSIGNMENTS) + 0.1
    assert abs(read(CURIOUS_SERVER, Seen.SHAPES)) < 1e-6  # a table of 0 and 1 has one shape, and says nothing
    with pytest.raises(NotPermitted, match="sees totals alone"):
        DistanceGeometry(Seen.PARTY, 0).infer(done.ring.view(CURIOUS_SERVER), known, Rng.seeded(0))


def test_a_second_sum_is_not_opened_in_one_request() -> None:
    tape = Tape([ThreatModel("server", server=True)])
    defence = CkksSums()
    done = play(PROTOCOL, parties(), None, defence=defence, tape=tape)
    asked = [one for one in tape.kept() if isinstance(one, Down) and str(one.kind) == f"distances/{LEAST}"][-1]
    cohort = done.ring.everyone(done.state)
    one = replace(cohort, ids=cohort.ids[:1], columns=cohort.columns[:1], memory=[{LENGTH: 4 * len(cohort.columns[0])}])
    assert isinstance(defence.client, SealingClient)
    assert len(defence.client.follow_up(asked, one)) == 1
    for again in (asked, replace(asked, kind=Kind("distances", 7, LEAST)), replace(asked, round=asked.round - 1)):
        one.memory[0] = {name: kept for name, kept in one.memory[0].items() if not name.startswith(FOR_ONE_TURN)}
        with pytest.raises(NotPermitted, match="was answered"):  # also when the request itself is made again
            defence.client.follow_up(again, one)


def test_a_sum_of_other_numbers_than_its_own_is_not_opened() -> None:
    """With one row of all numbers a record, a place would say more than a cluster."""
    defence = CkksSums()
    done = play(PROTOCOL, parties(), None, defence=defence)
    cohort = done.ring.everyone(done.state)
    one = replace(cohort, ids=cohort.ids[:1], columns=cohort.columns[:1], memory=[{LENGTH: 4 * len(cohort.columns[0])}])
    assert defence.key is not None
    longer = defence.cipher.seal(torch.ones(1, 8 * len(cohort.columns[0])), defence.key, [0]).add(torch.ones(1, 1))
    asked = Down(Kind("distances", part=LEAST), 0, one.ids, Published({}, sealed={SEALED: longer}))
    with pytest.raises(InvalidInput, match="must be of as many numbers as its own"):
        defence.client.follow_up(asked, one)


class OtherKey(CkksSums):
    """Party 1 seals with a key of its own."""

    @property
    def client(self) -> ClientGuard:
        honest, odd = super().client, CkksSums().client

        class Mixed(SealingClient):
            def contribute(self, sent: Contributions, cohort: object) -> Contributions:
                guard = odd if sent.ids.tolist() == [1] else honest
                return guard.contribute(sent, cohort)  # type: ignore[arg-type]

        assert isinstance(honest, SealingClient)
        return Mixed(honest.cipher, honest.key)


def test_an_answer_under_another_key_stops_the_run() -> None:
    with (
        pytest.warns(ClientsDropped, match="client 1: answer='CkksBatch' must be its own"),
        pytest.raises(InvalidInput, match="answers to 'distances' in round 0=0 leave nothing to add up"),
    ):
        play(PROTOCOL, parties(), None, defence=OtherKey(), chunk_bytes=1)


@pytest.mark.parametrize(
    "said", [torch.tensor([0, 1]), torch.tensor([0, 3], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), 7]
)
def test_places_that_are_none_are_not_taken(said: object) -> None:
    assert _places((encode(said),), 2, 3) is None
    assert _places((b"nothing",), 2, 3) is None
    assert _places((encode(torch.tensor([0, 2], dtype=torch.int32)),), 2, 3) is not None
