"""Law 4. The same seed gives the same bytes; a killed run resumed equals one never killed."""

from __future__ import annotations

from pathlib import Path

from tests.laws.members import Member, every_member
from tests.ring import play

from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel


@every_member
def test_the_same_seed_gives_the_same_bytes(member: Member) -> None:
    federation = member.federation()
    first, second, other = (play(member.protocol, federation, member.model, seed=seed) for seed in (5, 5, 6))
    assert first.bytes == second.bytes
    assert (first.bytes != other.bytes) == member.random


@every_member
def test_going_on_from_every_request_ends_the_same(member: Member) -> None:
    federation = member.federation()
    whole = play(member.protocol, federation, member.model)
    for number, (state, memory) in enumerate(zip(whole.states, whole.memories, strict=True)):
        resumed = play(member.protocol, federation, member.model, state=state, memory=memory)
        assert resumed.bytes == whole.bytes, f"request {number}, {whole.asks[number].kind}"


@every_member
def test_a_finished_run_stays_as_it_is(member: Member) -> None:
    federation = member.federation()
    whole = play(member.protocol, federation, member.model)
    again = play(member.protocol, federation, member.model, state=whole.bytes)
    assert again.bytes == whole.bytes


@every_member
def test_requests_of_a_round_have_names_of_their_own(member: Member) -> None:
    """Streams, tapes and views go by round and kind: two requests of one name would share their noise."""
    done = play(member.protocol, member.federation(), member.model)
    names = [(ask.round, ask.kind) for ask in done.asks]
    assert len(names) == len(set(names))


@every_member
def test_a_resumed_run_leaves_the_tape_of_one_never_killed(member: Member, tmp_path: Path) -> None:
    """Killed while the last request but one was being answered, after some of it was recorded."""
    federation = member.federation()
    server = ThreatModel("server", server=True)
    whole = play(member.protocol, federation, member.model, tape=Tape([server], tmp_path / "whole"))
    killed = tmp_path / "killed"
    play(member.protocol, federation, member.model, tape=Tape([server], killed))
    state, memory = whole.states[-2], whole.memories[-2]
    play(member.protocol, federation, member.model, tape=Tape([server], killed), state=state, memory=memory)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == kept
