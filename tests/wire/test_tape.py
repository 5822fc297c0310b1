"""The recording, in memory and in a folder, and what views make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Envelope, Published
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

SERVER = ThreatModel("server", server=True, keys=frozenset({"ckks"}))
TWO = ThreatModel("client 2", clients=frozenset({2}))


def down(round: int, clients: list[int], kind: str = "train") -> Envelope:
    models = Published({"w": torch.arange(3.0).unsqueeze(1) + 10 * round}, torch.tensor([1, 2, 3]))
    sees = torch.nn.functional.one_hot(torch.tensor(clients) % 3, 3).bool()
    return Envelope(kind, round, torch.tensor(clients), models, sees)


def up(round: int, clients: list[int], kind: str = "train") -> Envelope:
    ids = torch.tensor(clients)
    sent = Contributions(ids, {"w": ids.float().view(-1, 1, 1)}, torch.ones(len(ids)), torch.ones(len(ids), 1))
    return Envelope(kind, round, ids, sent)


def record(tape: Tape) -> None:
    for round in range(3):
        tape.record(down(round, [0, 1, 2, 3]))
        tape.record(up(round, [0, 1]))
        tape.record(up(round, [2, 3]))


def test_memory_and_folder_are_equal(tmp_path: Path) -> None:
    tapes = [Tape([SERVER, TWO]), Tape([SERVER, TWO], tmp_path / "tape")]
    for tape in tapes:
        record(tape)
    tapes.append(Tape([SERVER, TWO], tmp_path / "tape"))  # as it is found on disk
    for threat in (SERVER, TWO):
        for round in range(3):
            sent = {encode(tape.view(threat).sent(round)) for tape in tapes}
            received = {encode(tape.view(threat).received(round).published) for tape in tapes}
            assert len(sent) == len(received) == 1
    assert [len(tape) for tape in tapes] == [9, 9, 9]
    assert tapes[0].view(SERVER).rounds() == [0, 1, 2]


def test_chunks_are_one_to_the_reader() -> None:
    tape = Tape([SERVER])
    record(tape)
    assert tape.view(SERVER).sent(1).ids.tolist() == [0, 1, 2, 3]


def test_a_client_s_view() -> None:
    tape = Tape([SERVER, TWO])
    record(tape)
    view = tape.view(TWO)
    assert view.sent(1).values["w"].tolist() == [[[2.0]]]
    received = view.received(1)
    assert received.slots.tolist() == [2]
    assert received.values["w"].tolist() == [[12.0]]
    assert received.published.sizes is not None
    assert received.published.sizes.tolist() == [3]  # of its own slot alone
    with pytest.raises(NotPermitted, match="client 2 saw nothing published in round 7"):
        view.received(7)


def test_only_what_somebody_may_see_is_kept(tmp_path: Path) -> None:
    tape = Tape([TWO], tmp_path)
    record(tape)
    assert len(tape) == 6  # the chunk of clients 0 and 1 is not there at all
    assert len(list(tmp_path.iterdir())) == 6
    assert tape.view(TWO).sent(0).ids.tolist() == [2]


def test_what_is_asked_again_replaces_what_followed(tmp_path: Path) -> None:
    for tape in (Tape([SERVER]), Tape([SERVER], tmp_path)):
        tape.record(down(0, [0, 1], "choose"))
        tape.record(up(0, [0, 1], "choose"))
        record(tape)
        tape.record(down(0, [0, 1]))
        assert len(tape) == 3
        assert tape.view(SERVER).rounds("choose") == [0]  # another request of that round stays
        with pytest.raises(NotPermitted):
            tape.view(SERVER).sent(0)
    assert len(list(tmp_path.iterdir())) == 3


def test_keys() -> None:
    tape = Tape([SERVER, TWO])
    assert tape.view(SERVER, {"ckks": 42, "other": 1}).key("ckks") == 42
    with pytest.raises(NotPermitted, match=r"client 2 does not hold the key 'ckks'; its keys: \[\]"):
        tape.view(TWO, {"ckks": 42}).key("ckks")
    with pytest.raises(InvalidInput, match="key 'ckks' does not exist in this federation"):
        tape.view(SERVER).key("ckks")


def test_a_tape_for_nobody() -> None:
    with pytest.raises(InvalidInput, match=r"threats=\(\) must name at least one threat model"):
        Tape([])
