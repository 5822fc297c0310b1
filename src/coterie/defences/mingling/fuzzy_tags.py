"""Mingled identity sets by fuzzy message detection (MingledPie, Zhang et al., NDSS 2025, Algorithm 1).

The server publishes for each cluster j an address x_j (n scalars) and a public key h_j = g^x_j. A client
draws r once, and joins every cluster whose n hashed bits equal those of its true cluster:

    H((h_true^l)^r) == H(u^(x_j^l)) for all l in 1..n,   u = g^r.

The paper prints h_j on the left (Eq. 3, Algorithm 1 line 7). Both sides are then equal for every j and each
client would join every cluster; the text means the key of the *true* cluster. So read, the set is an
equivalence class: each member, had it been the true one, would have given the same set under the same r.
With equal priors all members are equally likely, and the best blind guess is right in 1 / |set| of cases.

A set lives as long as its client: it is drawn from a stream that is named by the client and by no round. The paper
draws afresh whenever the cluster changes, so that a client going A, B, A lets the server intersect two sets that both
hold A. One r for each true cluster is not enough either: two different sets then stand for two different clusters, and
a client that moves is found by distinct representatives. So with ``partition`` a client has one r for life, drawn until
every set that it could ever show is large enough: its sets are then the parts of a partition of the clusters, and a
second one says nothing about the first.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import cache

import nacl.bindings as sodium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import require
from coterie.rng import Rng
from coterie.wire.sealed import SecretKey

Flags = npt.NDArray[np.bool_]
Tags = npt.NDArray[np.int64]
MOST_TAGS = 64
MOST_DRAWS = 10_000  # of r, on the average, until one partitions the clusters well enough


class Counting(Enum):
    """What the threshold T counts. Eq. 9-10 count the true identity; Table II fits sets with T decoys."""

    IDENTITIES = "identities, the true one among them"
    DECOYS = "decoys only"


MOST_CLUSTERS = 4096


@dataclass(frozen=True)
class TagRule:
    """How many decoys a set gets: each other cluster at this rate, redrawn until the threshold is met."""

    clusters: int
    rate: float = 0.5
    threshold: int = 2
    counting: Counting = Counting.IDENTITIES
    partition: bool = False  # one r for a client's life, so that its sets partition the clusters

    def __post_init__(self) -> None:
        require(
            2 <= self.clusters <= MOST_CLUSTERS,
            "clusters",
            self.clusters,
            f"must lie in 2..{MOST_CLUSTERS}: one cluster has no decoys",
        )
        require(
            0.0 < self.rate < 1.0,
            "rate",
            self.rate,
            "must lie strictly between 0 and 1; without mingling, leave the defence out",
        )
        most = self.clusters if self.counting is Counting.IDENTITIES else self.clusters - 1
        require(
            1 <= self.threshold <= most,
            "threshold",
            self.threshold,
            f"must lie in 1..{most}: {self.clusters} clusters hold no larger set of {self.counting.value}",
        )

        if self.partition:
            require(
                abs(1 / self.rate - self.tags) < 1e-9 and self.tags <= MOST_TAGS,
                "rate",
                self.rate,
                f"must be 1/2, 1/3, ... 1/{MOST_TAGS} for sets that partition the clusters; else pass partition=False",
            )

    @property
    def tags(self) -> int:
        """How many different tags a cluster can have under one r."""
        return round(1 / self.rate)

    @property
    def least(self) -> int:
        """The smallest set allowed, the true identity included."""
        return self.threshold + (self.counting is Counting.DECOYS)

    def size_distribution(self) -> dict[int, float]:
        """P(|set| = c) for each allowed c: Eq. 10, conditioned on meeting the threshold.

        With ``partition``, on all parts' meeting it: of all ways to give the clusters tags such that each tag that
        occurs does so ``least`` times, those in which the true cluster's occurs c times.
        """
        if self.partition:
            return self._part_sizes()
        decoys, rate = self.clusters - 1, self.rate
        sizes = range(self.least, self.clusters + 1)
        drawn = {c: math.comb(decoys, c - 1) * rate ** (c - 1) * (1 - rate) ** (decoys - c + 1) for c in sizes}
        total = math.fsum(drawn.values())
        return {size: probability / total for size, probability in drawn.items()}

    def _part_sizes(self) -> dict[int, float]:
        k, tags, least = self.clusters, self.tags, self.least
        ways = {c: math.comb(k - 1, c - 1) * tags * taggings(k - c, tags - 1, least) for c in range(least, k + 1)}
        total = sum(ways.values())
        return {size: count / total for size, count in ways.items() if count}

    def blind_guess(self) -> float:
        """How often the best guess from the set alone is right: the mean of 1 / |set|."""
        return math.fsum(probability / size for size, probability in self.size_distribution().items())

    def printed_guess(self, draws: int = 4) -> float:
        """The expectation of 1 / mean(|set|) over so many sets, which is what the paper's code draws in Figure 3: never
        more than a guess gets."""
        sums = {0: 1.0}  # of the sizes so far
        for _ in range(draws):
            further: dict[int, float] = {}
            for (total, chance), (size, other) in itertools.product(sums.items(), self.size_distribution().items()):
                further[total + size] = further.get(total + size, 0.0) + chance * other
            sums = further
        return math.fsum(draws * chance / total for total, chance in sums.items())

    def decoy_rate(self) -> float:
        """The rate after redrawing, Eq. 9 as corrected.

        Printed, its sum stops at k - 1 and weighs by c identities, where c - 1 of them are decoys.
        """
        decoys = math.fsum((size - 1) * chance for size, chance in self.size_distribution().items())
        return decoys / (self.clusters - 1)


@cache
def taggings(clusters: int, tags: int, least: int) -> int:
    """In how many ways so many clusters can have so many tags, each that occurs at least ``least`` times."""
    if tags == 0:
        return int(clusters == 0)
    sizes = [0, *range(least, clusters + 1)]
    return sum(math.comb(clusters, size) * taggings(clusters - size, tags - 1, least) for size in sizes)


class IdentitySets(ABC):
    """Draws the identity set of a client for each true cluster it may have."""

    rule: TagRule

    @abstractmethod
    def _draw(self, true: int, rng: Rng) -> Flags:
        """One set, (clusters,), from a stream of its own."""

    @abstractmethod
    def _parts(self, rng: Rng) -> Tags:
        """A client's tag of every cluster, (clusters,), from a stream of its own."""

    def _set(self, client: int, true: int, rng: Rng) -> Flags:
        if not self.rule.partition:
            return self._draw(true, rng.child("client", client, "true cluster", true, "identity set"))
        tags = self._parts(rng.child("client", client, "partition"))
        own: Flags = tags == tags[true]
        return own

    def membership(self, ids: Tensor, true: Tensor, rng: Rng) -> Tensor:
        """The sets of these clients, (clients, clusters) bool; the same for the same client and cluster."""
        require(len(ids) == len(true), "true", tuple(true.shape), f"must name one cluster for {len(ids)} clients")
        for cluster in true.tolist():
            require(
                0 <= cluster < self.rule.clusters,
                "true cluster",
                cluster,
                f"must lie in 0..{self.rule.clusters - 1}",
            )
        sets = [self._set(client, cluster, rng) for client, cluster in zip(ids.tolist(), true.tolist(), strict=True)]
        if not sets:
            return torch.zeros((0, self.rule.clusters), dtype=torch.bool)
        return torch.from_numpy(np.stack(sets))


