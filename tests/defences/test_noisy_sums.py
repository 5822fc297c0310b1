"""Three places to add noise: the same epsilon, and three different things for a curious server to see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from tests.ring import blobs, play, turn
from torch import Tensor

from coterie.data.federation import Shards
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise, SummedOnly
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import CLIENT_SHARES, RECORD_SHARES, RISE, NoisySums, plan_noise
from coterie.defences.secure_sums import PairwiseMasks, RoundLeftOut
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import Collecting
from coterie.learn.models.dense import Dense
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import Level, Neighbours, Trust, Whom
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.kfed import KFed
from coterie.protocols.fedavg import FedAvg
from coterie.wire.messages import Contributions, Kind, Published
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

CENTRES = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0]])
LLOYD = FederatedLloyd(3, Level.RECORD, centres=CENTRES, steps=2, bound=3.0)
SERVER = ThreatModel("curious server", server=True)
DELTA = 1e-6
CLIENTS = 6


def noise(size: float = 2.0) -> dict[str, float]:
    return dict.fromkeys(LLOYD.releases(), size)


def defences(planned: Mapping[str, float]) -> list[NoisySums]:
    return [CentralNoise(planned), LocalNoise(planned), DistributedNoise(planned, clients=CLIENTS, colluders=0)]


def released(defence: NoisySums, value: Tensor, seed: int) -> tuple[Tensor, float]:
    """The sum over clients that send this value each, and the noise that the server believes to be in it."""
    now = turn(kind=Kind("lloyd", 1), seed=seed)
    leaves = {"sums": value.expand(CLIENTS, 1, -1)}
    sent = Contributions(torch.arange(CLIENTS), leaves, torch.ones(CLIENTS), torch.ones(CLIENTS, 1))
    contributed = defence.client.contribute(sent, Cohort(sent.ids, now))
    steps = defence.server.collect(Ask(now.kind, 0, sent.ids, Published({}), None), now)
    next(steps)
    sums = defence.server.release(finished(steps, Replies(iter([contributed]))), now)
    return sums.values["sums"][0], sums.noise["sums"]


def finished(steps: Collecting[None], replies: Replies) -> Sums:
    with pytest.raises(StopIteration) as done:
        steps.send(replies)
    found = done.value.value
    assert isinstance(found, Sums)
    return found


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("shares", [RECORD_SHARES, CLIENT_SHARES])
def test_a_plan_costs_what_it_was_given(epsilon: float, shares: dict[str, float]) -> None:
    planned = plan_noise(LLOYD.releases(), epsilon, DELTA, shares)
    for defence in (replace(one, neighbours=Neighbours.ADD_OR_REMOVE) for one in defences(planned)):
        spent = defence.guarantee(LLOYD.facts(blobs(), DELTA))
        assert epsilon * (1 - 2 / 256) < spent.epsilon <= epsilon  # each grid's noise is the next larger that it has
        assert spent.epsilon == pytest.approx(epsilon_of(defence.events(LLOYD.facts(blobs(), DELTA)), DELTA), rel=1e-6)
        assert (spent.level, spent.delta) == (Level.RECORD, DELTA)
    ratio = shares["lloyd/sums"] / shares["lloyd/counts"]
    assert planned["lloyd 1/counts"] / planned["lloyd 1/sums"] == pytest.approx(math.sqrt(ratio))
    assert planned["lloyd 1/sums"] / planned["lloyd 2/sums"] == pytest.approx(math.sqrt(RISE))


@pytest.mark.parametrize("kind", [CentralNoise, LocalNoise, DistributedNoise])
@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
def test_a_budget_is_met_between_the_neighbours_that_are_usual(kind: type[NoisySums], level: Level) -> None:
    settings: dict[str, Any] = {"clients": 5} if kind is DistributedNoise else {}
    protocol = replace(LLOYD, level=level)
    defence = kind.within(1.0, DELTA, protocol.releases(), level, **settings)
    said = defence.guarantee(protocol.facts(blobs(), DELTA))
    assert 1 - 2 / 256 < said.epsilon <= 1
    replaced = Neighbours.REPLACE if kind is LocalNoise else None
    assert said.neighbours is (replaced or (Neighbours.ZERO_OUT if level is Level.CLIENT else Neighbours.ADD_OR_REMOVE))


def test_replacing_a_unit_costs_more_than_adding_one() -> None:
    """Local noise planned for adding or removing: 2.12 where 1 was meant."""
    planned = plan_noise(LLOYD.releases(), 1.0, DELTA, RECORD_SHARES)
    assert LocalNoise(planned).guarantee(LLOYD.facts(blobs(), DELTA)).epsilon == pytest.approx(2.12, abs=0.03)


def test_against_whom_each_epsilon_holds() -> None:
    """A participant knows its own share: with none planned for, of three 1.245 and of five 1.128 where 1 is stated."""
    for clients, known in ((3, 1.245), (5, 1.128)):
        bare = DistributedNoise.within(1.0, DELTA, LLOYD.releases(), Level.RECORD, clients=clients, colluders=0)
        against = {one.whom: one.epsilon for one in bare.guarantee(LLOYD.facts(blobs(), DELTA)).against}
        assert against[Whom.PARTICIPANT] == pytest.approx(known, rel=0.01)
        assert Whom.COALITION not in against
        usual = DistributedNoise.within(1.0, DELTA, LLOYD.releases(), Level.RECORD, clients=clients)
        said = usual.guarantee(LLOYD.facts(blobs(), DELTA))
        against = {one.whom: one.epsilon for one in said.against}
        assert against[Whom.PARTICIPANT] == against[Whom.COALITION] == pytest.approx(said.epsilon)
        assert against[Whom.PUBLIC] == against[Whom.SERVER] < said.epsilon <= 1
        assert "the server with 1 colluding" in str(said)
    central = CentralNoise(noise()).guarantee(LLOYD.facts(blobs(), DELTA))
    assert {one.whom: math.isinf(one.epsilon) for one in central.against}[Whom.SERVER]
    local = LocalNoise(noise()).guarantee(LLOYD.facts(blobs(), DELTA))
    assert {one.epsilon for one in local.against} == {local.epsilon}
    assert DistributedNoise(noise(), clients=1).shares == 1


@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
def test_nothing_shows_whether_a_client_has_records(level: Level) -> None:
    """Everybody enrolled answers; whoever has nothing sends zeros, and its noise where it adds any."""
    whole = blobs()
    parts = [whole.train[client] for client in range(whole.clients)]
    empty = replace(whole, train=Shards.of([*parts[:-1], parts[-1][:0]]))
    protocol = FederatedLloyd(3, level, centres=CENTRES, steps=1)
    planned = dict.fromkeys(protocol.releases(), 2.0)
    for kind, federation in ((CentralNoise, whole), (CentralNoise, empty), (LocalNoise, empty)):
        tape = Tape([SERVER])
        play(protocol, federation, None, defence=kind(planned), tape=tape)
        for asked in ("bound", "lloyd 1"):
            view = tape.view(SERVER)
            sent = view.sent(view.first(asked), asked)
            assert sent.ids.tolist() == list(range(whole.clients))
            last = torch.cat([leaf[-1].flatten() for leaf in sent.values.values()])
            assert bool(last.any()) == (kind is LocalNoise or federation is whole)
    masked = DistributedNoise(planned, clients=CLIENTS, masks=PairwiseMasks())
    play(protocol, empty, None, defence=masked)  # its share of the noise is there


def test_the_three_say_whom_they_trust() -> None:
    facts = LLOYD.facts(blobs(), DELTA)
    trusts = [defence.guarantee(facts).trust for defence in defences(noise())]
    assert trusts == [Trust.TRUSTED_AGGREGATOR, Trust.LOCAL_NOISE, Trust.DISTRIBUTED_NOISE]


def test_no_claim_without_a_bound_nor_without_noise_nor_for_what_goes_around_it() -> None:
    for defence in defences(noise()):
        unbounded = defence.guarantee(replace(LLOYD, level=None).facts(blobs(), DELTA))
        assert not unbounded.proven
        assert "not bounded" in unbounded.why_not
        facts = replace(LLOYD.facts(blobs(), DELTA), reveals="its own centres")
        assert "its own centres" in defence.guarantee(facts).why_not
    for defence in defences(noise(0.0)):
        assert not defence.guarantee(LLOYD.facts(blobs(), DELTA)).proven
    assert not CentralNoise(noise()).guarantee(KFed(3).facts(blobs(), DELTA)).proven


@pytest.mark.parametrize("position", range(3))
def test_noise_has_the_deviation_that_the_server_is_told(position: int) -> None:
    """Variance by chi-square with 40,000 draws, mean by its normal law; false alarm 1e-6 each."""
    defence, count = defences(noise(2.0))[position], 40_000
    planned = 2.0 * (math.sqrt(CLIENTS) if position == 1 else 1.0)
    sums, expected = released(defence, torch.full((count,), 0.25), seed=1)
    assert planned <= expected < planned * (1 + 1 / 256)
    errors = sums - 0.25 * CLIENTS
    assert abs(float(errors.mean())) < 4.9 * expected / math.sqrt(count)
    assert chi2.ppf(5e-7, count) < float(errors.square().sum()) / expected**2 < chi2.ppf(1 - 5e-7, count)


def test_honest_clients_make_up_for_colluders() -> None:
    """With 4 of 6 colluding, each of the two others adds half of the variance."""
    defence = DistributedNoise(noise(2.0), clients=CLIENTS, colluders=4)
    _, told = released(defence, torch.zeros(10), seed=0)
    assert told == pytest.approx(2.0 * math.sqrt(3), rel=1 / 256)
    facts = LLOYD.facts(blobs(), DELTA)
    assert defence.guarantee(facts).epsilon == pytest.approx(epsilon_of(defence.events(facts), DELTA), rel=1e-6)


@pytest.mark.parametrize("position", range(2))
def test_no_noise_changes_nothing(position: int) -> None:
    defence = defences(noise(0.0))[position]
    bare = play(LLOYD, blobs(), None)
    assert play(LLOYD, blobs(), None, defence=defence).bytes == bare.bytes


@pytest.mark.parametrize("position", range(3))
def test_noise_is_new_in_every_round_and_for_every_seed(position: int) -> None:
    defence = defences(noise())[position]
    done = [play(LLOYD, blobs(), None, defence=defence, seed=seed) for seed in (0, 0, 1)]
    assert done[0].bytes == done[1].bytes
    assert done[0].bytes != done[2].bytes
    errors = [released(defence, torch.zeros(5), seed)[0] for seed in (0, 1)]
    assert not torch.equal(*errors)


@pytest.mark.parametrize("position", range(3))
def test_a_sum_without_planned_noise_is_refused(position: int) -> None:
    defence = defences({"lloyd 1/sums": 1.0})[position]
    with pytest.raises(InvalidInput, match=r"no noise is planned for lloyd 1/counts, lloyd 2/sums"):
        play(LLOYD, blobs(), None, defence=defence)
    with pytest.raises(InvalidInput, match=r"has no sums in which a unit's share is bounded"):
        play(FedAvg(rounds=1), blobs(), Dense((4, 3)), defence=defence)


def test_what_a_curious_server_sees() -> None:
    exact = Tape([SERVER])
    play(LLOYD, blobs(), None, tape=exact)
    truth = exact.view(SERVER).sent(0, "lloyd 1")
    seen = []
    for defence in defences(noise()):
        tape = Tape([SERVER])
        play(LLOYD, blobs(), None, defence=defence, tape=tape)
        seen.append(tape.view(SERVER).sent(0, "lloyd 1"))
    central, local, distributed = seen
    assert torch.equal(central.values["sums"], truth.values["sums"])  # the exact ones, before any noise
    assert float((local.values["sums"] - truth.values["sums"]).abs().min()) > 0
    assert distributed.values == {}
    batch = distributed.sealed[SEALED]
    assert isinstance(batch, SummedOnly)
    with pytest.raises(NotPermitted, match="only the sum over all of them opens"):
        batch.open(None)
    for some in ([0], [0, 1, 2, 3, 4]):
        with pytest.raises(NotPermitted, match=f"sum over {len(some)} clients does not open"):
            batch.pick(some).add(torch.ones(len(some), 1)).open()
    assert batch.add(torch.ones(CLIENTS, 1)).open().shape == (1, 3 * 4 + 3)


def test_masks_give_the_bits_of_the_stand_in() -> None:
    results = []
    for masks in (None, PairwiseMasks()):
        defence = DistributedNoise(noise(), clients=CLIENTS, masks=masks)
        done = play(LLOYD, blobs(), None, defence=defence)
        results.append(done.bytes)
    assert results[0] == results[1]


def test_chunks_of_clients_give_the_same_noisy_sums() -> None:
    """Whole numbers of the grid's steps add up in any order."""
    defence = DistributedNoise(noise(), clients=CLIENTS)
    runs = [play(LLOYD, blobs(), None, defence=defence, chunk_bytes=size) for size in (1 << 30, 1)]
    first, second = (run.state.released["lloyd 1/sums"] for run in runs)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_a_client_that_drops_out_takes_noise_with_it() -> None:
    defence = DistributedNoise(noise(), clients=CLIENTS + 1, colluders=0)
    with pytest.raises(InvalidInput, match=r"sealed answers in round 0=6 must be 7 to 7, or noise is missing"):
        play(LLOYD, blobs(), None, defence=defence)


