"""What is proven of a defence alone is said of a stack where it still holds, and nowhere else."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import DpEvent
from tests.laws.defences import DEFENCES, FEW, PAIRS, Shield, every_defence
from tests.laws.members import POISSON, TRAINERS, Member, every_member
from tests.ring import play

from coterie.defences import dpsgd
from coterie.defences.adaptive_ldp import AdaptiveLdp
from coterie.defences.authenticated import Authenticated
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd
from coterie.defences.noisy_sums import published
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.regularise import L2
from coterie.defences.robust import Median, NormClip
from coterie.errors import InvalidInput
from coterie.flow.ask import Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence, ServerGuard
from coterie.flow.stack import Stack, StackedClient
from coterie.flow.turn import Turn
from coterie.privacy import accounting
from coterie.privacy.guarantee import RunFacts
from coterie.wire.messages import Contributions, Down

DELTA = 1e-5
REVEALING = "adaptive LDP"


def facts(member: Member) -> RunFacts:
    protocol: Any = member.protocol
    if protocol.trains:
        protocol = replace(protocol, local=replace(POISSON, batch_size=4, steps=protocol.local.steps or 3))
    found = protocol.facts(member.federation(), DELTA)
    assert isinstance(found, RunFacts)
    return found


def blind(guard: ClientGuard) -> ClientGuard:
    """The same guard, which has only what it is handed, and what it remembers, when answers leave."""
    if isinstance(guard, StackedClient):
        return StackedClient(tuple(blind(one) for one in guard.guards))
    kind: Any = type(guard)

    def without_data(cohort: Cohort) -> Cohort:
        columns = tuple(torch.empty(own.shape, dtype=own.dtype, device="meta") for own in cohort.columns)
        return replace(cohort, examples=None, columns=columns)

    class Blind(kind):  # type: ignore[misc]
        def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
            found: Contributions = super().contribute(sent, without_data(cohort))
            return found

    class BlindLater(Blind):
        def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
            found: Contributions = super().follow_up(asked, without_data(cohort))
            return found

    found = copy.copy(guard)
    object.__setattr__(found, "__class__", Blind if kind.follow_up is ClientGuard.follow_up else BlindLater)
    return found


@dataclass(frozen=True)
class Blinded(Defence):
    inner: Defence

    @property
    def seals(self) -> bool:
        return self.inner.seals

    @property
    def client(self) -> ClientGuard:
        return blind(self.inner.client)

    @property
    def server(self) -> Any:
        return self.inner.server

    @property
    def keys(self) -> Any:
        return self.inner.keys

    def kept_in(self, folder: Path) -> Blinded:
        return Blinded(self.inner.kept_in(folder))


@every_defence
def test_a_guard_that_reveals_nothing_needs_no_data_for_what_leaves(shield: Shield, member: Member) -> None:
    """Every defence, run without the data at hand: the one that says what it reveals of them cannot do so."""
    shielded = shield.active(member.protocol)
    as_it_is = play(member.protocol, member.federation(), member.model, defence=shielded)
    if isinstance(shielded, AdaptiveLdp):
        with pytest.raises(InvalidInput, match="hold columns and no examples"):
            play(member.protocol, member.federation(), member.model, defence=Blinded(shielded))
        return
    without = play(member.protocol, member.federation(), member.model, defence=Blinded(shielded))
    one, other = (dict(done.ring.models(done.state)) for done in (as_it_is, without))
    for name, leaf in one.items():
        torch.testing.assert_close(leaf, other[name], rtol=1e-4, atol=4e-5)


def test_those_that_say_that_they_reveal_something_are_these() -> None:
    said = {name for name, (shield, member) in FEW.items() if shield.active(member.protocol).client.reveals}
    assert said == {REVEALING}
    assert not any(shield.neutral(member.protocol).client.reveals for shield, member in FEW.values())


def cheap(events: Sequence[DpEvent], *_: object) -> float:
    """A price in a moment: here it matters whose it is, and not what it is."""
    return 1.0 + zlib.crc32(repr(events).encode()) / 2**32


@every_member
def test_a_claim_holds_beside_others_or_there_is_none(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every defence beside every other one, in both orders, where both fit."""
    for module in (accounting, dpsgd, published):
        monkeypatch.setattr(module, "epsilon_of", cheap)
    run, fitting = facts(member), dict[str, Defence]()
    for name, shield in DEFENCES.items():
        if not (defence := shield.active(member.protocol)).fits(member.protocol):
            fitting[name] = defence
    proven = {name: said for name, one in fitting.items() if (said := one.guarantee(run)) is not None and said.proven}
    for names in product(fitting, repeat=2):
        one, other = (fitting[name] for name in names)
        try:
            stack = Stack(one, other)
        except InvalidInput as refused:
            assert any(why in str(refused) for why in ("keep one", "must end with", "the one that tags"))  # noqa: PT017
            continue
        holds = [
            proven[name]
            for name, mine, beside in ((names[0], one, other), (names[1], other, one))
            if name in proven and not beside.client.reveals and not (mine.presumes and beside.presumes)
        ]
        said = stack.guarantee(run)
        assert (said is not None and said.proven) == bool(holds), names
        if holds:
            assert said == min(holds, key=lambda found: found.epsilon), names
        elif proven.keys() & set(names):
            assert said is not None
            assert "alone is" in said.why_not, names


