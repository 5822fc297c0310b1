"""Secure sums: exact, private against one colluding client, and recovering drop-outs without opening more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seal.rounds import IDS, MEMBERSHIP, Round, draw, members, on_grid, ready

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import streams
from coterie.seal.ckks import Ckks


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
    with pytest.raises(InvalidInput, match="answers about client 3=4 must be at least 5"):
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
        stream = streams.agree(party.mask_key, round.adverts[partner].masks, b"mask")
        streams.add_stream(late, stream, 0, subtract=not partner < 2)
    assert_uniform(late)
    streams.add_stream(late, party.seed, 0, subtract=True)
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
        streams.add_stream(words, round.parties[honest].seed, 0, subtract=True)
        shared = streams.agree(round.parties[2].mask_key, round.adverts[honest].masks, b"mask")
        streams.add_stream(words, shared, 0, subtract=True)  # 2 is larger, so the honest ones added it
        assert_uniform(words)
        seen.append(words)
    # Only the sum of the two is determined. Any other split of it fits the view just as well.
    assert np.array_equal(seen[0] + seen[1], 2 * plain)
