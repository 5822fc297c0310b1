"""Recorded messages: what is written is what is read, and files that another framework wrote are read too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.codec import encode
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Message, Published, Up
from coterie.wire.recording import load, save
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

SERVER = ThreatModel("curious server", server=True)


def written(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def test_both_directions_survive_the_file(tmp_path: Path) -> None:
    ids = torch.tensor([4, 7])
    values = {"0.weight": torch.randn(2, 1, 3, 2), "0.bias": torch.randn(2, 1, 3)}
    sent = Contributions(ids, values, torch.tensor([1.0, 2.0]), torch.eye(2))
    models = {name: leaf[:, 0] for name, leaf in values.items()}
    published = Published(models, torch.tensor([3, 4]), previous=Published(models))
    messages: tuple[Message, ...] = (
        Up(TRAIN, 5, sent),
        Up(Kind("lloyd", 2, "shares"), 5, replace(sent, notes=(b"of four", b""))),
        Down(TRAIN, 5, ids, published, torch.eye(2, dtype=torch.bool)),
        Down(Kind("train", part="masked"), 5, ids, Published({}), None, b"to all", (b"to four", b"to seven")),
    )
    for number, message in enumerate(messages):
        save(message, tmp_path / f"{number}.npz")
        assert encode(load(tmp_path / f"{number}.npz")) == encode(message)


def test_a_recording_by_another_framework(tmp_path: Path) -> None:
    weights = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    written(tmp_path / "000-down.npz", {"round": 0, "kind": "train", "clients": [0, 1], "leaf/w": weights})
    written(tmp_path / "000-up.npz", {"round": 0, "kind": "train", "ids": [0, 1], "leaf/w": np.ones((2, 1, 3, 2))})
    view = Tape([SERVER], tmp_path).view(SERVER)
    assert view.rounds() == [0]
    torch.testing.assert_close(view.received(0).values["w"], torch.from_numpy(weights))
    sent = view.sent(0)
    assert sent.ids.tolist() == [0, 1]
    assert sent.membership.tolist() == [[1.0], [1.0]]


def test_foreign_ciphertexts_are_kept_and_refuse(tmp_path: Path) -> None:
    contents = np.arange(8, dtype=np.uint8).reshape(2, 4)
    written(tmp_path / "a.npz", {"round": 0, "kind": "train", "ids": [3, 5], "sealed/model": contents})
    sealed = Tape([SERVER], tmp_path).view(SERVER).sent(0).sealed["model"]
    assert (len(sealed), sealed.nbytes, len(sealed.pick([1]))) == (2, 8, 1)
    with pytest.raises(NotPermitted, match="whatever the key"):
        sealed.open(b"key")
    with pytest.raises(NotPermitted, match="cannot be added"):
        sealed.add(torch.ones(2, 1))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"not a zip file")
    with pytest.raises(InvalidInput, match=r"broken\.npz cannot be read"):
        load(tmp_path / "broken.npz")
    np.savez(tmp_path / "empty.npz", round=0)
    with pytest.raises(InvalidInput, match=r"empty\.npz cannot be read"):
        load(tmp_path / "empty.npz")


@pytest.mark.parametrize("round", [-1, 2**62])
def test_a_round_that_nobody_could_count_to_is_refused(round: int, tmp_path: Path) -> None:
    written(
        tmp_path / "m.npz", {"round": round, "kind": "train", "clients": [0], "leaf/w": np.ones((1, 2), np.float32)}
    )
    with pytest.raises(InvalidInput, match=rf"round={round} must lie between 0 and 999999"):
        load(tmp_path / "m.npz")