@dataclass(frozen=True)
class SampledSets(IdentitySets):
    """Coins in place of hashed group elements, for simulation and for any rate.

    Under the random oracle each cluster's n bits are independent and uniform, so that a decoy matches with
    probability 2^-n independently of the others; given how many match, all choices of decoys are equally likely. The
    sets are equal in distribution to those of ``GroupSets``, without its redrawing, which takes long where the
    threshold is high and the rate low.
    """

    rule: TagRule

    def _draw(self, true: int, rng: Rng) -> Flags:
        coins = rng.numpy()
        sizes, chances = _sizes(self.rule)
        size = sizes[min(int(np.searchsorted(chances, coins.random())), len(sizes) - 1)]
        order = coins.permutation(self.rule.clusters)
        chosen = np.zeros(self.rule.clusters, dtype=bool)
        chosen[order[order != true][: size - 1]] = True
        chosen[true] = True
        return chosen

    def _parts(self, rng: Rng) -> Tags:
        """Tag by tag: how often it occurs, and where; all taggings that the rule allows are equally likely."""
        coins, rule = rng.numpy(), self.rule
        found, left = np.zeros(rule.clusters, dtype=np.int64), coins.permutation(rule.clusters)
        for tag in range(rule.tags):
            sizes = [0, *range(rule.least, len(left) + 1)]
            rest = [taggings(len(left) - size, rule.tags - tag - 1, rule.least) for size in sizes]
            ways = [math.comb(len(left), size) * more for size, more in zip(sizes, rest, strict=True)]
            size = sizes[int(np.searchsorted(np.cumsum(ways) / sum(ways), coins.random(), side="right"))]
            found[left[:size]], left = tag, left[size:]
        return found


