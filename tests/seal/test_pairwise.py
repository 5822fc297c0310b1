"""Secure sums: exact, private against one colluding client, and recovering drop-outs without opening more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import pairwise as secure_sum
from coterie.seal.ckks import Ckks
from coterie.seal.masked import MaskedBatch, SecureSum
from coterie.seal.pairwise import Party, Roster
from coterie.wire.sealed import SealedBatch

IDS = [3, 5, 8, 9, 12, 20, 21]
MEMBERSHIP = torch.tensor([[1, 0], [1, 1], [1, 1], [0, 1], [1, 1], [0, 1], [1, 0]])


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def on_grid(values: Tensor) -> Tensor:
    return torch.round(values * 2**24) / 2**24


def cipher(neighbours: int | None = None) -> SecureSum:
    return SecureSum(Roster.of(IDS, MEMBERSHIP, neighbours))


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(3, 8),
    length=st.sampled_from([1, 50, 40_000]),
    neighbours=st.sampled_from([None, 2, 4]),
    seed=st.integers(0, 99),
)
def test_sums_equal_numpy_exactly(clients: int, length: int, neighbours: int | None, seed: int) -> None:
    membership = torch.ones(clients, 2)
    membership[:, 1] = 0  # nobody in the second cluster
    sums = SecureSum(Roster.of(range(clients), membership, neighbours))
    key = sums.keygen()
    values = draw(seed, clients, length) * 100
    opened = sums.seal(values, key, range(clients)).add(membership).open(key)
    assert torch.equal(opened, membership.double().T @ on_grid(values))


def test_one_vector_a_cluster_for_exact_mingling_and_the_bits_of_ckks() -> None:
    values = draw(0, 7, 2, 60)
    secure, ckks = cipher(), Ckks()
    session, key = secure.keygen(), ckks.keygen()
    ours = secure.seal(values, session, IDS, MEMBERSHIP)
    theirs = ckks.seal(values, key, IDS, MEMBERSHIP)
    assert torch.equal(ours.add(MEMBERSHIP).open(session), theirs.add(MEMBERSHIP).open(key))
    assert ours.nbytes == 8 * 60 * int(MEMBERSHIP.sum())
    assert ours.add(MEMBERSHIP).nbytes == 8 * 60 * 2
    assert session.setup_bytes > 0


@pytest.mark.parametrize("neighbours", [None, 2])
def test_drop_outs_are_recovered(neighbours: int | None) -> None:
    secure = cipher(neighbours)
    key = secure.keygen()
    values = draw(1, 7, 40)
    batch = secure.seal(values, key, IDS)
    here = [0, 1, 2, 4, 5, 6]  # client 9 (position 3) never arrives
    opened = batch.pick(here).add(MEMBERSHIP[here]).open(key)
    assert torch.equal(opened, MEMBERSHIP[here].double().T @ on_grid(values[here]))


def test_a_round_answers_once_so_that_a_late_message_stays_masked() -> None:
    secure = cipher()
    key = secure.keygen()
    batch = secure.seal(draw(1, 7, 40), key, IDS)
    here = [0, 1, 2, 4, 5, 6]
    without = batch.pick(here).add(MEMBERSHIP[here])
    assert torch.equal(without.open(key), without.open(key))  # the same question again tells nothing new
    with pytest.raises(NotPermitted, match="one answer a round"):
        (without + batch.pick([3]).add(MEMBERSHIP[[3]])).open(key)


def test_a_late_message_is_uniform_even_to_those_who_hold_the_mask_key() -> None:
    """The drop-out's mask key is revealed; its own seed is not, and still hides every word."""
    length = 20_000
    roster = Roster.of(range(4), torch.ones(4, 1))
    parties = [Party(i, roster) for i in range(4)]
    adverts = {i: party.advert for i, party in enumerate(parties)}
    late = parties[2].mask(np.zeros(length, np.uint64), 0, adverts)
    for partner in (0, 1, 3):  # what the revealed mask key gives away
        stream = secure_sum._agree(parties[2]._masks, adverts[partner].masks, b"mask")
        secure_sum._add_stream(late, stream, 0, subtract=not partner < 2)
    assert_uniform(late)
    secure_sum._add_stream(late, parties[2]._seed, 0, subtract=True)
    assert not late.any()  # only the seed was left


