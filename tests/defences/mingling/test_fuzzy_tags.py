"""Identity sets: the corrected equation, the threshold in both readings, and the closed forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import nacl.bindings as sodium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.defences.mingling import fuzzy_tags
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, GroupSets, SampledSets, TagRule, bits_of_rate
from coterie.errors import InvalidInput
from coterie.rng import Rng


def group_sets(rule: TagRule, seed: int = 0) -> GroupSets:
    return GroupSets(rule, ClusterKeys.generate(rule, Rng.seeded(seed)))


def enumerated_guess(rule: TagRule) -> float:
    """The slow oracle: every subset of decoys with its probability."""
    total = right = 0.0
    for coins in itertools.product((False, True), repeat=rule.clusters - 1):
        size = 1 + sum(coins)
        counted = size if rule.counting is Counting.IDENTITIES else size - 1
        if counted >= rule.threshold:
            chance = math.prod(rule.rate if coin else 1 - rule.rate for coin in coins)
            total += chance
            right += chance / size
    return right / total


def test_blind_guess_of_the_papers_defaults_in_both_readings() -> None:
    # k=5, p=1/2, T=2: sum over c of C(4, c-1)/c is 4/2 + 6/3 + 4/4 + 1/5 = 5.2, out of 15 subsets.
    assert TagRule(5, 0.5, 2).blind_guess() == pytest.approx(5.2 / 15)
    # At least two decoys: 6/3 + 4/4 + 1/5 = 3.2, out of 11.
    assert TagRule(5, 0.5, 2, Counting.DECOYS).blind_guess() == pytest.approx(3.2 / 11)


@given(st.integers(2, 8), st.floats(0.01, 0.99), st.integers(1, 8), st.sampled_from(Counting))
def test_closed_form_equals_enumeration(k: int, rate: float, threshold: int, counting: Counting) -> None:
    most = k if counting is Counting.IDENTITIES else k - 1
    rule = TagRule(k, rate, min(threshold, most), counting)
    assert rule.blind_guess() == pytest.approx(enumerated_guess(rule))
    assert 1 / k <= rule.blind_guess() + 1e-12
    assert rule.blind_guess() <= 1 / rule.least + 1e-12  # Theorem 2, with T counting the true identity
    assert rule.decoy_rate() >= rate - 1e-9  # redrawing only adds decoys


def test_set_is_an_equivalence_class_under_the_same_r() -> None:
    """With r held fixed, each member would have given the same set, and each non-member another one."""
    rule = TagRule(8, 0.5, 1)
    sets = group_sets(rule)
    r = Rng.seeded(5)
    drawn = [sets._draw(true, r).tolist() for true in range(8)]
    for true, chosen in enumerate(drawn):
        assert chosen[true]
        for other, inside in enumerate(chosen):
            assert (drawn[other] == chosen) == inside
    assert any(not all(chosen) for chosen in drawn)  # the equation as printed would put everyone everywhere


def test_tag_by_the_table_of_the_base_equals_u_to_the_address() -> None:
    keys = ClusterKeys.generate(TagRule(4, 0.25), Rng.seeded(0))
    r = fuzzy_tags._scalar(Rng.seeded(1))
    u = sodium.crypto_scalarmult_ed25519_base_noclamp(r)
    for address, public in zip(keys.addresses, keys.public, strict=True):
        for x, h in zip(address, public, strict=True):
            assert fuzzy_tags._tag(r, x) == sodium.crypto_scalarmult_ed25519_noclamp(x, u)
            assert fuzzy_tags._tag(r, x) == sodium.crypto_scalarmult_ed25519_noclamp(r, h)


@pytest.mark.parametrize("counting", list(Counting))
@pytest.mark.parametrize(("rate", "threshold"), [(0.5, 2), (0.25, 2)])
def test_group_and_sampled_sets_are_equal_in_distribution(rate: float, threshold: int, counting: Counting) -> None:
    """Counts of set sizes and of each decoy, within 5 standard errors: a false alarm in about 10^5 runs."""
    rule = TagRule(5, rate, threshold, counting)
    draws = 1500
    ids, true = torch.arange(draws), torch.zeros(draws, dtype=torch.int64)
    for sets in (group_sets(rule), SampledSets(rule)):
        chosen = sets.membership(ids, true, Rng.seeded(3)).numpy()
        sizes = chosen.sum(1)
        for size, chance in rule.size_distribution().items():
            bound = 5 * math.sqrt(draws * chance * (1 - chance)) + 1
            assert abs((sizes == size).sum() - draws * chance) < bound
        hits, spread = draws * rule.decoy_rate(), math.sqrt(draws * 0.25)
        assert np.abs(chosen[:, 1:].sum(0) - hits).max() < 5 * spread
        assert (1 / sizes).mean() == pytest.approx(rule.blind_guess(), abs=5 * (1 / sizes).std() / draws**0.5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4), st.sampled_from(Counting))
def test_a_set_holds_the_true_cluster_meets_the_threshold_and_lives(client: int, true: int, counting: Counting) -> None:
    rule = TagRule(5, 0.5, 2, counting)
    for sets in (group_sets(rule), SampledSets(rule)):
        there, back = torch.tensor([client, 3]), torch.tensor([true, 1])
        first = sets.membership(there, back, Rng.seeded(9))
        sets.membership(there, (back + 1) % 5, Rng.seeded(9))  # it moves away ...
        again = sets.membership(there.flip(0), back.flip(0), Rng.seeded(9)).flip(0)  # ... and back
        assert torch.equal(first, again)
        assert first[0, true]
        assert first[0].sum() >= 2 + (counting is Counting.DECOYS)


def test_clients_do_not_share_their_sets() -> None:
    sets = group_sets(TagRule(10, 0.5))
    drawn = sets.membership(torch.arange(20), torch.zeros(20, dtype=torch.int64), Rng.seeded(0))
    assert len(torch.unique(drawn, dim=0)) > 10


@pytest.mark.parametrize(
    ("arguments", "thing"),
    [
        ((1, 0.5, 1), "clusters=1"),
        ((5, 0.0, 2), "rate=0.0"),
        ((5, 1.0, 2), "rate=1.0"),
        ((5, float("nan"), 2), "rate=nan"),
        ((5, 0.5, 6), "threshold=6"),
        ((5, 0.5, 0), "threshold=0"),
        ((5, 0.5, 5, Counting.DECOYS), "threshold=5"),
    ],
)
def test_impossible_rules_are_refused(arguments: tuple[int, float, int], thing: str) -> None:
    with pytest.raises(InvalidInput, match=thing):
        TagRule(*arguments)


def test_rate_that_is_no_power_of_a_half_needs_the_sampler() -> None:
    assert [bits_of_rate(rate) for rate in (0.5, 0.25, 0.125)] == [1, 2, 3]
    with pytest.raises(InvalidInput, match=r"rate=0.3 must be a power of 1/2.*SampledSets"):
        ClusterKeys.generate(TagRule(5, 0.3), Rng.seeded(0))
    assert SampledSets(TagRule(5, 0.3)).membership(torch.arange(3), torch.arange(3), Rng.seeded(0)).shape == (
        3,
        5,
    )


def test_wrong_keys_and_clusters_are_refused() -> None:
    rule = TagRule(3, 0.5)
    keys = ClusterKeys.generate(rule, Rng.seeded(0))
    with pytest.raises(InvalidInput, match="cluster keys of shape"):
        GroupSets(TagRule(3, 0.25), keys)
    identity = (1).to_bytes(32, "little")  # the neutral element would give every client the same bit
    with pytest.raises(InvalidInput, match="public key of cluster 0"):
        ClusterKeys(keys.addresses, ((identity,), *keys.public[1:]))
    with pytest.raises(InvalidInput, match="true cluster=3"):
        GroupSets(rule, keys).membership(torch.tensor([0]), torch.tensor([3]), Rng.seeded(0))


# -- one r for life: a partition --------------------------------------------------------------------------------------


def enumerated_parts(rule: TagRule) -> dict[int, float]:
    """The slow oracle: every tagging in which each tag that occurs does so often enough; the size of cluster 0's."""
    counts: dict[int, int] = {}
    for tags in itertools.product(range(rule.tags), repeat=rule.clusters):
        if min(tags.count(tag) for tag in set(tags)) >= rule.least:
            counts[tags.count(tags[0])] = counts.get(tags.count(tags[0]), 0) + 1
    return {size: count / sum(counts.values()) for size, count in counts.items()}


