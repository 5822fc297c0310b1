"""Secure sums: exact, private against one colluding client, and recovering drop-outs without opening more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import pairwise
from coterie.seal.cipher import Grid
from coterie.seal.ckks import Ckks
from coterie.seal.masked import MaskedBatch, MaskedSum, Opening, largest_value
from coterie.seal.pairwise import Advert, Party, Roster, Words
from coterie.seal.shamir import Shares
from coterie.wire.codec import decode, encode
from coterie.wire.sealed import SealedBatch

IDS = [3, 5, 8, 9, 12, 20, 21]
MEMBERSHIP = torch.tensor([[1, 0], [1, 1], [1, 1], [0, 1], [1, 1], [0, 1], [1, 0]])
GRID = Grid()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def on_grid(values: Tensor) -> Tensor:
    return torch.round(values * 2**24) / 2**24


@dataclass
class Round:
    """The four exchanges as plainly as they can be written; whoever is not in a list does not answer any more."""

    roster: Roster
    parties: dict[int, Party]
    adverts: dict[int, Advert]

    @staticmethod
    def of(ids: Sequence[int], membership: Tensor, neighbours: int | None = None) -> Round:
        """After the first exchange: everybody in it has announced itself."""
        parties = {client: Party(client) for client in ids}
        adverts = {client: Advert.from_bytes(party.advert.to_bytes()) for client, party in parties.items()}
        return Round(Roster.of(ids, membership, neighbours), parties, adverts)

    def share(self, sharing: Collection[int] | None = None) -> Round:
        """The second exchange, and its boxes delivered; only those who shared can mask."""
        here = sorted(self.parties if sharing is None else sharing)
        boxes = {client: self.parties[client].share(self.roster, self.adverts) for client in here}
        for sender, sent in boxes.items():
            for holder in here:
                if holder != sender:
                    self.parties[holder].receive(sender, sent[holder], self.adverts)
        return replace(self, roster=self.roster.masked_by(here))

    def mask(self, values: Tensor, ids: Sequence[int]) -> MaskedBatch:
        """The third exchange: of clients with values (clients, length), or (clients, slots, length) slot by slot."""
        slots = range(len(self.roster.members))
        steps = GRID.round(values, largest_value(GRID, len(self.roster.ids))).astype(np.int64).view(np.uint64)
        cells = np.broadcast_to(steps[:, None] if steps.ndim == 2 else steps, (len(ids), len(slots), steps.shape[-1]))
        rows = tuple(
            tuple(self._masked(client, slot, cells[at, slot]) for slot in slots) for at, client in enumerate(ids)
        )
        return MaskedBatch(tuple(ids), rows, {"w": (values.shape[-1],)}, GRID)

    def _masked(self, client: int, slot: int, words: Words) -> Words | None:
        if slot not in self.roster.slots_of(client):
            return None
        return self.parties[client].mask(words, slot, self.roster, self.adverts)

    def opening(self, survivors: Collection[int], helping: Collection[int] | None = None) -> Opening:
        """The fourth exchange."""
        asked = survivors if helping is None else helping
        answers = {client: self.parties[client].answer(survivors, self.roster) for client in asked}
        return Opening(self.roster, self.adverts, answers)


def members(roster: Roster, ids: Sequence[int]) -> Tensor:
    return torch.tensor([[client in slot for slot in roster.members] for client in ids])


def ready(neighbours: int | None = None) -> Round:
    return Round.of(IDS, MEMBERSHIP, neighbours).share()


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(3, 8),
    length=st.sampled_from([1, 50, 40_000]),
    neighbours=st.sampled_from([None, 2, 4]),
    seed=st.integers(0, 99),
)
def test_sums_equal_numpy_exactly(clients: int, length: int, neighbours: int | None, seed: int) -> None:
    membership, ids = torch.ones(clients, 2), range(clients)
    membership[:, 1] = 0  # nobody in the second cluster
    values = draw(seed, clients, length) * 100
    round = Round.of(ids, membership, neighbours).share()
    opened = round.mask(values, ids).add(membership).open(round.opening(ids))
    assert torch.equal(opened, membership.double().T @ on_grid(values))


def test_one_vector_a_cluster_for_exact_mingling_and_the_bits_of_ckks() -> None:
    values = draw(0, 7, 2, 60)
    round, ckks = ready(), Ckks()
    key = ckks.keygen()
    ours = round.mask(values, IDS)
    theirs = ckks.seal(values, key, IDS, MEMBERSHIP)
    assert torch.equal(ours.add(MEMBERSHIP).open(round.opening(IDS)), theirs.add(MEMBERSHIP).open(key))
    assert ours.nbytes == 8 * 60 * int(MEMBERSHIP.sum())
    assert ours.add(MEMBERSHIP).nbytes == 8 * 60 * 2


# -- drop-outs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [None, 2])
@pytest.mark.parametrize("client", IDS)
def test_who_announced_itself_and_never_shared_is_left_out(client: int, neighbours: int | None) -> None:
    """Its secrets are with nobody, so nobody may mask towards it."""
    here = [other for other in IDS if other != client]
    rows = [IDS.index(other) for other in here]
    round = Round.of(IDS, MEMBERSHIP, neighbours).share(here)
    assert all(client not in cluster for cluster in round.roster.members)
    assert round.roster.threshold == 5  # still of all who announced themselves
    values = draw(1, 7, 40)
    flags = members(round.roster, here)
    opened = round.mask(values[rows], here).add(flags).open(round.opening(here))
    assert torch.equal(opened, flags.double().T @ on_grid(values[rows]))


@pytest.mark.parametrize("neighbours", [None, 2])
def test_who_shared_and_never_sent_its_masked_answer_is_taken_out_again(neighbours: int | None) -> None:
    round, values = ready(neighbours), draw(1, 7, 40)
    batch = round.mask(values, IDS)
    here = [0, 1, 2, 4, 5, 6]  # client 9 (position 3) never arrives
    survivors = [IDS[position] for position in here]
    opened = batch.pick(here).add(MEMBERSHIP[here]).open(round.opening(survivors))
    assert torch.equal(opened, MEMBERSHIP[here].double().T @ on_grid(values[here]))


@pytest.mark.parametrize("silent", [[3], [21, 9]])
def test_who_sent_its_answer_and_helps_nobody_to_open_is_in_the_sums(silent: list[int]) -> None:
    round, values = ready(), draw(2, 7, 40)
    helping = [client for client in IDS if client not in silent]
    opened = round.mask(values, IDS).add(MEMBERSHIP).open(round.opening(IDS, helping))
    assert torch.equal(opened, MEMBERSHIP.double().T @ on_grid(values))


def test_one_after_the_other_drops_out_after_each_exchange() -> None:
    """Of ten, one never shares, one never masks, one never helps: the sums are over those that masked."""
    ids, values = list(range(10)), draw(3, 10, 30)
    round = Round.of(ids, torch.ones(10, 1)).share([client for client in ids if client != 4])
    survivors = [client for client in ids if client not in (4, 7)]
    batch = round.mask(values[survivors], survivors)
    key = round.opening(survivors, [client for client in survivors if client != 0])
    opened = batch.add(torch.ones(8, 1)).open(key)
    assert torch.equal(opened[0], on_grid(values[survivors]).sum(0))


def test_too_many_drop_outs_open_nothing() -> None:
    round = ready()
    few = [0, 1, 2, 4]
    survivors = [IDS[position] for position in few]
    total = round.mask(draw(0, 7, 5), IDS).pick(few).add(MEMBERSHIP[few])
    with pytest.raises(InvalidInput, match="must be at least 5 of the round's clients"):
        round.opening(survivors)
    everybody = round.opening(IDS)  # the server says that all survived, and few answer it
    little = replace(everybody, answers={client: everybody.answers[client] for client in survivors})
    with pytest.raises(InvalidInput, match="answers=4 must be at least 5"):
        total.open(little)


def test_a_round_answers_once_so_that_a_late_message_stays_masked() -> None:
    round = ready()
    batch = round.mask(draw(1, 7, 40), IDS)
    here = [0, 1, 2, 4, 5, 6]
    survivors = [IDS[position] for position in here]
    without = batch.pick(here).add(MEMBERSHIP[here])
    first, again = (without.open(round.opening(survivors)) for _ in range(2))
    assert torch.equal(first, again)  # the same question again tells nothing new
    for client in survivors:
        with pytest.raises(NotPermitted, match="one answer a round"):
            round.parties[client].answer(IDS, round.roster)
        with pytest.raises(NotPermitted, match="one answer a round"):
            round.parties[client].answer([other for other in IDS if other != 21], round.roster)


def test_never_both_secrets_of_one_client() -> None:
    """Seeds of survivors and mask keys of drop-outs: by hand, from all the answers together."""
    round = ready()
    survivors = [client for client in IDS if client != 9]
    shares = {client: round.parties[client].held for client in survivors}
    for holder, answer in round.opening(survivors).answers.items():
        assert sorted(answer) == sorted(IDS)
        for client, share in answer.items():
            told, kept = (1, 0) if client == 9 else (0, 1)
            assert np.array_equal(share, shares[holder][client][told])
            assert not np.array_equal(share, shares[holder][client][kept])


def test_a_late_message_is_uniform_even_to_those_who_hold_the_mask_key() -> None:
    """The drop-out's mask key is revealed; its own seed is not, and still hides every word."""
    length = 20_000
    round = Round.of(range(4), torch.ones(4, 1))
    party = round.parties[2]
    late = party.mask(np.zeros(length, np.uint64), 0, round.roster, round.adverts)
    for partner in (0, 1, 3):  # what the revealed mask key gives away
        stream = pairwise._agree(party.mask_key, round.adverts[partner].masks, b"mask")
        pairwise._add_stream(late, stream, 0, subtract=not partner < 2)
    assert_uniform(late)
    pairwise._add_stream(late, party.seed, 0, subtract=True)
    assert not late.any()  # only the seed was left