def assert_uniform(words: np.ndarray) -> None:
    """Every bit is balanced to 6 standard errors: a false alarm in about 10^7 runs."""
    bits = np.unpackbits(words.view(np.uint8)).reshape(len(words), 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 6 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("value", [0, 123456789])
def test_server_and_one_colluder_see_uniform_words(value: int) -> None:
    """Cluster {0, 1, 2}; client 2 colludes. Take away all that both know, the seeds opened at the end included."""
    length = 20_000
    roster = Roster.of(range(3), torch.ones(3, 1))
    parties = [Party(i, roster) for i in range(3)]
    adverts = {i: party.advert for i, party in enumerate(parties)}
    plain = np.full(length, value, np.uint64)
    seen = []
    for honest in (0, 1):
        words = parties[honest].mask(plain, 0, adverts)
        secure_sum._add_stream(words, parties[honest]._seed, 0, subtract=True)
        shared = secure_sum._agree(parties[2]._masks, adverts[honest].masks, b"mask")
        secure_sum._add_stream(words, shared, 0, subtract=True)  # 2 is larger, so the honest ones added it
        assert_uniform(words)
        seen.append(words)
    # Only the sum of the two is determined. Any other split of it fits the view just as well.
    assert np.array_equal(seen[0] + seen[1], 2 * plain)


def test_clusters_that_one_colluder_could_open_are_refused() -> None:
    with pytest.raises(InvalidInput, match="members of cluster 1=2 must be at least 3"):
        Roster.of(range(3), torch.tensor([[1, 1], [1, 1], [1, 0]]))
    roster = Roster.of(range(4), torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]]))
    secure = SecureSum(roster)
    key = secure.keygen()
    batch = secure.seal(draw(0, 4, 5), key, range(4))
    survivors = torch.tensor([[1, 1], [1, 1], [1, 0]])
    with pytest.raises(InvalidInput, match="members of cluster 1=2"):  # two are left after a drop-out
        batch.pick([0, 1, 3]).add(survivors).open(key)


def test_too_many_drop_outs_open_nothing() -> None:
    secure = cipher()
    key = secure.keygen()
    few = [0, 1, 2, 4]
    total = secure.seal(draw(0, 7, 5), key, IDS).pick(few).add(MEMBERSHIP[few])
    with pytest.raises(InvalidInput, match="must be at least 5 of the round's clients"):
        total.open(key)


def test_refusals() -> None:
    secure = cipher()
    key = secure.keygen()
    batch = secure.seal(draw(0, 7, 5), key, IDS)
    with pytest.raises(NotPermitted, match="single clients"):
        batch.open(key)
    with pytest.raises(NotPermitted, match="cannot open the sums"):
        batch.add(MEMBERSHIP).open(secure.keygen())
    with pytest.raises(NotPermitted, match="another round"):
        cipher(4).seal(draw(0, 7, 5), key, IDS)
    with pytest.raises(InvalidInput, match="client 3: membership"):
        batch.add(torch.ones(7, 2))
    with pytest.raises(InvalidInput, match="announced"):
        secure.seal(draw(0, 7, 2, 5), key, IDS, torch.ones(7, 2))
    with pytest.raises(InvalidInput, match="not on the roster"):
        secure.seal(draw(0, 1, 5), key, [99])
    with pytest.raises(InvalidInput, match="other clients"):
        batch.add(MEMBERSHIP) + batch.add(MEMBERSHIP)
    with pytest.raises(InvalidInput, match="neighbours=3"):
        cipher(3)
    with pytest.raises(InvalidInput, match="joined"):
        MaskedBatch.join([batch, secure.seal(draw(0, 7, 6), key, IDS)])


def test_a_box_for_someone_else_is_refused() -> None:
    roster = Roster.of(range(3), torch.ones(3, 1))
    parties = [Party(i, roster) for i in range(3)]
    adverts = {i: party.advert for i, party in enumerate(parties)}
    boxes = parties[0].share(adverts)
    with pytest.raises(InvalidInput, match="box of client 0"):
        parties[2].receive(0, boxes[1], adverts)


def test_chunks_of_clients_give_the_same_sums() -> None:
    secure = cipher()
    key = secure.keygen()
    values = draw(5, 7, 30)
    parts = [secure.seal(values[rows], key, [IDS[i] for i in rows]) for rows in ([0, 1, 2], [3, 4], [5, 6])]
    joined = SealedBatch.join(parts)
    sums = [part.add(MEMBERSHIP[rows]) for part, rows in zip(parts, ([0, 1, 2], [3, 4], [5, 6]))]
    added = sums[0] + sums[1] + sums[2]
    assert torch.equal(added.open(key), MEMBERSHIP.double().T @ on_grid(values))
    assert torch.equal(joined.add(MEMBERSHIP).open(key), added.open(key))


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
