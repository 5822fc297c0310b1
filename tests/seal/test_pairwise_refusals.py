"""What secure sums refuse: sums that would expose somebody, wrong answers, a second question."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.seal.rounds import GRID, IDS, MEMBERSHIP, Round, draw, members, on_grid, ready

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import streams
from coterie.seal.masked import MaskedBatch, MaskedSum, Opening
from coterie.seal.pairwise import Advert, Party
from coterie.seal.roster import Roster
from coterie.seal.shamir import Shares
from coterie.wire.codec import decode, encode
from coterie.wire.sealed import SealedBatch

# -- who is exposed -------------------------------------------------------------------------------------------------


def test_a_cluster_of_two_is_left_out() -> None:
    """One colluding member could subtract itself and read the other. The other cluster's sum is as it would be."""
    membership, values = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]]), draw(0, 4, 5)
    round = Round.of(range(4), membership).share()
    assert round.roster.members == ((0, 1, 2, 3), ())
    batch = round.mask(values, range(4))
    assert [[words is not None for words in row] for row in batch.words] == [[True, False]] * 4
    opened = batch.add(members(round.roster, range(4))).open(round.opening(range(4)))
    assert torch.equal(opened, torch.stack([on_grid(values).sum(0), torch.zeros(5)]))


def test_a_cluster_that_is_left_with_two_is_refused() -> None:
    """They masked already when a third dropped out, so there is a sum to open, and nobody opens it."""
    round = Round.of(range(4), torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])).share()
    for client in (0, 1, 3):
        with pytest.raises(NotPermitted, match="cluster 1 has 2 left, fewer than 3; leave this round out"):
            round.parties[client].answer([0, 1, 3], round.roster)
    assert round.roster.exposed([0, 1, 2, 3]) == ""
    assert Round.of(range(4), torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])).share([0, 1, 3]).roster.members[1] == ()


@pytest.mark.parametrize("gone", [(2, 5), (0, 4), (1, 7)])
def test_survivors_whose_masks_do_not_connect_are_refused(gone: tuple[int, int]) -> None:
    """On a ring of ten with two neighbours each, two gaps cut it in two: each half's sum would be open on its own."""
    ids = range(10)
    survivors = [client for client in ids if client not in gone]
    round = Round.of(ids, torch.ones(10, 1), neighbours=2).share()
    assert round.roster.exposed(survivors) == "cluster 0 falls apart into groups that share no mask"
    for client in survivors:
        with pytest.raises(NotPermitted, match="falls apart into groups that share no mask; leave this round out"):
            round.parties[client].answer(survivors, round.roster)
        assert round.parties[client].answered is None  # it gave nothing, and may still be asked properly
    for neighbours in (None, 4):  # more masks hold them together
        assert Roster.of(ids, torch.ones(10, 1), neighbours).exposed(survivors) == ""


def test_what_a_ring_that_falls_apart_would_give_away() -> None:
    """Why it is refused: with the seeds that the opening gives, one half's sum is plain, the other half not in it."""
    ids, gone, half = range(10), (2, 5), [3, 4]
    values = draw(4, 10, 6)
    round = Round.of(ids, torch.ones(10, 1), neighbours=2).share()
    total = np.zeros(6, np.uint64)
    for client, row in zip(half, round.mask(values[half], half).words, strict=True):
        assert row[0] is not None
        total += streams.unpack(row[0], 8)
        streams.add_stream(total, round.parties[client].seed, 0, subtract=True)  # given for a survivor
    for client in gone:  # given for a drop-out
        for partner in set(half).intersection(round.roster.partners(client, 0)):
            key = streams.agree(round.parties[client].mask_key, round.adverts[partner].masks, b"mask")
            streams.add_stream(total, key, 0, subtract=partner < client)
    opened = GRID.values(total.view(np.int64).astype(np.float64))
    assert torch.equal(opened, on_grid(values[half]).sum(0))


@pytest.mark.parametrize("gone", [(3,), (3, 4), ()])
def test_neighbouring_drop_outs_leave_a_ring_connected(gone: tuple[int, ...]) -> None:
    ids, values = list(range(10)), draw(5, 10, 6)
    survivors = [client for client in ids if client not in gone]
    round = Round.of(ids, torch.ones(10, 1), neighbours=2).share()
    total = round.mask(values, ids).pick(survivors).add(torch.ones(len(survivors), 1))
    assert torch.equal(total.open(round.opening(survivors))[0], on_grid(values[survivors]).sum(0))