def assert_uniform(words: np.ndarray) -> None:
    """Every bit is balanced to 6 standard errors: a false alarm in about 10^7 runs."""
    bits = np.unpackbits(words.view(np.uint8)).reshape(len(words), 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 6 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("value", [0, 123456789])
def test_server_and_one_colluder_see_uniform_words(value: int) -> None:
    """Cluster {0, 1, 2}; client 2 colludes. Take away all that both know, the seeds opened at the end included."""
    length = 20_000
    round = Round.of(range(3), torch.ones(3, 1))
    plain = np.full(length, value, np.uint64)
    seen = []
    for honest in (0, 1):
        words = round.parties[honest].mask(plain, 0, round.roster, round.adverts)
        pairwise._add_stream(words, round.parties[honest].seed, 0, subtract=True)
        shared = pairwise._agree(round.parties[2].mask_key, round.adverts[honest].masks, b"mask")
        pairwise._add_stream(words, shared, 0, subtract=True)  # 2 is larger, so the honest ones added it
        assert_uniform(words)
        seen.append(words)
    # Only the sum of the two is determined. Any other split of it fits the view just as well.
    assert np.array_equal(seen[0] + seen[1], 2 * plain)


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
        total += row[0]
        pairwise._add_stream(total, round.parties[client].seed, 0, subtract=True)  # given for a survivor
    for client in gone:  # given for a drop-out
        for partner in set(half).intersection(round.roster.partners(client, 0)):
            key = pairwise._agree(round.parties[client].mask_key, round.adverts[partner].masks, b"mask")
            pairwise._add_stream(total, key, 0, subtract=partner < client)
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
    assert repr(ready().parties[3]) == "Party(client=3, answered=None)"


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
    with pytest.raises(InvalidInput, match="bytes of an advert=63 must be 64"):
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
        round.parties[2].receive(0, boxes[1], round.adverts)
    with pytest.raises(InvalidInput, match="box of client 0"):
        round.parties[1].receive(0, boxes[1][:-1], round.adverts)
    with pytest.raises(InvalidInput, match="box of client 9"):  # of whom nobody heard
        round.parties[1].receive(9, boxes[1], round.adverts)


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
