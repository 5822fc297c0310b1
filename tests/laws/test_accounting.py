"""Law 6. The forecast is what the ledger says was spent; no noise costs infinity; no clipping, no claim."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.defences import PAIRS, Shield, every_pair
from tests.laws.members import POISSON, TRAINERS, Member
from tests.ring import blobs, play

from coterie.data.federation import Federation, Shards
from coterie.defences.dpsgd import DpSgd
from coterie.flow.guard import Defence
from coterie.privacy.accounting import dpsgd_events, epsilon_of
from coterie.privacy.guarantee import Level, Neighbours, RunFacts, Whom
from coterie.protocols.base import Trainer
from coterie.protocols.sattler import Sattler
from coterie.wire.messages import TRAIN, Down

DELTA = 1e-5


def facts(protocol: Any, federation: Federation) -> RunFacts:
    found = protocol.facts(federation, DELTA)
    assert isinstance(found, RunFacts)
    return found


def everybody_there(member: Member) -> Federation:
    """Nobody joins late: a forecast is for those who take part in every round."""
    federation: Federation = member.federation()
    return replace(federation, joins=None)


def spent_and_forecast(protocol: Any, federation: Federation, member: Member, defence: Defence) -> tuple[float, float]:
    done = play(protocol, federation, member.model, defence=defence)
    forecast = epsilon_of(defence.events(facts(protocol, federation)), DELTA)
    return done.ring.ledger.epsilon(DELTA), forecast


@pytest.mark.parametrize("member", TRAINERS.values(), ids=TRAINERS.keys())
def test_dpsgd_spends_what_it_forecasts(member: Member) -> None:
    """Exactly where everybody takes part in every round; never more."""
    batch = member.protocol.local.batch_size  # type: ignore[attr-defined]
    local = replace(POISSON, batch_size=batch, steps=1 if getattr(member.protocol, "average_gradients", False) else 3)
    protocol: Any = replace(member.protocol, local=local)  # type: ignore[type-var]
    federation = everybody_there(member)
    spent, forecast = spent_and_forecast(protocol, federation, member, DpSgd(0.5, 1.2))
    assert 0 < spent <= forecast * (1 + 1e-6)
    if protocol.participation == 1 and protocol.placements == 0:
        assert spent == pytest.approx(forecast, rel=1e-3)


PLACING = {name: member for name, member in TRAINERS.items() if name.startswith(("sattler", "cosine"))}


@pytest.mark.parametrize("member", PLACING.values(), ids=PLACING.keys())
def test_who_is_often_away_spends_no_more_than_the_forecast(member: Member) -> None:
    """Clusters that were split meanwhile: whoever comes back trains to be placed, and that was paid for in advance."""
    local = replace(POISSON, batch_size=4, steps=1)
    protocol: Any = replace(member.protocol, local=local, rounds=8)  # type: ignore[type-var]
    federation, defence = blobs((12,) * 12), DpSgd(0.5, 1.2)
    if isinstance(protocol, Sattler):
        protocol = replace(protocol, most=8, wait=0)

    def away(asked: Down) -> list[int]:  # there to be placed, and gone by the time that their cluster is split again
        return [0, 1, 2] if asked.kind == TRAIN else []

    done = play(protocol, federation, member.model, defence=defence, lost=away)
    forecast = epsilon_of(defence.events(facts(protocol, federation)), DELTA)
    assert 0 < done.ring.ledger.epsilon(DELTA) <= forecast * (1 + 1e-6)


RESPONSES = {name: pair for name, pair in PAIRS.items() if name.startswith(("randomised response", "perturb once"))}


@pytest.mark.parametrize(("shield", "member"), RESPONSES.values(), ids=RESPONSES.keys())
def test_responses_spend_what_they_forecast(shield: Shield, member: Member) -> None:
    """Without a delta, and for replaced records. Steps that are not taken, because nothing moves, are not paid for."""
    defence, federation = shield.active(member.protocol), member.federation()
    spent = play(member.protocol, federation, None, defence=defence).ring.ledger.epsilon(0.0, Neighbours.REPLACE)
    forecast = epsilon_of(defence.events(facts(member.protocol, federation)), 0.0, Neighbours.REPLACE)
    assert 0 < spent <= forecast * (1 + 1e-9)
    if "perturb once" in type(defence).__name__.lower():
        assert spent == pytest.approx(forecast)


SUMS = {name: pair for name, pair in PAIRS.items() if "noise" in name}


@pytest.mark.parametrize(("shield", "member"), SUMS.values(), ids=SUMS.keys())
def test_noisy_sums_spend_what_they_forecast(shield: Shield, member: Member) -> None:
    """Lloyd's algorithm may stop early, and then spends less than was planned for."""
    defence = shield.active(member.protocol)
    spent, forecast = spent_and_forecast(member.protocol, member.federation(), member, defence)
    assert 0 < spent <= forecast * (1 + 1e-9)
    if "feddp" in type(member.protocol).__name__.lower():
        assert spent == pytest.approx(forecast)