@pytest.mark.parametrize("masks", [None, PairwiseMasks()])
def test_one_who_drops_out_is_not_made_up_for_by_those_who_collude(masks: PairwiseMasks | None) -> None:
    """Of four, one left and each of the others knew a third of what was: epsilon 1.23 for a participant, 1 stated."""

    def lost(_: object) -> set[int]:
        return {3}

    federation, facts = blobs((12,) * 4), LLOYD.facts(blobs((12,) * 4), DELTA)
    usual, planned = (
        DistributedNoise.within(1.0, DELTA, LLOYD.releases(), Level.RECORD, clients=4, masks=masks, dropouts=dropouts)
        for dropouts in (0, 1)
    )
    said = {one.whom: one.epsilon for one in usual.guarantee(facts).against}
    left = usual.epsilon(DELTA, Neighbours.ADD_OR_REMOVE, shares=2)  # of three who answer, one knows its own
    assert left > 1.2 * said[Whom.PARTICIPANT]
    with pytest.raises((InvalidInput, RoundLeftOut), match=r"noise is missing|too few masked answers"):
        play(LLOYD, federation, None, defence=usual, lost=lost)
    play(LLOYD, federation, None, defence=planned, lost=lost)
    assert (planned.least, planned.shares) == (3, 2)
    told = {one.whom: one.epsilon for one in planned.guarantee(facts).against}
    assert told[Whom.PARTICIPANT] == told[Whom.COALITION] == pytest.approx(planned.guarantee(facts).epsilon)
    assert told[Whom.PUBLIC] == pytest.approx(planned.epsilon(DELTA, Neighbours.ADD_OR_REMOVE, shares=3))


