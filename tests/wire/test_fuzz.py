"""Damaged and made-up bytes at the doors of the wire: an ``InvalidInput``, or a value that is what it claims to be."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie.audit.engine  # noqa: F401  (with it the classes that can travel are registered)
from coterie.errors import InvalidInput
from coterie.wire import codec
from coterie.wire.codec import MAGIC, decode, encode
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Message, Published, Up
from coterie.wire.recording import load, save
from coterie.wire.typed import _hints

DECODED, LOADED = 10_000, 1_500  # inputs


def messages() -> list[Message]:
    sent = Contributions(torch.tensor([4, 2]), {"w": torch.rand(2, 1, 3)}, torch.ones(2), torch.eye(2))
    models = Published({"w": torch.rand(2, 3)}, torch.tensor([1, 1]))
    return [
        Up(Kind("lloyd", 2, "shares"), 3, replace(sent, notes=(b"four", b""))),
        Up(TRAIN, 0, sent),
        Down(TRAIN, 3, sent.ids, replace(models, previous=models), torch.eye(2).bool(), b"all", (b"", b"two")),
    ]


def damaged(whole: bytes, draws: random.Random) -> bytes:
    """Bytes changed, cut out, repeated or put in; words of the header exchanged for others."""
    found = bytearray(whole)
    for _ in range(draws.randint(1, 4)):
        place, length = draws.randrange(len(found) + 1), draws.choice([1, 1, 2, 8, 40])
        match draws.randrange(5):
            case 0:
                found[place : place + length] = draws.randbytes(length)
            case 1:
                del found[place : place + length]
            case 2:
                found[place:place] = found[place : place + length]
            case 3:
                old, new = (draws.choice(WORDS) for _ in range(2))
                found = bytearray(bytes(found).replace(old, new, 1))
            case 4:
                found[8:16] = draws.choice([0, len(found), 2**40, 2**64 - 1]).to_bytes(8, "little")
    return bytes(found)


WORDS = [
    *(b"<f4", b"<i8", b"|b1", b"|O", b"<U9", b"[2,", b"[-1,", b"[4000000000,", b"null", b"true", b'{"f":"nan"}'),
    *(b'"t"', b'"n"', b'"b"', b'"c"', b'"a"', b'"u"', b'"d"', b"[", b"]", b"{", b"}", b'"round"', b'"ids"'),
    *(b'"Up"', b'"Down"', b'"Kind"', b'"Contributions"', b'"Published"'),
]


def inputs(count: int) -> Iterator[bytes]:
    draws, whole = random.Random(0), [encode(message) for message in messages()]
    for number in range(count):
        yield damaged(whole[number % len(whole)], draws)


def test_the_codec_survives_anything() -> None:
    refused = 0
    for data in inputs(DECODED):
        try:
            value = decode(data)
        except InvalidInput:
            refused += 1
            continue
        encode(value)  # what was let in is whole
    assert refused > DECODED / 2


def test_recordings_survive_anything(tmp_path: Path) -> None:
    """The archive's own bytes, and arrays under it that are valid each and make no message."""
    draws, path = random.Random(1), tmp_path / "message.npz"
    whole = []
    for message in messages():
        save(message, path)
        whole.append(path.read_bytes())
    for number in range(LOADED):
        if number % 2:
            path.write_bytes(damaged(whole[number % len(whole)], draws))
        else:
            some = draws.sample(NAMES, draws.randint(1, len(NAMES)))
            np.savez(path, allow_pickle=False, **{name: odd_array(draws) for name in some})
        try:
            found = load(path)
        except InvalidInput:
            continue
        assert isinstance(found, Up | Down)


NAMES = ["round", "kind", "ids", "clients", "leaf/w", "leaf/v", "weights", "membership", "sizes", "sees", "sealed/m"]


def odd_array(draws: random.Random) -> np.ndarray:
    shape = draws.choice([(), (0,), (2,), (2, 1), (2, 1, 3), (3, 2)])
    kind = draws.choice(["f4", "i8", "?", "u2", "c8", "train", "U3"])
    return np.array("train") if kind == "train" else np.zeros(shape, dtype=kind)


def test_lengths_are_looked_at_before_memory_is_taken() -> None:
    header = b'{"t":"<f4","s":[1000000000000]}'
    with pytest.raises(InvalidInput, match="data ends 4000000000000 bytes early"):
        decode(MAGIC + len(header).to_bytes(8, "little") + header)
    many = b"[" + b"[]," * 600_000 + b"1]"
    with pytest.raises(InvalidInput, match=r"it has 1,200,001 parts; send fewer"):
        decode(MAGIC + len(many).to_bytes(8, "little") + many)
    deep = b"[" * 900 + b"]" * 900
    with pytest.raises(InvalidInput, match="more than 64 deep"):
        decode(MAGIC + len(deep).to_bytes(8, "little") + deep)


def test_a_value_must_be_what_its_class_declares() -> None:
    odd = encode(replace(messages()[0], kind="train"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"Up\.kind of type str must be Kind"):
        decode(odd)
    with pytest.raises(InvalidInput, match=r"Kind\.step of type bool must be int"):
        decode(encode(Kind("train", True)))


def test_every_class_that_can_travel_says_what_it_holds() -> None:
    for cls in codec._classes.values():
        if cls.__module__.startswith("coterie."):
            assert _hints(cls)


def test_an_archive_in_an_archive_is_no_message(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("round.npy", b"PK")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path / "a.npz")