@every_pair
def test_a_claim_is_finite_only_with_noise_and_bounds(shield: Shield, member: Member) -> None:
    protocol: Any = member.protocol
    run = facts(protocol, member.federation())
    neutral = shield.neutral(protocol).guarantee(run)
    assert neutral is None or not neutral.proven
    said = shield.active(protocol).guarantee(run)
    if said is not None and said.proven:
        assert math.isfinite(said.epsilon)
        events = shield.active(protocol).events(run)
        assert said.epsilon == pytest.approx(epsilon_of(events, said.delta, said.neighbours))
        least = {Whom.PUBLIC, Whom.PARTICIPANT, Whom.SERVER}  # and it says of each of them what it may learn
        assert least <= {one.whom for one in said.against}
        beside = shield.active(protocol).guarantee(replace(run, reveals="its label"))
        assert beside is not None
        assert not beside.proven
        assert "also reveals its label" in beside.why_not


@every_pair
def test_nothing_is_claimed_where_a_record_shows_in_more_than_its_own_row(shield: Shield, member: Member) -> None:
    """Rows that were made from all rows, and rows that are dealt twice: noise for one row covers neither."""
    protocol: Any = member.protocol
    if isinstance(protocol, Trainer):
        protocol = replace(protocol, local=replace(POISSON, batch_size=4, steps=protocol.local.steps))
    federation, defence = member.federation(), shield.active(protocol)
    said = defence.guarantee(facts(protocol, federation))
    if said is None or not said.proven:
        return
    made = replace(federation, examples=replace(federation.examples, elsewhere="the largest of all rows"))
    spoiled = [(made, "the largest of all rows")]
    if isinstance(federation, Federation) and said.level is Level.RECORD:
        shards = federation.train
        parts = [shards[client] for client in range(len(shards))]
        twice = Shards.of([torch.cat([parts[0], parts[1][:2]]), *parts[1:]])
        spoiled.append((replace(federation, train=twice), r"dealt more than once \(2 rows come again\)"))
    for other, why in spoiled:
        found = defence.guarantee(facts(protocol, other))
        assert found is not None
        assert not found.proven
        assert re.search(why, found.why_not)


def test_a_release_without_noise_costs_infinity() -> None:
    member = PAIRS["central noise on federated lloyd, records"][1]
    from coterie.defences.noisy_sums.central import CentralNoise

    silent = CentralNoise(dict.fromkeys(member.protocol.releases(), 0.0))
    done = play(member.protocol, member.federation(), member.model, defence=silent)
    assert done.ring.ledger.epsilon(DELTA) == math.inf
    trainer = TRAINERS["fedavg"]
    clipped = play(trainer.protocol, trainer.federation(), trainer.model, defence=DpSgd(1.0, 0.0))
    assert clipped.ring.ledger.epsilon(DELTA) == math.inf


def test_batches_of_a_fixed_size_are_not_priced_as_if_they_were_sampled() -> None:
    """Where one record goes another takes its place: no amplification, and twice the change."""
    trainer = TRAINERS["fedavg"]
    shuffled = play(trainer.protocol, trainer.federation(), trainer.model, defence=DpSgd(0.5, 4.0))
    steps = trainer.protocol.local.steps * trainer.protocol.rounds  # type: ignore[attr-defined]
    expected = epsilon_of(dpsgd_events(1.0, 2.0, steps), DELTA)
    assert shuffled.ring.ledger.epsilon(DELTA) == pytest.approx(expected)