BAD = [
    (lambda: CentralNoise({"lloyd 1/sums": -1.0}), r"noise\['lloyd 1/sums'\]=-1.0 must be"),
    (lambda: LocalNoise({"lloyd 1/sums": math.inf}), "must be a finite number"),
    (lambda: DistributedNoise({}, clients=0), "clients=0 must be at least 1"),
    (lambda: DistributedNoise({}, clients=3, dropouts=3), "dropouts=3 must be at least 0 and fewer than the other 3"),
    (lambda: DistributedNoise({}, clients=3, colluders=1, dropouts=2), "fewer than the other 2"),
    (lambda: DistributedNoise({}, clients=3, colluders=3), "colluders=3 must be .* fewer than the 3 clients"),
    (lambda: plan_noise((), 1.0, DELTA, RECORD_SHARES), r"releases=\(\) must be at least one"),
    (lambda: plan_noise(("x/y",), 1.0, DELTA, RECORD_SHARES), "shares have no part for 'x/y'"),
    (lambda: plan_noise(("outer/outer",), 1.0, DELTA, {"outer/outer": 0.0}), "must be positive; leave a release out"),
    (lambda: plan_noise(("outer/outer",), 1.0, DELTA, {"outer/outer": 1.0, "lloid/sums": 1.0}), "did you mean"),
    (lambda: plan_noise(("outer/outer",), 0.0, DELTA, RECORD_SHARES), r"epsilon=0.0 must be positive; to switch"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_settings_are_checked(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()  # type: ignore[operator]
