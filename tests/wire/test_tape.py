"""The recording, in memory and in a folder, and what views make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.codec import encode
from coterie.wire.messages import TRAIN, Contributions, Down, Kind, Params, Published, Up
from coterie.wire.recording import OpaqueBatch
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape
from coterie.wire.view import Entries, ThreatModel, View

SERVER = ThreatModel("server", server=True, keys=frozenset({"ckks"}))
TWO = ThreatModel("client 2", clients=frozenset({2}))


def down(round: int, clients: list[int], kind: str = "train") -> Down:
    models = Published({"w": torch.arange(3.0).unsqueeze(1) + 10 * round}, torch.tensor([1, 2, 3]))
    sees = torch.nn.functional.one_hot(torch.tensor(clients) % 3, 3).bool()
    return Down(Kind.of(kind), round, torch.tensor(clients), models, sees)


def up(round: int, clients: list[int], kind: str = "train") -> Up:
    ids = torch.tensor(clients)
    sent = Contributions(ids, {"w": ids.float().view(-1, 1, 1)}, torch.ones(len(ids)), torch.ones(len(ids), 1))
    return Up(Kind.of(kind), round, sent)


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
        assert tape.view(SERVER).kinds() == [Kind("choose"), Kind("train")]
        with pytest.raises(NotPermitted):
            tape.view(SERVER).sent(0)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_tape_that_forgets_holds_the_last_rounds() -> None:
    whole, short = Tape([SERVER, TWO]), Tape([SERVER, TWO], keep=2)
    for tape in (whole, short):
        record(tape)
    assert short.view(SERVER).rounds() == [1, 2]
    again = Tape([SERVER, TWO], keep=2)
    for message in short.kept():
        again.record(message)
    for tape in (short, again):
        for round in (1, 2):
            assert encode(tape.view(TWO).sent(round)) == encode(whole.view(TWO).sent(round))
            assert encode(tape.view(TWO).received(round).published) == encode(whole.view(TWO).received(round).published)
    with pytest.raises(InvalidInput, match="keep=0 must be"):
        Tape([SERVER], keep=0)


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


def test_steps_and_parts_of_a_request_are_kept_apart() -> None:
    tape = Tape([SERVER])
    kinds = ["lloyd 1", "lloyd 2", "lloyd 2/shares", "lloyd 2/open"]
    for kind in kinds:
        tape.record(down(0, [0, 1], kind))
        tape.record(up(0, [0, 1] if kind == "lloyd 2" else [1], kind))
    view = tape.view(SERVER)
    assert view.kinds() == [Kind.of(kind) for kind in sorted(kinds)]
    assert [len(view.sent(0, kind)) for kind in kinds] == [1, 2, 1, 1]
    assert not view.has_sent(0, "lloyd")


# -- taps -----------------------------------------------------------------------------------------------------------

LEAVES = {"first": (30, 20), "second": (20,), "last": (60, 10)}  # 600, 20 and 600 entries a client
ROUNDS = 3


def uploads(round: int) -> Contributions:
    """Of clients 0 to 3; no entry is like another."""
    draws = torch.Generator().manual_seed(round)
    values = {name: torch.randn(4, 1, *shape, generator=draws) for name, shape in LEAVES.items()}
    sealed = {SEALED: OpaqueBatch(np.zeros((4, 8), np.uint8))}
    return Contributions(torch.arange(4), values, torch.arange(4.0), torch.ones(4, 1), sealed)


def tapped(threat: ThreatModel, *others: ThreatModel, folder: Path | None = None) -> View:
    tape = Tape([threat, *others], folder)
    for round in range(ROUNDS):
        tape.record(down(round, [0, 1, 2, 3]))
        for chunk in ([0, 2], [1, 3]):  # in two messages: which entries are read does not depend on the chunk
            tape.record(Up(TRAIN, round, uploads(round).pick(torch.tensor(chunk))))
    return tape.view(threat)


def tap(share: float, entries: Entries = Entries.RANDOM, name: str = "tap") -> ThreatModel:
    return ThreatModel(name, taps=frozenset({1, 2}), share=share, entries=entries)


def assert_reads(view: View, expected: Params) -> None:
    """Exactly these entries (a leaf's shape without the client), of clients 1 and 2, in every round."""
    for round in range(ROUNDS):
        found, whole = view.sent(round), uploads(round)
        assert found.ids.tolist() == [2, 1]
        all_of_it = view.threat.share >= 1
        assert found.weights.tolist() == [2.0, 1.0] if all_of_it else bool(found.weights.isnan().all())
        assert bool(found.membership.isnan().any()) != all_of_it  # a partial tap reads of the model alone
        for name, leaf in found.values.items():
            visible = ~leaf.isnan()
            assert torch.equal(visible, expected[name].expand_as(visible))
            assert torch.equal(leaf[visible], whole.values[name][[2, 1]][visible])


def everything(read: bool) -> Params:
    return {name: torch.full((1, *shape), read) for name, shape in LEAVES.items()}


@pytest.mark.parametrize("entries", list(Entries))
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_tap_that_reads_nothing_or_all(share: float, entries: Entries) -> None:
    threat = tap(share, entries)
    assert_reads(tapped(threat), everything(share == 1))


def test_a_tap_that_reads_a_share_of_the_entries() -> None:
    """1220 coins of 0.4: the share read has deviation 0.014; five of them once in 1.7e6 names."""
    threat = tap(0.4)
    first = tapped(threat).sent(0)
    read = {name: ~leaf[0].isnan() for name, leaf in first.values.items()}
    assert_reads(tapped(threat), read)  # the same in every round and for both clients
    counted = sum(int(found.sum()) for found in read.values()) / 1220
    assert abs(counted - 0.4) < 5 * 0.014
    again = threat.reads({name: torch.zeros(1, *shape) for name, shape in LEAVES.items()})
    assert all(torch.equal(found, again[name]) for name, found in read.items())
    other = tapped(tap(0.4, name="another tap")).sent(0)
    assert any(not torch.equal(found, ~other.values[name][0].isnan()) for name, found in read.items())
    more = tap(0.7).reads(everything(True))
    assert all(bool(more[name][found].all()) for name, found in read.items())  # who reads more reads these too


@pytest.mark.parametrize(
    ("share", "entries", "read"),
    [
        (0.4, Entries.LAST, []),  # 488 entries, and the last leaf has 600
        (0.5, Entries.LAST, ["last"]),
        (0.51, Entries.LAST, ["last", "second"]),
        (0.51, Entries.LAYERS, ["first", "second"]),
        (0.5, Entries.LAYERS, ["first"]),
        (0.99, Entries.LAYERS, ["first", "second"]),
    ],
)
def test_a_tap_that_reads_whole_leaves(share: float, entries: Entries, read: list[str]) -> None:
    expected = {name: torch.full((1, *shape), name in read) for name, shape in LEAVES.items()}
    assert_reads(tapped(tap(share, entries)), expected)


def test_a_ciphertext_is_tapped_whole_or_not_at_all() -> None:
    assert len(tapped(tap(1.0)).sent(0).sealed[SEALED]) == 2
    assert tapped(tap(0.4)).sent(0).sealed == {}


def test_what_is_one_s_own_is_read_whole(tmp_path: Path) -> None:
    """A share is of the taps: a client of one's own, and the server's seat, see all; and nobody spoils another's."""
    both = ThreatModel("insider that taps", clients=frozenset({3}), taps=frozenset({1}), share=0.0)
    for folder in (None, tmp_path):
        view = tapped(both, SERVER, folder=folder)
        found = view.sent(1)
        assert found.ids.tolist() == [1, 3]
        for name, leaf in found.values.items():
            assert bool(leaf[0].isnan().all())
            assert torch.equal(leaf[1], uploads(1).values[name][3])
        server = Tape([both, SERVER], folder) if folder else None
        if server is not None:
            assert not any(bool(leaf.isnan().any()) for leaf in server.view(SERVER).sent(1).values.values())


def test_a_tap_is_given_what_its_links_are() -> None:
    received = tapped(tap(0.0)).received(1)
    assert received.slots.tolist() == [1, 2]
    assert received.values["w"].tolist() == [[11.0], [12.0]]


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(InvalidInput, match=rf"share={share} must lie in \[0, 1\]"):
        tap(share)