@given(st.integers(3, 12), st.sampled_from([2, 4, 6]))
def test_on_the_ring_partners_are_mutual_and_colluders_leave_the_rest_connected(count: int, degree: int) -> None:
    roster = Roster.of(range(count), torch.ones(count, 1), degree)
    partners = {i: set(roster.partners(i, 0)) for i in range(count)}
    assert all(i in partners[j] for i, mine in partners.items() for j in mine)
    assert all(len(mine) == min(degree, count - 1) for mine in partners.values())
    rest = set(range(min(degree - 1, count - 2), count))  # degree - 1 neighbouring colluders taken out
    reached, edge = set(), {max(rest)}
    while edge:
        reached |= edge
        edge = {j for i in edge for j in partners[i] & rest} - reached
    assert reached == rest


@given(st.integers(3, 12), st.sampled_from([None, 2, 4]), st.data())
def test_exposed_is_what_brute_force_says(count: int, degree: int | None, data: st.DataObject) -> None:
    """Left with fewer than three, or in groups without a common mask (found by merging groups, not by walking)."""
    left = data.draw(st.sets(st.integers(0, count - 1)))
    roster = Roster.of(range(count), torch.ones(count, 1), degree)
    groups = [{client} for client in left]
    for one in sorted(left):
        for other in left.intersection(roster.partners(one, 0)):
            mine, theirs = (next(group for group in groups if client in group) for client in (one, other))
            if mine is not theirs:
                groups.remove(theirs)
                mine |= theirs
    assert bool(roster.exposed(left)) == (0 < len(left) < 3 or len(groups) > 1)


# -- one client's state ---------------------------------------------------------------------------------------------


def through_the_wire(round: Round) -> Round:
    """As if every client had been stopped and started again."""
    kept = {client: decode(encode(party)) for client, party in round.parties.items()}
    assert all(isinstance(party, Party) for party in kept.values())
    return replace(round, parties=kept, roster=decode(encode(round.roster)))


def test_a_party_survives_being_saved_between_any_two_exchanges() -> None:
    values = draw(6, 7, 20)
    round = through_the_wire(Round.of(IDS, MEMBERSHIP))
    round = through_the_wire(round.share())
    batch = decode(encode(round.mask(values, IDS)))
    round = through_the_wire(round)
    opened = batch.add(MEMBERSHIP).open(round.opening(IDS))
    assert torch.equal(opened, MEMBERSHIP.double().T @ on_grid(values))
    answered = through_the_wire(round)  # and it still knows that it has answered
    with pytest.raises(NotPermitted, match="one answer a round"):
        answered.opening(IDS[:-1])
    again: dict[int, dict[int, Shares]] = {
        client: party.answer(IDS, round.roster) for client, party in answered.parties.items()
    }
    assert torch.equal(batch.add(MEMBERSHIP).open(Opening(round.roster, round.adverts, again)), opened)


def test_a_party_is_the_same_bytes_after_the_wire() -> None:
    party = ready().parties[8]
    saved = encode(party)
    back = decode(saved)
    assert encode(back) == saved
    assert back.advert == party.advert
    assert sorted(back.held) == sorted(IDS)
    assert all(np.array_equal(back.held[client], party.held[client]) for client in IDS)


def test_secrets_are_a_round_s_own_and_never_printed() -> None:
    one, other = Party(3), Party(3)
    assert one.seed != other.seed
    assert one.mask_key != other.mask_key
    assert one.box_key != other.box_key
    assert one.mask_key != one.box_key
    assert repr(ready().parties[3]) == "Party(client=3, request='', answered=None)"


