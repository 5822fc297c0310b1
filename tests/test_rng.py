"""Streams by name."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.turn import Roots, Turn
from coterie.rng import Rng, Secrets
from coterie.wire.messages import Kind


def test_a_stream_is_its_name() -> None:
    root = Rng.seeded(1)
    stream = root.child("client", 7, "round", 3)
    root.child("something", "else").torch()
    assert root.child("client", 7, "round", 3) == stream
    assert torch.equal(torch.rand(3, generator=stream.torch()), torch.rand(3, generator=stream.torch()))
    assert stream.numpy().random() == stream.numpy().random()


def test_a_stream_of_numpys_is_philox_under_the_nodes_key() -> None:
    node = Rng.seeded(1).child("client", 7)
    due = np.random.Generator(np.random.Philox(key=int.from_bytes(node.key, "little")))
    found = pickle.loads(pickle.dumps(node.numpy()))
    assert found.permutation(50).tolist() == due.permutation(50).tolist()
    assert found.normal(size=3).tolist() == due.normal(size=3).tolist()


def test_other_names_and_seeds_are_other_streams() -> None:
    keys = {
        Rng.seeded(seed).child("client", client, purpose).key
        for seed in range(4)
        for client in range(50)
        for purpose in ("noise", "batches")
    }
    assert len(keys) == 4 * 50 * 2
    assert Rng.seeded(0).child("a", "b") != Rng.seeded(0).child("a").child("b").child()


def test_streams_are_independent() -> None:
    """1000 streams' first normals: mean 0 and variance 1 within six standard errors (once in 5e8 seeds)."""
    first = torch.tensor(
        [float(torch.randn(1, generator=Rng.seeded(0).child("client", n).torch())) for n in range(1000)]
    )
    assert abs(float(first.mean())) < 6 / 1000**0.5
    assert abs(float(first.var()) - 1) < 6 * (2 / 1000) ** 0.5


def test_entropy_is_nobody_s_seed() -> None:
    assert Rng.from_entropy() != Rng.from_entropy()


def test_a_negative_seed() -> None:
    with pytest.raises(InvalidInput, match="seed=-1 must be a whole number of at least 0"):
        Rng.seeded(-1)


def test_draws_and_secrets_are_a_party_s_a_round_s_and_a_kind_s() -> None:
    roots = Roots(Rng.seeded(0), Secrets.seeded(1))
    kinds = [Kind("train"), Kind("place"), Kind("place", 1), Kind("train", part="shares")]
    turns = [(Turn(round, roots, kind), party) for round in (0, 1) for kind in kinds for party in (0, 1)]
    draws = {turn.draws(party, "x").key for turn, party in turns}
    secrets = {turn.secrets(party, "x").bytes(16) for turn, party in turns}
    assert len(draws) == len(secrets) == len(turns)
    assert not draws & secrets


def test_draws_follow_from_the_seed_and_secrets_from_their_own_root() -> None:
    """A deployed client's secrets are the operating system's, though its draws are reproducible."""
    one, other = (Turn(3, Roots(Rng.seeded(0), Secrets.from_entropy()).child("clients")) for _ in range(2))
    assert one.draws(7, "batches") == other.draws(7, "batches")
    assert one.secrets(7, "noise").bytes(16) != other.secrets(7, "noise").bytes(16)
    assert not one.secrets(7, "noise").reproducible
    seeded = Turn(3, Roots.seeded(0).child("clients"))
    assert one.draws(7, "batches") == seeded.draws(7, "batches")


def test_a_simulation_s_secrets_can_be_had_again_and_say_so() -> None:
    for first, again in ((Roots.seeded(4), Roots.seeded(4)), (Roots.same(Rng.seeded(4)), Roots.same(Rng.seeded(4)))):
        one, other = (roots.child("clients").secrets.child("noise") for roots in (first, again))
        assert one.bytes(16) == other.bytes(16)
        assert one.reproducible
    assert Roots.same(Rng.seeded(4)).secrets.bytes(16) != Roots.same(Rng.seeded(5)).secrets.bytes(16)
    assert not Roots.from_entropy().secrets.reproducible