@pytest.mark.parametrize(
    ("k", "rate", "threshold"), [(5, 0.5, 2), (5, 0.5, 3), (6, 1 / 3, 2), (7, 0.25, 1), (4, 0.5, 2)]
)
def test_parts_are_as_enumeration_says(k: int, rate: float, threshold: int) -> None:
    rule = TagRule(k, rate, threshold, partition=True)
    assert rule.size_distribution() == pytest.approx(enumerated_parts(rule))
    draws = 3000
    drawn = SampledSets(rule).membership(torch.arange(draws), torch.zeros(draws, dtype=torch.int64), Rng.seeded(1))
    for size, chance in rule.size_distribution().items():
        bound = 5 * math.sqrt(draws * chance * (1 - chance)) + 1  # a false alarm in about 10^6 runs
        assert abs(int((drawn.sum(1) == size).sum()) - draws * chance) < bound


def test_what_figure_3_of_the_public_code_draws() -> None:
    """By enumeration of two sets; for one it is the blind guess."""
    rule = TagRule(4, 0.5, 2)
    sizes = rule.size_distribution()
    pairs = [(one, other) for one in sizes for other in sizes]
    expected = sum(sizes[one] * sizes[other] * 2 / (one + other) for one, other in pairs)
    assert rule.printed_guess(2) == pytest.approx(expected)
    assert rule.printed_guess(1) == pytest.approx(rule.blind_guess())


