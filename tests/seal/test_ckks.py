"""CKKS: the server cannot decrypt, damage is named, noise and bytes are what is claimed."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from tenseal import sealapi
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.seal import ckks, ckks_wire
from coterie.seal.cipher import DamagedCiphertexts, Grid, add_intact
from coterie.seal.ckks import Ckks, CkksBatch, CkksContext, CkksKey, CkksSum

CIPHER = Ckks()
KEY = CIPHER.keygen()
ONES = torch.ones(4, 2)


def values(length: int = 9000) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(4, length)))


def batch(length: int = 9000) -> CkksBatch:
    return CIPHER.seal(values(length), KEY, [10, 11, 12, 13])


def with_message(sealed: CkksBatch, position: int, message: bytes) -> CkksBatch:
    rows = list(sealed.messages)
    rows[position] = (message,)
    return replace(sealed, messages=tuple(rows))


def message(sealed: CkksBatch, position: int) -> bytes:
    found = sealed.messages[position][0]
    assert found is not None
    return found


def test_the_servers_context_holds_no_key_and_cannot_decrypt() -> None:
    context = pickle.loads(pickle.dumps(KEY.context))
    secret = KEY.to_bytes()
    polynomial = secret[-1000:]  # the part of the file that is the secret itself
    sums = batch().add(ONES)
    for held in (pickle.dumps(context), pickle.dumps(sums), pickle.dumps(batch())):
        assert polynomial not in held
    with pytest.raises(NotPermitted, match="CkksContext cannot open"):
        sums.open(context)


def test_a_forged_key_name_opens_to_noise_that_is_noticed() -> None:
    """The name of the key is public: whoever puts it on a key of their own still reads nothing."""
    forged = CIPHER.keygen()
    forged.context = KEY.context
    with pytest.raises(InvalidInput, match="noise in the sums"):
        batch().add(ONES).open(forged)


def test_the_key_survives_its_store_and_does_not_print_itself() -> None:
    again = CkksKey.from_bytes(CIPHER, KEY.to_bytes())
    assert again.context == KEY.context
    assert torch.equal(batch().add(ONES).open(again), batch().add(ONES).open(KEY))
    assert repr(KEY) == f"CkksKey({KEY.context.key_id.hex()[:8]})"


def test_sealing_twice_gives_other_ciphertexts() -> None:
    first, second = batch(), batch()
    assert message(first, 0)[100:] != message(second, 0)[100:]
    zeros = CIPHER.seal(torch.zeros(1, 9000), KEY, [0])
    assert len(message(zeros, 0)) == len(message(first, 0))  # zeros look like any update


def _damage(kind: str) -> bytes:
    whole = message(batch(), 2)
    other = CIPHER.keygen()
    return {
        "another key": message(CIPHER.seal(values()[:1], other, [12]), 0),
        "truncated": whole[:-100],
        "only a header": whole[:10],
        "empty": b"",
        "another length": message(CIPHER.seal(values(8000)[:1], KEY, [12]), 0),
        "another scale": message(Ckks(scale_bits=41, members=256).seal(values()[:1], KEY_41, [12]), 0),
        "trailing bytes": whole + b"x",
        "no message of ours": b"y" * len(whole),
        "rubbish inside": whole[:200] + b"\xff" * (len(whole) - 200),
    }[kind]


KEY_41 = CkksKey(Ckks(scale_bits=41, members=256), KEY._secret)
KINDS = [
    "another key", "truncated", "only a header", "empty", "another length", "another scale", "trailing bytes",
    "no message of ours", "rubbish inside",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_ciphertext_names_its_client_and_loses_no_other(kind: str) -> None:
    damaged = with_message(batch(), 2, _damage(kind))
    with pytest.raises(DamagedCiphertexts, match="client 12: ") as raised:
        damaged.add(ONES)
    assert raised.value.positions == (2,)
    total, lost = add_intact(damaged, ONES)
    assert list(lost) == [12]
    expected = batch().pick([0, 1, 3]).add(ONES[:3])
    assert torch.equal(total.open(KEY), expected.open(KEY))


def test_nothing_intact_is_an_error() -> None:
    broken = batch()
    for position in range(4):
        broken = with_message(broken, position, b"")
    with pytest.raises(InvalidInput, match="intact ciphertexts=0"):
        add_intact(broken, ONES)


def test_a_clients_unused_ciphertext_is_not_missed() -> None:
    damaged = with_message(batch(), 2, b"")
    nowhere = ONES.clone()
    nowhere[2] = 0
    with pytest.raises(DamagedCiphertexts):  # a client that sent rubbish is reported even where it joins nothing
        damaged.add(nowhere)


def test_bytes_a_parameter() -> None:
    length = 100 * ckks_wire.SLICE
    sealed = CIPHER.seal(torch.zeros(1, length), KEY, [0])
    assert sealed.nbytes == ckks_wire.message_bytes(length, fresh=True)
    assert sealed.nbytes / length < 8.1
    sums = sealed.add(torch.ones(1, 1))
    # One client's sum is its ciphertext with the seed expanded.
    assert sums.nbytes == ckks_wire.message_bytes(length, fresh=False)
    assert sums.nbytes / length < 16.1


def test_noise_is_what_the_limit_on_members_counts_with() -> None:
    """The sample deviation over 64 ciphertexts is within 2 % of it: over ten standard errors."""
    plain, found = sealapi.Plaintext(), []
    for data in CIPHER.seal(torch.zeros(64, 8192), KEY, range(64)).messages:
        assert data[0] is not None
        with ckks_wire.scratch() as files:
            loaded = ckks._ciphertext(ckks_wire.Message.parse(data[0]).slices[0], CIPHER, files)
        KEY._decryptor.decrypt(loaded, plain)
        pairs = np.array(KEY._encoder.decode_complex(plain))
        found += [pairs.real, pairs.imag]
    assert np.std(np.concatenate(found)) * 2.0**40 == pytest.approx(ckks.NOISE, rel=0.02)


def test_values_at_the_limit_do_not_wrap_around() -> None:
    few = Ckks(members=4)
    key = few.keygen()
    most = torch.full((4, 8192), few.largest * (1 - 1e-9), dtype=torch.float64)
    opened = few.seal(most, key, range(4)).add(torch.ones(4, 1)).open(key)
    assert opened == pytest.approx(4 * few.largest, rel=1e-6)
    with pytest.raises(InvalidInput, match="largest value"):
        few.seal(most * 1.001, key, range(4))


def test_settings_that_could_not_be_exact_are_refused() -> None:
    with pytest.raises(InvalidInput, match="members=100000 add up to too much noise"):
        Ckks(members=100_000)
    with pytest.raises(InvalidInput, match="scale_bits=58"):
        Ckks(scale_bits=58)
    with pytest.raises(InvalidInput, match="members=0"):
        Ckks(members=0)
    assert Ckks(members=100_000, grid=Grid(16)).largest > 1


def test_too_many_members_in_one_sum() -> None:
    few = Ckks(members=3)
    key = few.keygen()
    sealed = few.seal(torch.zeros(4, 5), key, range(4))
    with pytest.raises(InvalidInput, match="clients in one sum=4 must be at most 3"):
        sealed.add(torch.ones(4, 1))
    half = torch.ones(2, 1)
    with pytest.raises(InvalidInput, match="clients in one sum=4"):
        sealed.pick([0, 1]).add(half) + sealed.pick([2, 3]).add(half)


def test_security_is_checked_by_seal() -> None:
    context = ckks_wire.seal_context()
    assert context.parameters_set()
    qualifiers = context.first_context_data().qualifiers()
    assert qualifiers.sec_level == sealapi.SEC_LEVEL_TYPE.TC128
    assert math.log2(ckks_wire.DEGREE) == 13


def test_scratch_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create", raising=False)
    sums = batch(20).add(ONES)
    assert isinstance(sums, CkksSum)
    assert isinstance(sums.context, CkksContext)
    assert sums.open(KEY)[0] == pytest.approx(values(20).sum(0), abs=1e-6)
