"""Law 3. An adversary sees what its threat model permits, and reaching further raises."""

from __future__ import annotations

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
