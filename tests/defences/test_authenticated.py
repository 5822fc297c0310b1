"""Tags: honest runs are as before; what is changed, sent in another's name or sent again is left out and named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from tests.laws.members import by_columns
from tests.ring import play

from coterie.defences.authenticated import REFUSED, Authenticated, MessageRefused, tag
from coterie.errors import InvalidInput
from coterie.flow.turn import Roots, Turn
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.messages import Kind, Message, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

PROTOCOL = VerticalKMeans(3, steps=4, start_on=Start.RECORDS)
KEY = bytes(range(32))
TAP = ThreatModel("on the wire", taps=frozenset({1}))


@dataclass(frozen=True)
class Modifying:
    """Changes one number of what party 1 sends, by a hundredth, in round 2; or sends its message of round 1 again."""

    again: bool = False
    threat: ThreatModel = field(default=TAP)

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if not isinstance(message, Up) or message.round != 2 or not message.sent.values:
            return message
        if self.again:
            return replace(message, sent=so_far.sent(1, "distances"))
        leaf = message.sent.values["distances"].clone()
        leaf[0, 0, 0, 0] *= 1.01
        return replace(message, sent=replace(message.sent, values={"distances": leaf}))


def test_an_honest_run_is_as_before() -> None:
    bare, tagged = (play(PROTOCOL, by_columns(), None, defence=one) for one in (None, Authenticated(KEY)))
    assert bare.bytes == tagged.bytes
    assert tagged.ring.metrics.means()[REFUSED] == 0


@pytest.mark.parametrize("again", [False, True])
def test_what_is_changed_or_sent_again_is_refused_and_named(again: bool) -> None:
    """Without tags the same adversary is not noticed at all."""
    adversary = Modifying(again)
    play(PROTOCOL, by_columns(), None, tape=Tape([TAP]), adversaries=[adversary])
    with (
        pytest.warns(MessageRefused, match="round 2, distances: client 1's message is not its own"),
        pytest.raises(InvalidInput, match="in round 2=2 leave nothing to add up: all 3 parties must answer"),
    ):
        play(PROTOCOL, by_columns(), None, defence=Authenticated(KEY), tape=Tape([TAP]), adversaries=[adversary])


def test_a_tag_is_of_one_client_one_round_one_kind_and_one_key() -> None:
    done = play(PROTOCOL, by_columns(), None, tape=(tape := Tape([ThreatModel("server", server=True)])))
    sent = tape.view(tape.threats[0]).sent(0, "distances")
    one, other = (sent.pick(sent.ids.new_tensor([party])) for party in (0, 1))
    now = Turn(0, Roots.seeded(0), Kind("distances"))
    tags = {
        tag(KEY, one, now),
        tag(KEY, other, now),
        tag(KEY, replace(other, ids=one.ids), now),
        tag(KEY, one, replace(now, round=1)),
        tag(KEY, one, replace(now, kind=Kind("seed"))),
        tag(bytes(32), one, now),
    }
    assert len(tags) == 6
    assert done.state.round > 0


def test_a_message_without_a_tag_is_refused() -> None:
    from tests.ring import Halves

    untagged = Halves(servers=Authenticated(KEY).server)
    with pytest.warns(MessageRefused), pytest.raises(InvalidInput, match="in round 0=0 leave nothing"):
        play(PROTOCOL, by_columns(), None, defence=untagged)


def test_the_key_has_a_length_and_is_in_no_repr() -> None:
    with pytest.raises(InvalidInput, match=r"len\(key\)=3 must be 32 bytes"):
        Authenticated(b"abc")
    assert "key" not in repr(Authenticated(KEY))