def test_coins_fall_as_often_as_they_should() -> None:
    """20,000 coins: within 5 deviations, false alarm 1e-6; and the two certain ones are certain."""
    secrets = Secrets.seeded(1)
    for rate in (0.02, 0.5, 0.9):
        heads = int(secrets.child(str(rate)).coins(rate, 20_000).sum())
        assert abs(heads - 20_000 * rate) < 5 * (20_000 * rate * (1 - rate)) ** 0.5
    assert secrets.coins(1.0, 100).all()
    assert not secrets.coins(0.0, 100).any()
    with pytest.raises(InvalidInput, match=r"rate=1.5 must lie in \[0, 1\]"):
        secrets.coins(1.5, 1)


def test_fine_coins_are_decided_by_the_second_word_where_the_first_ties() -> None:
    secrets = Secrets.seeded(5)
    high, low = int(secrets.words(1)[0]), int(secrets.child("low").words(1)[0])
    tied = (high << 64) + low
    assert not secrets.fine_coins(tied, 1)[0]
    assert secrets.fine_coins(tied + 1, 1)[0]
    assert secrets.fine_coins((high + 1) << 64, 1)[0]
    assert secrets.fine_coins(1 << 128, 3).all()
    assert not secrets.fine_coins(0, 3).any()


def test_secrets_have_256_bits_and_streams_by_name() -> None:
    """Two nodes agree in a word of their streams once in 2^64; 200 nodes give 200 streams."""
    root = Secrets.seeded(3)
    assert root.child("a", 1).bytes(64) == root.child("a", 1).bytes(64)
    names: list[tuple[str | int, ...]] = [("a", "b"), ("a/b",), ("a", 1), ("a", "1"), ("ab",), ("a", ""), ()]
    nodes = [root, *(root.child(*name) for name in names), root.child("a").child("b"), *map(Secrets.seeded, range(190))]
    assert len({node.bytes(16) for node in nodes[:-190]}) == len(names) + 2
    assert len({node.bytes(16) for node in nodes}) == len(nodes) - 1  # the root is one of the 190
    with pytest.raises(InvalidInput, match=r"len\(key\)=16 must be 32 bytes"):
        Secrets(bytes(16), reproducible=True)


def test_every_bit_of_a_key_matters() -> None:
    """No door of fewer bits: each of the 256 changes the stream, and each of its words."""
    words = {Secrets((1 << bit).to_bytes(32, "little"), reproducible=True).words(4).tobytes() for bit in range(256)}
    assert len(words) == 256
    assert len({word[:8] for word in words}) == 256


def test_a_stream_is_read_on_and_a_node_from_its_beginning() -> None:
    node = Secrets.seeded(3).child("noise")
    stream = node.stream()
    assert np.array_equal(np.concatenate([stream.words(3), stream.words(40_000)]), node.words(40_003))
    assert node.words(5).tobytes() == node.bytes(40)
    assert node.bytes(3) == node.bytes(7)[:3]


def test_secret_words_are_uniform() -> None:
    """Ones among 6.4 million bits within six standard errors (once in 5e8 keys), in every place of a word."""
    words = Secrets.seeded(4).words(100_000)
    for place in range(64):
        ones = int(((words >> np.uint64(place)) & np.uint64(1)).sum())
        assert abs(ones - 50_000) < 6 * math.sqrt(25_000)


def test_who_may_know_a_secret_is_part_of_it() -> None:
    assert Secrets.seeded(0).child("x", 2).reproducible
    assert not Secrets.from_entropy().child("x", 2).reproducible
    assert Secrets.from_entropy().bytes(32) != Secrets.from_entropy().bytes(32)
    with pytest.raises(InvalidInput, match="seed=-1"):
        Secrets.seeded(-1)


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_stays_where_it_is(leave: Callable[[object], object]) -> None:
    node = Secrets.seeded(0)
    assert repr(node) == str(node) == "Secrets(reproducible=True)"
    for secret in (node, node.stream()):
        with pytest.raises(NotPermitted, match="cannot be pickled or copied"):
            leave(secret)
    assert not hasattr(node, "__dict__")