FEDAVG = TRAINERS["fedavg, half take part, poisson"]


def test_noise_that_depends_on_raw_data_voids_what_is_proven_beside_it() -> None:
    """With a client of one record the server knew its label: whether there was noise said whether it was predicted."""
    run = facts(FEDAVG)
    for proven in (DpSgd(1.0, 20.0), ClippedLdp(1.0, 20.0)):
        alone = proven.guarantee(run)
        for stack in (Stack(proven, AdaptiveLdp()), Stack(AdaptiveLdp(), proven), Stack(Stack(AdaptiveLdp()), proven)):
            said = stack.guarantee(run)
            assert said is not None
            assert not said.proven
            assert said.epsilon == alone.epsilon  # what is stated, for the audit to try
            assert "accuracy and similarity on its raw data" in said.why_not
        neutral = AdaptiveLdp(probability=0.0, high=0.0, medium=0.0)
        assert Stack(proven, neutral).guarantee(run) == alone


@dataclass(frozen=True)
class _Looking(ClientGuard):
    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        return replace(sent, weights=cohort.rows.y[: len(sent)].float())


@dataclass(frozen=True)
class Looking(Defence):
    @property
    def client(self) -> ClientGuard:
        return _Looking()


def test_a_defence_of_ones_own_that_does_not_say_is_taken_at_its_worst() -> None:
    run, proven = facts(FEDAVG), DpSgd(1.0, 20.0)
    said = Stack(proven, Looking()).guarantee(run)
    assert said is not None
    assert "Looking reveals what it makes of its data, of which it says nothing" in said.why_not
    assert Stack(proven, Defence(), L2(0.1), NormClip(1.0), Median()).guarantee(run) == proven.guarantee(run)


def test_noise_on_sums_is_for_sums_as_the_protocol_bounds_them() -> None:
    member = PAIRS["local noise on feddp k-means, records"][1]
    releases, run = dict.fromkeys(member.protocol.releases(), 20.0), facts(member)
    said = Stack(LocalNoise(releases), CentralNoise(releases)).guarantee(run)
    assert said is not None
    assert "puts noise on the same sums" in said.why_not
    robust = Stack(CentralNoise(releases), Median()).guarantee(run)
    assert robust is not None
    assert "acts on single answers before there is noise on their sum" in robust.why_not
    assert Stack(LocalNoise(releases), Median()).guarantee(run) == LocalNoise(releases).guarantee(run)


@dataclass(frozen=True)
class _Louder(ClientGuard):
    @property
    def reveals(self) -> str:
        return ""  # which is so: it goes by what it is handed

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        return replace(sent, values={name: 1000 * leaf for name, leaf in sent.values.items()})


@dataclass(frozen=True)
class _LouderAnswers(ServerGuard):
    def screen(self, sent: Contributions, asked: Down, turn: Turn) -> Contributions:
        return replace(sent, values={name: 1000 * leaf for name, leaf in sent.values.items()})


@dataclass(frozen=True)
class _LouderSums(ServerGuard):
    def release(self, sums: Sums, turn: Turn) -> Sums:
        return replace(sums, values={name: 1000 * leaf for name, leaf in sums.values.items()})


@dataclass(frozen=True)
class Louder(Defence):
    theirs: ClientGuard = field(default_factory=ClientGuard)
    its: ServerGuard = field(default_factory=ServerGuard)

    @property
    def client(self) -> ClientGuard:
        return self.theirs

    @property
    def server(self) -> ServerGuard:
        return self.its


def test_nothing_comes_between_a_bound_and_the_noise_that_is_scaled_to_it() -> None:
    """A thousand times what is bounded got noise for once, and the same epsilon was stated."""
    member = PAIRS["local noise on feddp k-means, records"][1]
    releases, run = dict.fromkeys(member.protocol.releases(), 20.0), facts(member)
    client, answers, sums = Louder(_Louder()), Louder(its=_LouderAnswers()), Louder(its=_LouderSums())
    central, local = CentralNoise(releases), LocalNoise(releases)
    for undone in (
        *(Stack(*order) for one in (client, answers) for order in ((one, central), (central, one))),
        *(Stack(sums, central), Stack(client, local), Stack(Stack(L2(0.1), client), central)),
    ):
        said = undone.guarantee(run)
        assert said is not None
        assert "changes what its noise is scaled to, after it was bounded" in said.why_not
    for whole in (Stack(central, sums), *(Stack(local, one) for one in (client, answers, sums)), Stack(answers, local)):
        said = whole.guarantee(run)
        assert said is not None
        assert said.proven


def test_a_tag_is_of_what_leaves() -> None:
    """Of what was there before noise, it would let whoever has the key try what that was."""
    clipped, key = ClippedLdp(1.0, 1.0), bytes(32)
    with pytest.raises(InvalidInput, match=r"members=\['ClippedLdp'\] must come before the one that tags"):
        Stack(Authenticated(key), clipped)
    Stack(Authenticated(key), DpSgd(1.0, 1.0), CentralNoise())
    play(FEDAVG.protocol, FEDAVG.federation(), FEDAVG.model, defence=Stack(clipped, Authenticated(key)))
