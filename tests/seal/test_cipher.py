"""What holds for every cipher: exact sums, chunks, slots, refusals, and one damaged client losing no other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal.cipher import Cipher, Grid, add_intact
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher
from coterie.wire.sealed import SealedBatch

CIPHERS: list[Cipher] = [Ckks(), MockCipher()]
KEYS: dict[int, Any] = {i: cipher.keygen() for i, cipher in enumerate(CIPHERS)}
each = pytest.mark.parametrize("which", range(len(CIPHERS)), ids=[type(c).__name__ for c in CIPHERS])


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def on_grid(values: Tensor) -> Tensor:
    return torch.round(values * 2**24) / 2**24


@each
@settings(max_examples=12, deadline=None)
@given(
    clients=st.integers(1, 5),
    slots=st.integers(1, 4),
    length=st.sampled_from([1, 7, 8192, 8193]),
    seed=st.integers(0, 99),
)
def test_sums_are_the_exact_sums_of_rounded_values(
    which: int, clients: int, slots: int, length: int, seed: int
) -> None:
    cipher, key = CIPHERS[which], KEYS[which]
    values = draw(seed, clients, length) * 10
    membership = draw(seed + 1, clients, slots) > 0  # some slots stay empty
    sums = cipher.seal(values, key, range(clients)).add(membership)
    assert torch.equal(sums.open(key), membership.double().T @ on_grid(values))
    assert (sums.open(key) - membership.double().T @ values).abs().max() <= clients * 2.0**-25


@each
def test_identity_vector_rides_along_and_opens_to_whole_counts(which: int) -> None:
    cipher, key = CIPHERS[which], KEYS[which]
    true = torch.tensor([0, 0, 1, 2])
    sealed = torch.cat([draw(0, 4, 50), torch.nn.functional.one_hot(true, 3).double()], 1)
    membership = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 0], [0, 1, 1]])
    counts = cipher.seal(sealed, key, range(4)).add(membership).open(key)[:, 50:]
    # Cluster 0 holds clients 0, 1 (true 0) and 2 (true 1), and so on.
    assert counts.tolist() == [[2, 1, 0], [1, 1, 1], [1, 0, 1]]


@each
def test_one_ciphertext_a_client_and_slot(which: int) -> None:
    """Exact mingling: the update to the true cluster, zeros to the decoys; the sums are those of the true clusters."""
    cipher, key = CIPHERS[which], KEYS[which]
    update, true = draw(3, 5, 30), torch.tensor([0, 1, 2, 1, 0])
    membership = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 1]])
    one_hot = torch.nn.functional.one_hot(true, 3).double()
    batch = cipher.seal(update[:, None] * one_hot[:, :, None], key, range(5), membership)
    assert torch.equal(batch.add(membership).open(key), one_hot.T @ on_grid(update))
    same = cipher.seal_for_one(update, one_hot.bool(), key, list(range(5)), membership)
    assert torch.equal(same.add(membership).open(key), one_hot.T @ on_grid(update))
    assert torch.equal(same.open(key), batch.open(key))
    assert same.nbytes == batch.nbytes
    alone = cipher.seal(update, key, range(5))
    assert batch.nbytes == 2 * alone.nbytes  # |CI| = 2 ciphertexts a client
    assert batch.open(key).shape == (5, 3, 30)
    with pytest.raises(InvalidInput, match="missing"):
        batch.add(torch.ones(5, 3))


@each
def test_pick_join_and_partial_sums(which: int) -> None:
    cipher, key = CIPHERS[which], KEYS[which]
    values, membership = draw(4, 6, 20), draw(5, 6, 3) > 0
    whole = cipher.seal(values, key, range(6))
    total = whole.add(membership)
    parts = [whole.pick([0, 1]), whole.pick([2, 3, 4, 5])]
    assert torch.equal(SealedBatch.join(parts).open(key), whole.open(key))
    in_two = parts[0].add(membership[:2]) + parts[1].add(membership[2:])
    assert torch.equal(in_two.open(key), total.open(key))
    assert (in_two.slots, in_two.nbytes) == (total.slots, total.nbytes)
    assert torch.equal(pickle.loads(pickle.dumps(total)).open(key), total.open(key))


@each
def test_refuses_without_the_key(which: int) -> None:
    cipher, key = CIPHERS[which], KEYS[which]
    batch = cipher.seal(draw(0, 2, 5), key, range(2))
    for stranger in (None, cipher, cipher.keygen(), b"key"):
        with pytest.raises(NotPermitted, match="cannot open"):
            batch.open(stranger)
        with pytest.raises(NotPermitted, match="cannot open"):
            batch.add(torch.ones(2, 1)).open(stranger)


@each
def test_bad_input_is_refused(which: int) -> None:
    cipher, key = CIPHERS[which], KEYS[which]
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        cipher.seal(torch.tensor([[1.0, float("nan")]]), key, [0])
    with pytest.raises(InvalidInput, match="largest value=1000000"):
        cipher.seal(torch.tensor([[1e6]]), key, [0])
    with pytest.raises(InvalidInput, match="length=0"):
        cipher.seal(torch.zeros(1, 0), key, [0])
    with pytest.raises(InvalidInput, match="ids="):
        cipher.seal(torch.zeros(2, 3), key, [4, 4])
    batch = cipher.seal(torch.zeros(2, 3), key, [0, 1])
    with pytest.raises(InvalidInput, match="zeros and ones"):
        batch.add(torch.tensor([[0.5], [1.0]]))
    with pytest.raises(InvalidInput, match="membership of shape"):
        batch.add(torch.ones(3, 1))
    with pytest.raises(InvalidInput, match="must be"):
        batch.add(torch.ones(2, 1)) + cipher.seal(torch.zeros(2, 4), key, [0, 1]).add(torch.ones(2, 1))
    with pytest.raises(InvalidInput, match="joined"):
        type(batch).join([batch, cipher.seal(torch.zeros(1, 4), key, [2])])


def test_the_mock_gives_the_bits_and_the_bytes_of_ckks() -> None:
    values, membership = draw(7, 4, 9000), draw(8, 4, 3) > 0
    real, mock = (CIPHERS[i].seal(values, KEYS[i], range(4)) for i in (0, 1))
    assert real.nbytes == mock.nbytes
    assert real.add(membership).nbytes == mock.add(membership).nbytes
    assert torch.equal(real.add(membership).open(KEYS[0]), mock.add(membership).open(KEYS[1]))
    assert "steps" not in repr(mock)


def test_intact_batches_lose_nobody() -> None:
    batch = CIPHERS[0].seal(draw(0, 3, 4), KEYS[0], range(3))
    total, lost = add_intact(batch, torch.ones(3, 2))
    assert lost == {}
    assert torch.equal(total.open(KEYS[0]), batch.add(torch.ones(3, 2)).open(KEYS[0]))


@given(st.floats(-700, 700), st.integers(8, 24))
def test_rounding_to_the_grid_is_off_by_at_most_half_a_step(value: float, bits: int) -> None:
    grid = Grid(bits)
    rounded = grid.values(grid.round(torch.tensor([value], dtype=torch.float64), 1e3))
    assert abs(float(rounded) - value) <= 2.0 ** -(bits + 1)
