"""Answers that are spoilt, missing or too many, and settings that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.defences.mingling.federation import (
    IFCA,
    Stubborn,
    close,
    models,
    run,
)
from tests.ring import turn

from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, TagRule
from coterie.defences.secure_sums import ClientsDropped, ClusterLeftOut, RoundLeftOut, Smallest
from coterie.errors import InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.drive import message_of
from coterie.learn.sgd import Local
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.seal.ckks import Ckks, CkksBatch
from coterie.seal.mock import MockCipher
from coterie.wire.messages import Contributions, Published
from coterie.wire.sealed import SEALED

# -- bad input -------------------------------------------------------------------------------------------------------


def answers(defence: Mingling) -> list[Contributions]:
    """The first training round's answers, client by client."""
    done = run(defence, replace(IFCA, rounds=1, candidates=0), chunk_bytes=1)
    return [up.sent for up in done.ring.clients.exchange(message_of(done.asks[0], done.ring.server))]


def opened(defence: Mingling, parts: list[Contributions]) -> tuple[torch.Tensor, torch.Tensor]:
    sums = defence.server.aggregate(iter(parts), turn())
    return sums.sealed[SEALED].open(defence.key), sums.counts


def damage(parts: list[Contributions], how: str) -> list[Contributions]:
    """Spoil what client 4 sent."""
    batch = parts[4].sealed[SEALED]
    assert isinstance(batch, CkksBatch)
    message = batch.messages[0][0]
    assert message is not None
    other = Mingling(cipher=Ckks())
    if how == "another key":
        batch = Ckks().seal(torch.ones(1, batch.length), other.key, [4])
    elif how == "another key under the same name":
        batch = replace(batch, messages=Ckks().seal(torch.ones(1, batch.length), other.key, [4]).messages)
    elif how == "truncated":
        batch = replace(batch, messages=((message[:-100],),))
    elif how == "wrong length":
        batch = replace(batch, messages=batch.messages, length=batch.length + 1)
    elif how == "a longer model":
        batch = Ckks().seal(torch.ones(1, batch.length + 5), KEYS["ckks"].key, [4])
    spoilt = replace(parts[4], sealed={SEALED: batch})
    if how == "no members":
        spoilt = replace(spoilt, membership=torch.zeros(1, 3))
    elif how == "not binary":
        spoilt = replace(spoilt, membership=torch.full((1, 3), 0.5))
    elif how == "four clusters":
        spoilt = replace(spoilt, membership=torch.ones(1, 4))
    elif how == "not sealed":
        spoilt = replace(spoilt, sealed={}, values={"0.weight": torch.ones(1, 1, 2)})
    return [*parts[:4], spoilt, *parts[5:]]


KEYS = {"ckks": Mingling(exact=False, cipher=Ckks())}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("another key", "another key"),
        ("another key under the same name", "key"),
        ("truncated", "truncated"),
        ("wrong length", "length"),
        ("a longer model", "length"),
        ("no members", "has no member"),
        ("not binary", "zeros and ones"),
        ("four clusters", "clusters"),
        ("not sealed", "not sealed"),
    ],
)
def test_a_spoilt_answer_costs_nobody_else_s(how: str, reason: str) -> None:
    defence = KEYS["ckks"]
    parts = answers(defence)
    expected, members = opened(defence, parts[:4] + parts[5:])
    with pytest.warns(ClientsDropped, match=rf"round 0, train: dropped client 4: .*{reason}"):
        found, counts = opened(defence, damage(parts, how))
    assert torch.equal(found, expected)
    assert torch.equal(counts, members)


def test_nothing_usable_leaves_everything_as_it_was_and_says_why() -> None:
    defence, parts = KEYS["ckks"], damage(answers(KEYS["ckks"]), "no members")[4:5]
    with pytest.warns(ClientsDropped, match=r"round 0: no usable answer: client 4: .*no member"):
        assert defence.server.aggregate(iter(parts), turn()).empty


@pytest.mark.parametrize("part", ["shares", "masked", "open"])
def test_drop_outs_under_masks_are_recovered(part: str) -> None:
    """Before the boxes a client is left out; with them, its masks are taken away; after its answer it is in."""
    once, everybody = replace(IFCA, rounds=1, candidates=0), Mingling(threshold=3, smallest=Smallest(1, spare=2))
    done = run(everybody, once, lost=lambda asked: {2, 7} if asked.kind.part == part else ())
    mock = Mingling(threshold=3, cipher=MockCipher())
    kept = [answer for answer in answers(mock) if part == "open" or int(answer.ids) not in (2, 7)]
    expected, _ = opened(mock, kept)
    found = done.state.published.sealed[SEALED].open(everybody.key)
    true = expected[:, -3:].diagonal() > 0
    assert torch.equal(found[true], expected[true])
    assert bool(true.any())


