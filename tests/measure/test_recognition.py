"""A monitor of vertical k-means: honest runs are quiet, what is changed is named, and noise blinds it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.ring import play

from coterie.attacks.distance_geometry import CURIOUS_SERVER, party_steps
from coterie.attacks.steering import Steering, Way, colluding, on_the_link
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.randomised_response.defence import RandomisedResponse
from coterie.defences.randomised_response.mechanisms import generalised
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.measure.recognition import TOTAL, Alarm, Look, Monitor, Recognised, looks, out_of_range
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import View

CLUSTERS, STEPS, BEGINS = 4, 8, 6
WIDTHS = {0: 2, 1: 3, 2: 1}
LIMITS = (1.5, 1.5, 1.5)
LINK = on_the_link(1)


@cache
def federation() -> VerticalFederation:
    draws = torch.Generator().manual_seed(1)
    x = torch.rand(150, 6, generator=draws)
    examples = Examples(x, torch.zeros(150, dtype=torch.int64), 1, "uniform")
    return Vertical(columns=((0, 1), (2, 3, 4), (5,))).split(examples, Rng.seeded(0))


def watched(adversary: Steering | None = None, defence: Defence | None = None) -> View:
    tape = Tape([CURIOUS_SERVER, *([adversary.threat] if adversary else [])])
    seated = [adversary] if adversary else []
    done = play(VerticalKMeans(CLUSTERS, STEPS), federation(), None, defence=defence, tape=tape, adversaries=seated)
    return done.ring.view(CURIOUS_SERVER)


def test_an_honest_run_is_quiet() -> None:
    view = watched()
    assert Monitor(LIMITS).watch(view, WIDTHS) == []
    assert {look.party for look in looks(view, WIDTHS)} == {0, 1, 2}
    assert all(max(look.ratios) < 1.1 for look in looks(view, WIDTHS))


@pytest.mark.parametrize(
    ("adversary", "parties", "kind"),
    [
        (Steering(LINK, Way.MODIFY, 0.05, BEGINS), {1}, "modification"),
        (Steering(LINK, Way.IMPERSONATE, 0.5, BEGINS), {1}, "impersonation"),
        (Steering(colluding(frozenset({0, 1})), Way.MODIFY, 0.3, BEGINS), {0, 1}, "colluding parties"),
    ],
)
def test_what_is_changed_is_named(adversary: Steering, parties: set[int], kind: str) -> None:
    view = watched(adversary)
    alarms = Monitor(LIMITS).watch(view, WIDTHS)
    rounds = {round for round in view.rounds("distances") if round >= BEGINS}
    assert {(alarm.round, alarm.party) for alarm in alarms} == {(round, party) for round in rounds for party in parties}
    assert {alarm.kind for alarm in alarms} == {kind}


def test_an_attack_of_no_strength_changes_nothing() -> None:
    bare, held = (watched(one) for one in (None, Steering(LINK, Way.MODIFY, 0.0, BEGINS)))
    for one, other in zip(party_steps(bare, 1), party_steps(held, 1), strict=True):
        assert torch.equal(one[1].squared, other[1].squared)


def test_under_masks_totals_tell_that_something_is_wrong_but_not_who() -> None:
    view = watched(Steering(colluding(frozenset({0})), Way.MODIFY, 0.5, BEGINS), SecureSums())
    alarms = Monitor(LIMITS).watch(view, {TOTAL: 6})
    assert {alarm.party for alarm in alarms} == {TOTAL}
    assert min(alarm.round for alarm in alarms) == BEGINS


def test_noise_that_hides_the_party_hides_the_attacker() -> None:
    noise = RandomisedResponse(generalised(0.5, 32), bound=3.0)
    honest = looks(watched(None, noise), WIDTHS)
    attacked = looks(watched(Steering(LINK, Way.MODIFY, 0.5, BEGINS), noise), WIDTHS)
    usual = max(look.ratios[0] for look in honest)
    assert max(look.ratios[0] for look in attacked) < 1.3 * usual


def test_limits_come_from_honest_messages() -> None:
    seen = [Look(0, 0, (1.0 + step / 100, 1.0, 2.0), 0.0) for step in range(100)]
    monitor = Monitor.calibrated(seen, rate=0.03)
    assert monitor.limits == pytest.approx((1.99 * 1.02, 1.02, 2.04))
    with pytest.raises(InvalidInput, match="honest messages=3 must be at least 20"):
        Monitor.calibrated(seen[:3])


def test_proofs_of_range_see_what_is_out_of_range_alone() -> None:
    pushed = watched(Steering(colluding(frozenset({2})), Way.MODIFY, 1.0, BEGINS))
    rng = Rng.seeded(0)
    assert out_of_range(watched(), WIDTHS, 3.0, 10_000, rng) == []
    every, few = (out_of_range(pushed, WIDTHS, 3.0, sample, rng) for sample in (10_000, 20))
    assert {alarm.party for alarm in every} == {2}
    assert len(few) <= len(every)
    assert out_of_range(watched(Steering(LINK, Way.IMPERSONATE, 1.0, BEGINS)), WIDTHS, 3.0, 10_000, rng) == []


def test_counts_by_hand() -> None:
    alarms = [Alarm(7, 1, "x"), Alarm(8, 1, "x"), Alarm(8, 2, "x")]
    every = [(round, party) for round in (6, 7, 8, 9) for party in (1, 2)]
    found = Recognised.of(alarms, every, frozenset({(7, 1), (8, 1), (9, 1)}))
    assert (found.caught, found.false, found.missed, found.passed) == (2, 1, 1, 4)
    assert (found.recall, found.precision, found.f) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert found.false_alarms.estimate == pytest.approx(0.2)
