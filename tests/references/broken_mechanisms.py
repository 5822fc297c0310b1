"""Mechanisms whose proof is right and whose program is not, each in one way that was found in earnest."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch
from scipy.sparse import csc_array

from coterie.files import Array
from coterie.measure.numerics.mechanism import Mechanism


def exact(records: Array) -> Array:
    return np.asarray(records.astype(np.float64).sum(0))


# -- noise from a generator that keeps 32 bits of its seed ------------------------------------------------------------


def torch_seeded(deviation: float) -> Mechanism:
    def release(records: Array, source: torch.Generator) -> Array:
        noise = torch.randn(records.shape[1], generator=source, dtype=torch.float64)
        return exact(records) + deviation * noise.numpy()

    return Mechanism(release, exact, lambda seed: torch.Generator().manual_seed(seed), 64, deviation)


def hashed_then_seeded(deviation: float) -> Mechanism:
    """A key of 128 bits, hashed to a stream of its own, of which torch's generator then keeps 32 bits."""

    def source(seed: int) -> torch.Generator:
        key = hashlib.blake2b(b"noise", key=seed.to_bytes(16, "little"), digest_size=16).digest()
        return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)

    behind = torch_seeded(deviation)
    return Mechanism(behind.release, exact, source, 128, deviation)


# -- sums that are added up in float32 --------------------------------------------------------------------------------


def sparse_sums(records: Array) -> Array:
    """A sparse product that walks the rows in order, as the clusterings' kernel does; one cluster."""
    rows = records.astype(np.float32)
    ends = np.arange(len(rows) + 1, dtype=np.int32)
    matrix = csc_array((np.ones(len(rows), np.float32), np.zeros(len(rows), np.int32), ends), shape=(1, len(rows)))
    return np.asarray((matrix @ rows)[0])


def index_add_sums(records: Array) -> Array:
    rows = torch.from_numpy(records.astype(np.float32))
    return torch.zeros(1, rows.shape[1]).index_add_(0, torch.zeros(len(rows), dtype=torch.int64), rows)[0].numpy()


def lane_sums(records: Array) -> Array:
    """Eight accumulators, as vectorised loops have them."""
    rows = np.concatenate([records, np.zeros((-len(records) % 8, records.shape[1]), records.dtype)])
    lanes = rows.astype(np.float32).reshape(-1, 8, rows.shape[1])
    return np.asarray(np.add.accumulate(lanes, axis=0, dtype=np.float32)[-1].sum(0))


def reversed_sums(records: Array) -> Array:
    return sparse_sums(records[::-1])


# -- noise in floats --------------------------------------------------------------------------------------------------


def float_noise(deviation: float, dtype: torch.dtype) -> Mechanism:
    """sigma * z added to the sum: where nobody has a record, what is sent is sigma * z exactly."""

    def sums(records: Array) -> Array:
        return torch.from_numpy(records).to(dtype).sum(0).numpy()

    def release(records: Array, source: random.Random) -> Array:
        draws = torch.Generator().manual_seed(source.getrandbits(64))
        noise = torch.randn(records.shape[1], generator=draws, dtype=dtype)
        return (torch.from_numpy(sums(records)) + noise.mul_(deviation)).numpy()

    return Mechanism(release, sums, random.Random, 256, deviation)