def test_a_round_that_too_few_finish_is_left_out() -> None:
    once = replace(IFCA, rounds=1, candidates=0)
    with pytest.warns(RoundLeftOut, match="round 0, train: too few masked answers"):
        done = run(
            Mingling(smallest=Smallest(1)),
            once,
            lost=lambda asked: range(5) if asked.kind.part == "masked" else (),
        )
    close(models(done), done.asks[0].published.values, atol=0)


def test_a_cluster_of_two_is_left_out_of_the_round_and_keeps_its_model() -> None:
    """Its sum would be opened to whoever of the two helps the server."""
    protocol = Stubborn(rounds=1, local=IFCA.local, clusters=3, candidates=0)
    defence = Mingling(rate=1e-9, threshold=1, partition=False)  # no decoys: client 1 is alone
    with pytest.warns(ClusterLeftOut, match=r"round 0: clusters \[1\] have fewer than 3 true members and keep"):
        done = run(defence, protocol)
    start, after = done.asks[0].published.values["0.weight"], models(done)["0.weight"]
    assert torch.allclose(after[1], start[1], atol=1e-6)
    assert not torch.allclose(after[0], start[0], atol=1e-3)


def test_settings_that_cannot_be() -> None:
    for rate in (0.0, 1.0, -0.5, 1.5):
        with pytest.raises(InvalidInput, match=r"rate=.*between 0 and 1"):
            Mingling(rate=rate)
    with pytest.raises(InvalidInput, match="exact=False must be True with PairwiseMasks"):
        Mingling(exact=False)
    with pytest.raises(InvalidInput, match="threshold=0"):
        Mingling(threshold=0)
    with pytest.raises(InvalidInput, match=r"threshold=4 must lie in 1\.\.3"):
        run(Mingling(threshold=4, cipher=MockCipher()))
    with pytest.raises(InvalidInput, match=r"threshold=3 must lie in 1\.\.2"):
        run(Mingling(threshold=3, counting=Counting.DECOYS, cipher=MockCipher()))
    with pytest.raises(InvalidInput, match="does not fit this protocol: clients must choose one of at least two"):
        run(Mingling(exact=False, cipher=MockCipher()), FedAvg(rounds=1))
    with pytest.raises(InvalidInput, match="needs the sums of all clusters in the clear"):
        run(Mingling(), replace(IFCA, average_gradients=True, local=Local(steps=1)))
    keys = ClusterKeys.generate(TagRule(5, 0.5, 2), Rng.seeded(1))
    with pytest.raises(InvalidInput, match="cluster keys"):
        run(Mingling(cluster_keys=keys, cipher=MockCipher()))


def test_weights_too_large_to_be_sealed_are_refused_with_the_unit_to_take() -> None:
    guard = Mingling(cipher=MockCipher()).client
    one = torch.nn.functional.one_hot(torch.tensor([0, 1]), 2).float()
    heavy = Contributions(torch.arange(2), {"w": torch.ones(2, 1, 3)}, torch.tensor([800.0, 3000.0]), one)
    with pytest.raises(InvalidInput, match=r"largest weighted value=3000.*unit=3000.*weighting='equal'"):
        guard.contribute(heavy, Cohort(heavy.ids, turn()))
    Mingling(cipher=MockCipher(), unit=3000).client.contribute(heavy, Cohort(heavy.ids, turn()))
    close(
        models(run(Mingling(cipher=MockCipher(), exact=True, unit=16))), models(run(Mingling(cipher=Ckks()))), atol=1e-4
    )
    with pytest.raises(InvalidInput, match="unit=0"):
        Mingling(unit=0)


def test_memberships_that_do_not_name_one_cluster_are_refused() -> None:
    guard = Mingling(cipher=MockCipher()).client
    soft = Contributions(torch.arange(2), {"w": torch.ones(2, 1, 3)}, torch.ones(2), torch.full((2, 2), 0.5))
    with pytest.raises(InvalidInput, match="use it with Ifca"):
        guard.contribute(soft, Cohort(soft.ids, turn()))


def test_sums_without_the_models_before_them_or_of_another_size_are_refused() -> None:
    done = run(Mingling(exact=False, cipher=MockCipher()))
    guard, published = done.ring.defence.client, done.state.published
    with pytest.raises(InvalidInput, match="without the models before"):
        guard.receive(replace(published, previous=None), turn())
    with pytest.raises(InvalidInput, match="opened sums of shape"):
        guard.receive(replace(published, previous=Published({"w": torch.ones(3, 2)})), turn())
