"""Mingled identity sets by fuzzy message detection (MingledPie, Zhang et al., NDSS 2025, Algorithm 1).

The server publishes for each cluster j an address x_j (n scalars) and a public key h_j = g^x_j. A client
draws r once, and joins every cluster whose n hashed bits equal those of its true cluster:

    H((h_true^l)^r) == H(u^(x_j^l)) for all l in 1..n,   u = g^r.

The paper prints h_j on the left (Eq. 3, Algorithm 1 line 7). Both sides are then equal for every j and each
client would join every cluster; the text means the key of the *true* cluster. So read, the set is an
equivalence class: each member, had it been the true one, would have given the same set under the same r.
With equal priors all members are equally likely, and the best blind guess is right in 1 / |set| of cases.

A set lives as long as its client: it is drawn from a stream that is named by the client and the true cluster
and by no round. The paper draws afresh whenever the cluster changes, so that a client going A, B, A lets the
server intersect two sets that both hold A.
"""

from __future__ import annotations

import hashlib
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

Flags = npt.NDArray[np.bool_]


class Counting(Enum):
    """What the threshold T counts. Eq. 9-10 count the true identity; Table II fits sets with T decoys."""

    IDENTITIES = "identities, the true one among them"
    DECOYS = "decoys only"


@dataclass(frozen=True)
class TagRule:
    """How many decoys a set gets: each other cluster at this rate, redrawn until the threshold is met."""

    clusters: int
    rate: float = 0.5
    threshold: int = 2
    counting: Counting = Counting.IDENTITIES

    def __post_init__(self) -> None:
        require(self.clusters >= 2, "clusters", self.clusters, "must be at least 2: one cluster has no decoys")
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

    @property
    def least(self) -> int:
        """The smallest set allowed, the true identity included."""
        return self.threshold + (self.counting is Counting.DECOYS)

    def size_distribution(self) -> dict[int, float]:
        """P(|set| = c) for each allowed c: Eq. 10, conditioned on meeting the threshold."""
        decoys, rate = self.clusters - 1, self.rate
        sizes = range(self.least, self.clusters + 1)
        drawn = {c: math.comb(decoys, c - 1) * rate ** (c - 1) * (1 - rate) ** (decoys - c + 1) for c in sizes}
        total = math.fsum(drawn.values())
        return {size: probability / total for size, probability in drawn.items()}

    def blind_guess(self) -> float:
        """How often the best guess from the set alone is right: the mean of 1 / |set|."""
        return math.fsum(probability / size for size, probability in self.size_distribution().items())

    def decoy_rate(self) -> float:
        """The rate after redrawing, Eq. 9 as corrected.

        Printed, its sum stops at k - 1 and weighs by c identities, where c - 1 of them are decoys.
        """
        decoys = math.fsum((size - 1) * chance for size, chance in self.size_distribution().items())
        return decoys / (self.clusters - 1)


class IdentitySets(ABC):
    """Draws the identity set of a client for each true cluster it may have."""

    rule: TagRule

    @abstractmethod
    def _draw(self, true: int, rng: Rng) -> Flags:
        """One set, (clusters,), from a stream of its own."""

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
        sets = [
            self._draw(cluster, rng.child("client", client, "true cluster", cluster, "identity set"))
            for client, cluster in zip(ids.tolist(), true.tolist(), strict=True)
        ]
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
class ClusterKeys:
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
