"""Streams by name."""

from __future__ import annotations

import pytest
import torch

from coterie.errors import InvalidInput
from coterie.flow.turn import Roots, Turn
from coterie.rng import Rng
from coterie.wire.messages import Kind


def test_a_stream_is_its_name() -> None:
    root = Rng.seeded(1)
    stream = root.child("client", 7, "round", 3)
    root.child("something", "else").torch()
    assert root.child("client", 7, "round", 3) == stream
    assert torch.equal(torch.rand(3, generator=stream.torch()), torch.rand(3, generator=stream.torch()))
    assert stream.numpy().random() == stream.numpy().random()


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
    roots = Roots(Rng.seeded(0), Rng.seeded(1))
    kinds = [Kind("train"), Kind("place"), Kind("place", 1), Kind("train", part="shares")]
    turns = [(Turn(round, roots, kind), party) for round in (0, 1) for kind in kinds for party in (0, 1)]
    draws = {turn.draws(party, "x").key for turn, party in turns}
    secrets = {turn.secrets(party, "x").key for turn, party in turns}
    assert len(draws) == len(secrets) == len(turns)
    assert not draws & secrets


def test_draws_follow_from_the_seed_and_secrets_from_their_own_root() -> None:
    """A deployed client's secrets are the operating system's, though its draws are reproducible."""
    one, other = (Turn(3, Roots(Rng.seeded(0), Rng.from_entropy()).child("clients")) for _ in range(2))
    assert one.draws(7, "batches") == other.draws(7, "batches")
    assert one.secrets(7, "noise") != other.secrets(7, "noise")
    seeded = Turn(3, Roots.seeded(0).child("clients"))
    assert seeded.draws(7, "x") == seeded.secrets(7, "x")  # in a simulation both are known
    assert one.draws(7, "batches") == seeded.draws(7, "batches")
