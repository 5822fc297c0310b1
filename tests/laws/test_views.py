"""Law 3. An adversary sees what its threat model permits, and reaching further raises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.laws.members import Member, every_member
from tests.ring import play

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

SERVER = ThreatModel("server", server=True)
CLIENT = ThreatModel("client 3", clients=frozenset({3}))
TAP = ThreatModel("tap on 0 and 1", taps=frozenset({0, 1}))
ABSENT = ThreatModel("nobody", clients=frozenset({99}))


@every_member
def test_views(member: Member) -> None:
    federation = member.federation()
    tape = Tape([SERVER, CLIENT, TAP, ABSENT])
    done = play(member.protocol, federation, member.model, tape=tape)
    for ask in done.asks:
        asked = set(ask.clients.tolist())
        seen = tape.view(SERVER).sent(ask.round, ask.kind)
        assert seen.ids.tolist() == ask.clients.tolist()
        for threat in (CLIENT, TAP):
            mine = sorted(asked & threat.parties)
            view = tape.view(threat)
            assert (ask.round in view.rounds(ask.kind)) == bool(mine)
            if not mine:
                with pytest.raises(NotPermitted, match=threat.name):
                    view.sent(ask.round, ask.kind)
                with pytest.raises(NotPermitted, match=threat.name):
                    view.received(ask.round, ask.kind)
                continue
            sent = view.sent(ask.round, ask.kind)
            assert sent.ids.tolist() == mine
            assert all(len(leaf) == len(mine) for leaf in sent.values.values())
            received = view.received(ask.round, ask.kind)
            slots = list(range(ask.published.slots))
            if ask.sees is not None:
                given = ask.sees[torch.isin(ask.clients, torch.tensor(mine))].any(0)
                slots = given.nonzero().flatten().tolist()
            assert received.slots.tolist() == slots
            assert received.published.slots == len(slots)
            assert received.published.sizes is None  # how many stand behind each model is the server's to know
            for name, leaf in ask.published.values.items():
                assert torch.equal(received.values[name], leaf[slots])


@every_member
def test_a_view_has_no_other_way_to_the_rest(member: Member) -> None:
    tape = Tape([SERVER, ABSENT])
    play(member.protocol, member.federation(), member.model, tape=tape)
    view = tape.view(ABSENT)
    assert view.rounds("train") == []
    with pytest.raises(NotPermitted, match="nobody"):
        view.received(0)
    with pytest.raises(NotPermitted, match="does not hold the key 'ckks'"):
        view.key("ckks")
    with pytest.raises(InvalidInput, match="was not declared"):
        tape.view(CLIENT)


@every_member
def test_a_view_that_is_given_another_threat_model_holds_no_more(member: Member) -> None:
    tap = replace(TAP, name="half a tap", share=0.5)
    tape = Tape([SERVER, CLIENT, tap])
    done = play(member.protocol, member.federation(), member.model, tape=tape)
    for threat in (CLIENT, tap):
        view = tape.view(threat)
        raised = replace(view, threat=replace(SERVER, clients=frozenset(range(99)), taps=frozenset(range(99))))
        for ask in done.asks:
            if not view.has_sent(ask.round, ask.kind):
                continue
            mine, theirs = view.sent(ask.round, ask.kind), raised.sent(ask.round, ask.kind)
            assert theirs.ids.tolist() == mine.ids.tolist()
            for name, leaf in mine.values.items():
                assert torch.equal(theirs.values[name].nan_to_num(7.0), leaf.nan_to_num(7.0))
            given = view.received(ask.round, ask.kind)
            more = raised.received(ask.round, ask.kind)
            hidden = [slot for slot in more.slots.tolist() if slot not in given.slots.tolist()]
            assert all(not bool(leaf[hidden].any()) for leaf in more.values.values())
