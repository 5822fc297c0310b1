"""Bytes and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InvalidInput
from coterie.wire.codec import MAGIC, decode, encode, encoded_length, register
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Published, Up

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(value=values)
def test_plain_values(value: Any) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)
    assert encode(back) == encode(value)
    assert encoded_length(value) == len(encode(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_and_arrays(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    back = decode(encode(tensor))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    array = decode(encode(tensor.numpy()))
    assert isinstance(array, np.ndarray)
    assert array.dtype == tensor.numpy().dtype
    assert np.array_equal(array, tensor.numpy())


def test_floats_that_json_has_not() -> None:
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode((math.inf, -math.inf, -0.0, 5e-324))) == (math.inf, -math.inf, -0.0, 5e-324)
    assert math.copysign(1, decode(encode(-0.0))) == -1


def test_what_was_sliced_travels_as_it_looks() -> None:
    tensor = torch.arange(12).reshape(3, 4).T[1:, ::2]
    assert torch.equal(decode(encode(tensor)), tensor)
    back = decode(encode(torch.zeros(3)))
    back += 1  # what was decoded is one's own, not a view of the bytes


def test_messages() -> None:
    sent = Contributions(torch.tensor([4, 2]), {"w": torch.rand(2, 1, 3)}, torch.ones(2), torch.eye(2))
    up = decode(encode(Up(Kind("lloyd", 2, "shares"), 3, replace(sent, notes=(b"four", b"")))))
    assert isinstance(up, Up)
    assert (up.kind, up.round) == (Kind("lloyd", 2, "shares"), 3)
    assert torch.equal(up.sent.values["w"], sent.values["w"])
    assert up.sent.notes == (b"four", b"")
    models = Published({"w": torch.rand(2, 3)})
    down = decode(encode(Down(TRAIN, 3, sent.ids, models, torch.eye(2).bool(), b"all", (b"", b"two"))))
    assert isinstance(down, Down)
    assert down.published.slots == 2
    assert down.published.previous is None
    assert (down.common, down.each) == (b"all", (b"", b"two"))
    assert down.sees is not None
    assert down.sees.tolist() == [[True, False], [False, True]]


def test_what_may_not_travel() -> None:
    with pytest.raises(InvalidInput, match="set cannot travel; register it"):
        encode({1, 2})
    with pytest.raises(InvalidInput, match="ndarray cannot travel"):
        encode(np.array([object()]))


def test_every_damage_is_one_kind_of_error() -> None:
    good = encode(Contributions(torch.tensor([4]), {"w": torch.rand(1, 1, 3)}, torch.ones(1), torch.ones(1, 1)))
    for end in range(len(good)):
        with pytest.raises(InvalidInput):
            decode(good[:end])
    with pytest.raises(InvalidInput, match="1 bytes too many"):
        decode(good + b"x")
    with pytest.raises(InvalidInput, match="does not start with Coterie's mark"):
        decode(b"PK" + good)
    for header in (b'{"t":"<f4","s":[-3]}', b'{"t":"|O","s":[1]}', b'{"c":"Down","a":{}}', b'{"f":1}', b"{}"):
        with pytest.raises(InvalidInput):
            decode(MAGIC + len(header).to_bytes(8, "little") + header)
    unknown = b'{"c":"Popen","a":{}}'
    with pytest.raises(InvalidInput, match="class 'Popen' is unknown here; import the module"):
        decode(MAGIC + len(unknown).to_bytes(8, "little") + unknown)


def test_two_classes_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Published:
        x: int

    with pytest.raises(InvalidInput, match=r"'Published' is already registered by coterie.wire.messages"):
        register(Published)
