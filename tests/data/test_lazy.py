"""Clients whose data are read when they are asked train to the same bits as clients in memory."""

from __future__ import annotations

import pytest
import torch

import coterie
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.lazy import LazyFederation
from coterie.errors import InvalidInput
from coterie.flow.turn import Roots
from coterie.protocols.fedavg import FedAvg

SIZES = torch.tensor([3, 0, 5, 2, 4, 1])


def examples_of(client: int, count: int, stream: str) -> Examples:
    draws = coterie.Rng.seeded(client).child(stream).torch()
    return Examples(torch.randn(count, 4, generator=draws), torch.randint(3, (count,), generator=draws), 3, f"{client}")


def lazy(evaluated: torch.Tensor | None = None) -> LazyFederation:
    return LazyFederation(
        SIZES,
        lambda client: examples_of(client, int(SIZES[client]), "train"),
        lambda client: examples_of(client, 2, "test"),
        evaluated,
    )


def in_memory() -> Federation:
    x: list[torch.Tensor] = []
    y: list[torch.Tensor] = []
    train: list[torch.Tensor] = []
    test: list[torch.Tensor] = []
    at = 0
    for client, size in enumerate(SIZES.tolist()):
        for count, stream, shards in ((size, "train", train), (2, "test", test)):
            shards.append(torch.arange(at, at + count))
            at += count
            if count:
                x.append(examples_of(client, count, stream).x)
                y.append(examples_of(client, count, stream).y)
    whole = Examples(torch.cat(x), torch.cat(y), 3, "whole")
    return Federation(whole, Shards.of(train), Shards.of(test), torch.full((6,), -1))


@pytest.mark.parametrize("protocol", ["fedavg", "ifca", "fedem"])
def test_the_same_federation_read_or_in_memory_gives_the_same_bits(protocol: str) -> None:
    local = coterie.Local(steps=3, batch_size=2, lr=0.1)
    made = {
        "fedavg": coterie.FedAvg(rounds=4, local=local, participation=0.5),
        "ifca": coterie.Ifca(rounds=4, local=local, clusters=2),
        "fedem": coterie.FedEM(rounds=3, local=local, components=2),  # clients remember
    }[protocol]
    read, kept = (coterie.train(made, one, coterie.Dense((4, 3)), seed=1) for one in (lazy(), in_memory()))
    assert all(torch.equal(leaf, kept.models[name]) for name, leaf in read.models.items())
    torch.testing.assert_close(read.scores.values, kept.scores.values, equal_nan=True)


def test_results_are_those_of_the_clients_that_are_evaluated() -> None:
    trained = coterie.train(FedAvg(rounds=2), lazy(torch.tensor([4, 2])), coterie.Dense((4, 3)), seed=1)
    everyone = coterie.train(FedAvg(rounds=2), in_memory(), coterie.Dense((4, 3)), seed=1)
    torch.testing.assert_close(trained.scores.values, everyone.scores.values[[4, 2]])


def test_of_a_million_only_those_who_are_asked_are_read() -> None:
    asked: set[int] = set()

    def train(client: int) -> Examples:
        asked.add(client)
        return examples_of(client, 2, "train")

    many = LazyFederation(torch.full((1_000_000,), 2), train, lambda client: examples_of(client, 1, "test"))
    protocol = FedAvg(rounds=2, participation=2e-5, local=coterie.Local(steps=1, batch_size=2))
    with coterie.Ring(protocol, many, coterie.Dense((4, 3)), roots=Roots.seeded(0)) as ring:
        ring.run()
    assert 2 <= len(asked) <= 41  # twenty a round, and the one that shows what examples look like
    assert len(many.panel_ids) == 100
    assert many.panel_ids[-1] == 999_999


def test_what_a_defence_must_know_is_the_smallest_client_of_all() -> None:
    read, kept = (FedAvg(rounds=3).facts(one) for one in (lazy(), in_memory()))
    assert read == kept
    assert [pool.size for pools in read.exposures for pool in pools] == [1]


def test_what_is_not_as_the_roster_says_is_named() -> None:
    with pytest.raises(InvalidInput, match="examples of client 2=1 must be 5, as the roster says"):
        LazyFederation(SIZES, lambda c: examples_of(c, 1, "x"), lambda c: examples_of(c, 1, "x")).held([2])
    with pytest.raises(InvalidInput, match="every client is empty"):
        LazyFederation(torch.zeros(2), lambda c: examples_of(c, 1, "x"), lambda c: examples_of(c, 1, "x"))
    with pytest.raises(InvalidInput, match=r"must name some of the clients 0\.\.5"):
        lazy(torch.tensor([6]))