@cache
def _sizes(rule: TagRule) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The allowed sizes, and the probability of at most each."""
    distribution = rule.size_distribution()
    return list(distribution), np.cumsum(list(distribution.values()))


def bits_of_rate(rate: float) -> int:
    """The key length n with 2^-n = rate."""
    bits = -math.log2(rate) if 0.0 < rate < 1.0 else 0.0
    require(
        bits >= 1 and bits == round(bits),
        "rate",
        rate,
        "must be a power of 1/2 (0.5, 0.25, 0.125, ...) with keys of whole bits; for any other rate "
        "simulate with SampledSets",
    )
    return round(bits)


@dataclass(frozen=True)
class ClusterKeys(SecretKey):
    """Addresses and public keys of all clusters (Eq. 1), in Ed25519's prime-order subgroup (libsodium)."""

    addresses: tuple[tuple[bytes, ...], ...]  # (clusters, bits) scalars x
    public: tuple[tuple[bytes, ...], ...]  # (clusters, bits) points g^x

    def __post_init__(self) -> None:
        shape = [len(row) for row in self.addresses]
        require(
            len(shape) > 0
            and min(shape) > 0
            and shape == [shape[0]] * len(self.public)
            and shape == [len(row) for row in self.public],
            "cluster keys",
            (shape, [len(row) for row in self.public]),
            "must be one address and one public key a cluster, all of the same length",
        )
        for cluster, row in enumerate(self.public):
            for point in row:
                require(
                    len(point) == sodium.crypto_core_ed25519_BYTES
                    and bool(sodium.crypto_core_ed25519_is_valid_point(point)),
                    f"public key of cluster {cluster}",
                    point.hex(),
                    "must be a point of the prime-order group; fetch the keys again",
                )
        self._check()

    def _check(self) -> None:
        """That h = g^x, and no x is another's: else the server could have chosen them so that sets tell more."""
        flat = [x for row in self.addresses for x in row]
        require(len(set(flat)) == len(flat), "cluster keys", "two alike", "must all be different; fetch them again")
        for cluster, (row, points) in enumerate(zip(self.addresses, self.public, strict=True)):
            for x, point in zip(row, points, strict=True):
                require(
                    len(x) == sodium.crypto_core_ed25519_SCALARBYTES
                    and sodium.crypto_core_ed25519_scalar_reduce(x + bytes(len(x))) == x
                    and sodium.crypto_scalarmult_ed25519_base_noclamp(x) == point,
                    f"public key of cluster {cluster}",
                    point.hex(),
                    "must be g^x of its address; keys that are not give the server more than the sets do",
                )

    @staticmethod
    def generate(rule: TagRule, rng: Rng) -> ClusterKeys:
        bits = bits_of_rate(rule.rate)
        addresses = tuple(
            tuple(_scalar(rng.child("cluster", cluster, "bit", bit)) for bit in range(bits))
            for cluster in range(rule.clusters)
        )
        base = sodium.crypto_scalarmult_ed25519_base_noclamp
        return ClusterKeys(addresses, tuple(tuple(base(x) for x in row) for row in addresses))


@dataclass(frozen=True)
class GroupSets(IdentitySets):
    """Identity sets from the group itself: what a deployed client runs."""

    rule: TagRule
    keys: ClusterKeys

    def __post_init__(self) -> None:
        have = (len(self.keys.addresses), len(self.keys.addresses[0]))
        need = (self.rule.clusters, bits_of_rate(self.rule.rate))
        require(have == need, "cluster keys of shape", have, f"must be {need} for this rule; generate them for it")
        if self.rule.partition:
            k, tags = self.rule.clusters, self.rule.tags
            share = taggings(k, tags, self.rule.least) / tags**k
            require(
                share * MOST_DRAWS >= 1,
                "threshold",
                self.rule.threshold,
                f"leaves one r in {1 / max(share, 1e-300):.3g} for {k} clusters; lower it, or raise the rate",
            )

    def _draw(self, true: int, rng: Rng) -> Flags:
        attempt = 0
        while True:
            r = _scalar(rng.child("attempt", attempt))
            own_bits = [_bit(sodium.crypto_scalarmult_ed25519_noclamp(r, h)) for h in self.keys.public[true]]
            chosen = np.array(
                [
                    # The true cluster matches by construction; ``all`` stops at the first bit that differs.
                    j == true or all(_bit(_tag(r, x)) == bit for x, bit in zip(address, own_bits, strict=True))
                    for j, address in enumerate(self.keys.addresses)
                ]
            )
            if chosen.sum() >= self.rule.least:
                return chosen
            attempt += 1

    def _parts(self, rng: Rng) -> Tags:
        attempt = 0
        while True:
            r = _scalar(rng.child("attempt", attempt))
            bits = np.array([[_bit(_tag(r, x)) for x in address] for address in self.keys.addresses])
            tags: Tags = bits @ (1 << np.arange(bits.shape[1]))
            if min(np.unique(tags, return_counts=True)[1]) >= self.rule.least:
                return tags
            attempt += 1


def _scalar(rng: Rng) -> bytes:
    """A scalar modulo the group order, uniform to within 2^-256."""
    wide = hashlib.blake2b(b"coterie fuzzy tag scalar", key=rng.key, digest_size=64).digest()
    scalar: bytes = sodium.crypto_core_ed25519_scalar_reduce(wide)
    return scalar


def _tag(r: bytes, address: bytes) -> bytes:
    """u^x as g^(r x): the same element, and the multiples of g are tabulated (five times faster)."""
    point: bytes = sodium.crypto_scalarmult_ed25519_base_noclamp(sodium.crypto_core_ed25519_scalar_mul(r, address))
    return point


def _bit(point: bytes) -> int:
    """H: G -> {0, 1}, a hash standing in for the random oracle."""
    return hashlib.blake2b(point, digest_size=1, person=b"coterie fmd bit").digest()[0] & 1
