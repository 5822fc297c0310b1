"""Law. How long a message is tells nothing of a record: every byte count is the same on data that differ in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.defences import FEW, Shield
from tests.laws.members import Member
from tests.ring import play

from coterie.data.federation import Federation
from coterie.wire.codec import encoded_length
from coterie.wire.traffic import Traffic

PRIVATE = (
    "DP-SGD", "central noise", "local noise", "distributed noise", "distributed noise, masks", "randomised response",
    "perturb once", "private grid", "published noise", "clipped LDP", "secure sums", "stack",
)  # fmt: skip


def changed(federation: Any, factor: float) -> Any:
    """One record scaled, to nothing or far out: the first client's first, or one that all parties have a part of."""
    x = federation.examples.x.clone()
    x[federation.train[0][0] if isinstance(federation, Federation) else 0] *= factor
    return replace(federation, examples=replace(federation.examples, x=x))


def traffic(shield: Shield, member: Member, federation: Any) -> Traffic:
    return play(member.protocol, federation, member.model, defence=shield.active(member.protocol)).ring.traffic


@pytest.mark.parametrize("name", PRIVATE)
def test_sizes_do_not_depend_on_a_record(name: str) -> None:
    shield, member = FEW[name]
    federation = member.federation()
    plain = traffic(shield, member, federation)
    for factor in (0.0, 1e6):
        other = traffic(shield, member, changed(federation, factor))
        assert (other.up, other.down, other.answers) == (plain.up, plain.down, plain.answers)


def test_the_law_sees_a_number_that_is_written_out() -> None:
    """Tensors are as long as their shape says; a float in a message's description would not be."""
    assert encoded_length(torch.tensor(1e-3)) == encoded_length(torch.tensor(1e300))
    assert encoded_length(1e-3) != encoded_length(1e-300)
