"""Law 2. A defence at its neutral setting changes nothing: every defence, on every protocol that it fits."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest
import torch
from tests.laws.defences import DEFENCES, PAIRS, Shield, every_defence, every_pair
from tests.laws.members import MEMBERS, Member
from tests.laws.test_cohort_of_one import close
from tests.ring import play

import coterie.defences
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.defences.robust import Robust
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.params import flatten


@every_pair
def test_a_neutral_setting_changes_nothing(shield: Shield, member: Member) -> None:
    """Bit for bit; a defence that seals may round to its grid, and then 4e-5 is what a few rounds make of that."""
    federation = member.federation()
    bare = play(member.protocol, federation, member.model)
    guarded = play(member.protocol, federation, member.model, defence=shield.neutral(member.protocol))
    if not shield.to_the_grid:
        assert guarded.bytes == bare.bytes
        return
    one, other = (flatten(done.ring.models(done.state)) for done in (bare, guarded))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=4e-5)


@every_defence
def test_a_real_setting_changes_what_the_server_learns(shield: Shield, member: Member) -> None:
    """Or the law above would hold for a defence that does nothing at all."""
    federation = member.federation()
    bare = play(member.protocol, federation, member.model)
    guarded = play(member.protocol, federation, member.model, defence=shield.active(member.protocol))
    assert (guarded.bytes != bare.bytes) != shield.silent or shield.active(member.protocol).seals


@every_defence
def test_chunk_size_does_not_matter_under_any_defence(shield: Shield, member: Member) -> None:
    federation = member.federation()
    together, alone = (
        play(
            member.protocol,
            federation,
            member.model,
            defence=shield.active(member.protocol),
            chunk_bytes=chunk_bytes,
        )
        for chunk_bytes in (1 << 30, 1)
    )
    close(dict(together.ring.models(together.state)), dict(alone.ring.models(alone.state)), "models")


@every_defence
def test_two_worker_processes_do_not_matter_under_any_defence(shield: Shield, member: Member) -> None:
    federation = member.federation()
    here, elsewhere = (
        play(
            member.protocol,
            federation,
            member.model,
            defence=shield.active(member.protocol),
            chunk_bytes=1,
            processes=count,
        )
        for count in (0, 2)
    )
    close(dict(here.ring.models(here.state)), dict(elsewhere.ring.models(elsewhere.state)), "models")
    assert sorted(elsewhere.ring.ledger.rows, key=str) == sorted(here.ring.ledger.rows, key=str)


@every_defence
def test_a_killed_run_goes_on_under_any_defence(shield: Shield, member: Member) -> None:
    federation, defence = member.federation(), shield.active(member.protocol)
    whole = play(member.protocol, federation, member.model, defence=defence)
    for state, memory in list(zip(whole.states, whole.memories, strict=True))[-2:]:
        resumed = play(member.protocol, federation, member.model, defence=defence, state=state, memory=memory)
        assert torch.equal(flatten(resumed.ring.models(resumed.state)), flatten(whole.ring.models(whole.state)))


def test_every_defence_is_a_member_and_fits_something() -> None:
    for module in pkgutil.walk_packages(coterie.defences.__path__, "coterie.defences."):
        import_module(module.name)
    rooms = ("coterie.defences.", "coterie.flow.")  # benchmarks break defences on purpose
    classes = {cls for cls in _below(Defence) if cls.__module__.startswith(rooms)} - {NoisySums, Robust}
    protocol = MEMBERS["fedavg"].protocol
    assert {type(shield.active(protocol)) for shield in DEFENCES.values()} == classes
    assert {name.split(" on ")[0] for name in PAIRS} == DEFENCES.keys()
    assert Stack in classes


def _below(cls: type[Defence]) -> set[type[Defence]]:
    return {deeper for one in cls.__subclasses__() for deeper in {one, *_below(one)}}


@pytest.mark.parametrize("name", DEFENCES)
def test_a_misfit_says_why(name: str) -> None:
    shield = DEFENCES[name]
    misfits = [member.protocol for member in MEMBERS.values() if shield.active(member.protocol).fits(member.protocol)]
    assert misfits
    for protocol in misfits:
        assert len(shield.active(protocol).fits(protocol)) > 20