def test_blind_guess_of_a_partition_by_hand() -> None:
    # Of 32 ways to halve five clusters, 2 leave them whole and 20 make parts of two and three; 10 leave one alone.
    assert TagRule(5, 0.5, 2, partition=True).blind_guess() == pytest.approx((2 / 5 + 20 * 2 / 5) / 22)


@pytest.mark.parametrize("make", [SampledSets, group_sets])
def test_a_client_s_sets_partition_the_clusters(make: Any) -> None:
    rule, ids = TagRule(6, 0.5, 2, partition=True), torch.arange(40)
    sets = torch.stack([make(rule).membership(ids, torch.full((40,), true), Rng.seeded(2)) for true in range(6)])
    for client in range(40):
        parts = sets[:, client]  # (true, clusters)
        assert bool(parts.diagonal().all())
        assert torch.equal(parts, parts.T)
        assert torch.equal(parts.float() @ parts.float() > 0, parts)  # the same part for all of its members
        assert int(parts.sum(1).min()) >= 2
    assert len(torch.unique(sets[0], dim=0)) > 5


def test_partitions_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"rate=0\.3 must be 1/2, 1/3"):
        TagRule(5, 0.3, 2, partition=True)
    with pytest.raises(InvalidInput, match="threshold=4 leaves one r in"):
        group_sets(TagRule(12, 1 / 16, 4, partition=True))


# -- keys that the server has chosen to learn more --------------------------------------------------------------------


def test_keys_that_are_not_of_their_addresses_are_refused() -> None:
    """Keys turned by one cluster: a client's set then matches its neighbour's bits, and says which."""
    keys = ClusterKeys.generate(TagRule(5, 0.5), Rng.seeded(0))
    turned = keys.public[1:] + keys.public[:1]
    with pytest.raises(InvalidInput, match=r"public key of cluster 0=.*must be g\^x of its address"):
        ClusterKeys(keys.addresses, turned)
    with pytest.raises(InvalidInput, match="cluster keys='two alike' must all be different"):
        ClusterKeys(keys.addresses[:1] * 5, keys.public[:1] * 5)
    assert ClusterKeys(keys.addresses, keys.public) == keys
