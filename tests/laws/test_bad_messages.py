"""Law 7, for what others send: an answer that cannot be used is as if it had not been sent."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.laws.defences import Shield, every_defence
from tests.laws.members import Member, every_member
from tests.ring import play

from coterie.defences.secure_sums import RoundLeftOut
from coterie.errors import InvalidInput
from coterie.flow.admission import REFUSED
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions, Message, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

LIAR = 1
WIRE = ThreatModel("on the wire", taps=frozenset({LIAR}))
Spoil = Callable[[Contributions], Contributions]


def _values(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return lambda sent: replace(sent, values={name: change(leaf) for name, leaf in sent.values.items()})


SPOILS: dict[str, Spoil] = {
    "NaN": _values(lambda leaf: torch.full_like(leaf, float("nan"))),
    "infinity": _values(lambda leaf: torch.full_like(leaf, float("inf"))),
    "values that broadcast": _values(lambda leaf: torch.zeros(len(leaf), 1, *[1] * (leaf.dim() - 1))),
    "one axis more": _values(lambda leaf: leaf.unsqueeze(-1)),
    "complex numbers": _values(lambda leaf: leaf.to(torch.complex64)),
    "no leaves": lambda sent: replace(sent, values={}),
    "a leaf more": lambda sent: replace(sent, values={**sent.values, "extra": torch.zeros(len(sent), 1)}),
    "a row more": _values(lambda leaf: torch.cat([leaf, leaf])),
    "weight NaN": lambda sent: replace(sent, weights=torch.full_like(sent.weights, float("nan"))),
    "weight -1000": lambda sent: replace(sent, weights=torch.full_like(sent.weights, -1000.0)),
    "weight 1e30": lambda sent: replace(sent, weights=torch.full_like(sent.weights, 1e30)),
    "no weights": lambda sent: replace(sent, weights=sent.weights[:0]),
    "membership NaN": lambda sent: replace(sent, membership=torch.full_like(sent.membership, float("nan"))),
    "membership 7": lambda sent: replace(sent, membership=torch.full_like(sent.membership, 7.0)),
    "membership in more slots": lambda sent: replace(sent, membership=torch.cat([sent.membership] * 3, 1)),
    "notes": lambda sent: replace(sent, notes=(b"rubbish", b"and more")),
}
SAYS_NOTHING = {
    "NaN",
    "infinity",
    "values that broadcast",
    "one axis more",
    "complex numbers",
    "a row more",
    "no leaves",
}
"""What changes nothing in an answer without values."""


@dataclass(frozen=True)
class Spoiler:
    """Somebody on one client's link, who spoils whatever it sends."""

    spoil: Spoil
    threat: ThreatModel = WIRE

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        return replace(message, sent=self.spoil(message.sent)) if isinstance(message, Up) else message


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("name", SPOILS)
@every_member
def test_what_one_client_sends_is_left_out(member: Member, name: str) -> None:
    """To the bit, the run in which that client never answers; where all must, it ends by the same rule."""
    told = (member.protocol, member.federation(), member.model)
    spoil: dict[str, Any] = {"tape": Tape([WIRE]), "adversaries": [Spoiler(SPOILS[name])]}
    try:
        silent = play(*told, lost=lambda asked: [LIAR])
    except InvalidInput as rule:
        with pytest.raises(InvalidInput, match=re.escape(str(rule))):
            play(*told, **spoil)
        return
    spoilt = play(*told, **spoil)
    assert spoilt.ring.metrics.means()[REFUSED] > 0
    assert encode(member.protocol.result(spoilt.state)) == encode(member.protocol.result(silent.state))


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClientsDropped")  # of two who are left
@pytest.mark.parametrize("name", [name for name in SPOILS if name not in SAYS_NOTHING])
@every_defence
def test_under_every_defence_it_is_as_if_it_were_silent(shield: Shield, member: Member, name: str) -> None:
    """The others go on, or, where too few are left for what the defence promises, its stated rule holds."""
    spoilt = Tape([WIRE]), [Spoiler(SPOILS[name])]
    silent = _ending(shield, member, lost=lambda asked: [LIAR])
    assert _ending(shield, member, tape=spoilt[0], adversaries=spoilt[1]) == silent


def _ending(shield: Shield, member: Member, **how: Any) -> str:
    try:
        done = play(member.protocol, member.federation(), member.model, defence=shield.active(member.protocol), **how)
    except (InvalidInput, RoundLeftOut) as error:
        return str(error)
    assert all(torch.isfinite(leaf).all() for leaf in done.ring.models(done.state).values())
    return "goes on"