# -- refusals -------------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    round = ready()
    batch = round.mask(draw(0, 7, 5), IDS)
    key = round.opening(IDS)
    with pytest.raises(NotPermitted, match="single clients"):
        batch.open(key)
    with pytest.raises(NotPermitted, match="cannot open the sums"):
        batch.add(MEMBERSHIP).open(round.parties[3])
    with pytest.raises(InvalidInput, match="client 3: membership"):
        batch.add(torch.ones(7, 2))
    with pytest.raises(InvalidInput, match="other clients"):
        batch.add(MEMBERSHIP) + batch.add(MEMBERSHIP)
    with pytest.raises(InvalidInput, match="neighbours=3"):
        ready(3)
    with pytest.raises(InvalidInput, match=r"ids=\[1, 1, 2\] must all be different"):
        Roster.of([1, 1, 2], torch.ones(3, 1))
    with pytest.raises(InvalidInput, match="joined"):
        MaskedBatch.join([batch, round.mask(draw(0, 7, 6), IDS)])
    with pytest.raises(InvalidInput, match="bytes of an advert=63 must be 96, or 192 with a signature"):
        Advert.from_bytes(bytes(63))
    strangers = ready().parties[3]
    with pytest.raises(InvalidInput, match="must be at least 5 of the round's clients"):
        strangers.answer([*IDS, 99], round.roster)
    with pytest.raises(InvalidInput, match="must be at least 5 of the round's clients"):
        strangers.answer([client for client in IDS if client != 3], round.roster)  # it is no survivor itself


def test_words_that_are_not_as_long_as_they_say() -> None:
    batch = ready().mask(draw(0, 7, 5), IDS)
    short = replace(batch, words=(tuple(None if w is None else w[:4] for w in batch.words[0]), *batch.words[1:]))
    with pytest.raises(InvalidInput, match="client 3: masked vectors must be 5 words"):
        short.add(MEMBERSHIP)


def test_another_round_s_answers_open_nothing() -> None:
    round, values = ready(), draw(0, 7, 50)
    expected = MEMBERSHIP.double().T @ on_grid(values)
    total = round.mask(values, IDS).add(MEMBERSHIP)
    assert not torch.isclose(total.open(ready().opening(IDS)), expected, atol=1.0).any()
    assert torch.equal(total.open(round.opening(IDS)), expected)


def test_a_box_for_someone_else_is_refused() -> None:
    round = Round.of(range(3), torch.ones(3, 1))
    boxes = round.parties[0].share(round.roster, round.adverts)
    with pytest.raises(InvalidInput, match="box of client 0"):
        round.parties[2].receive(0, boxes[1], round.adverts, round.roster)
    with pytest.raises(InvalidInput, match="box of client 0"):
        round.parties[1].receive(0, boxes[1][:-1], round.adverts, round.roster)
    with pytest.raises(InvalidInput, match="box of client 9"):  # of whom nobody heard
        round.parties[1].receive(9, boxes[1], round.adverts, round.roster)


def test_chunks_of_clients_give_the_same_sums() -> None:
    round, values = ready(), draw(5, 7, 30)
    chunks = ([0, 1, 2], [3, 4], [5, 6])
    parts = [round.mask(values[rows], [IDS[i] for i in rows]) for rows in chunks]
    joined = SealedBatch.join(parts)
    sums = [part.add(MEMBERSHIP[rows]) for part, rows in zip(parts, chunks, strict=True)]
    added = reduce(MaskedSum.__add__, sums)
    key = round.opening(IDS)
    assert torch.equal(added.open(key), MEMBERSHIP.double().T @ on_grid(values))
    assert torch.equal(joined.add(MEMBERSHIP).open(key), added.open(key))


# -- strangers -------------------------------------------------------------------------------------------------------


def test_whoever_was_given_the_others_keys_takes_no_stranger() -> None:
    """A server could enrol clients of its own, and mask one honest client with them alone."""
    identities = {client: bytes([client]) * 32 for client in range(4)}
    parties = {client: Party(client, request="0 train", identity=own) for client, own in identities.items()}
    adverts = {client: party.advert for client, party in parties.items()}
    roster = Roster.of(range(4), torch.ones(4, 1))
    trusting, closed = parties[0], parties[1]
    assert set(trusting.share(roster, adverts)) == {1, 2, 3}  # it remembers whom it saw first
    closed.known, closed.closed = {client: adverts[client].identity for client in (0, 1, 2)}, True
    with pytest.raises(NotPermitted, match="keys of client 3 are not signed by the one known to client 1"):
        closed.share(roster, adverts)
    assert 3 not in closed.known
