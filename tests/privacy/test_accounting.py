from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from coterie.errors import InvalidInput
from coterie.privacy.accounting import (
    PLACES,
    Guarantee,
    Level,
    Neighbours,
    Trust,
    as_gaussian,
    delta_of,
    dpsgd_events,
    epsilon_of,
    gaussian_total,
    guarantee_of,
    noise_for,
    split_gaussian,
)
from coterie.privacy.grid import LEAST_MULTIPLIER

TRUST = Trust.TRUSTED_AGGREGATOR


def gaussian_delta(z: float, epsilon: float) -> float:
    """Balle and Wang 2018, theorem 8, for sensitivity 1."""
    return float(norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z))


@pytest.mark.parametrize("z", [0.5, 1.0, 4.2247])
def test_gaussian_meets_the_analytic_formula(z: float) -> None:
    epsilon = epsilon_of([GaussianDpEvent(z)], 1e-6)
    assert gaussian_delta(z, epsilon) == pytest.approx(1e-6, rel=1e-6)
    assert delta_of([GaussianDpEvent(z)], epsilon) == pytest.approx(1e-6, rel=1e-3)


def test_laplace_of_scale_b_is_one_over_b_private() -> None:
    assert epsilon_of([LaplaceDpEvent(2.0)], 0.0) == 0.5
    assert epsilon_of([SelfComposedDpEvent(LaplaceDpEvent(2.0), 4), NoOpDpEvent()], 0.0) == 2.0
    assert epsilon_of([LaplaceDpEvent(2.0)], 0.0, Neighbours.REPLACE) == 1.0
    assert epsilon_of([LaplaceDpEvent(2.0)], 1e-12) == pytest.approx(0.5, abs=2e-4)
    assert epsilon_of([GaussianDpEvent(2.0)], 0.0) == math.inf


def test_the_published_run_costs_what_was_published() -> None:
    """FedDP-KMeans at record level: 2.559 for the initialisation, 3.133 with one Lloyd step; client level 2.556."""
    one, half = (float(dp_accounting.get_sigma_gaussian(e, 1e-6)) for e in (1.0, 0.5))
    start: list[DpEvent] = [
        GaussianDpEvent(one),
        LaplaceDpEvent(1.0),
        GaussianDpEvent(half),
        LaplaceDpEvent(2.0),
    ]
    assert epsilon_of(start, 1e-6) == pytest.approx(2.559, abs=5e-4)
    assert epsilon_of([*start, *start[2:]], 1e-6) == pytest.approx(3.133, abs=5e-4)
    client = [GaussianDpEvent(one), LaplaceDpEvent(1.0), GaussianDpEvent(one), LaplaceDpEvent(5.0)]
    assert epsilon_of(client, 1e-6) == pytest.approx(2.556, abs=5e-4)


@pytest.mark.parametrize(
    "events",
    [
        [LaplaceDpEvent(1.5), GaussianDpEvent(3.0)],
        [SelfComposedDpEvent(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1)), 200)],
        [
            ComposedDpEvent([LaplaceDpEvent(4.0), NoOpDpEvent()]),
            PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
        ],
    ],
)
def test_equals_the_library_called_directly(events: list[DpEvent]) -> None:
    direct = PLDAccountant()
    for event in events:
        direct.compose(event)
    assert epsilon_of(events, 1e-5) == pytest.approx(direct.get_epsilon(1e-5), rel=1e-9)
    assert delta_of(events, 1.0) == pytest.approx(direct.get_delta(1.0), rel=1e-9)


def test_loss_distributions_are_no_looser_than_renyi() -> None:
    for events in (dpsgd_events(0.02, 1.0, 300), [GaussianDpEvent(2.0)] * 5, [LaplaceDpEvent(3.0)] * 5):
        renyi = RdpAccountant()
        for event in events:
            renyi.compose(event)
        assert epsilon_of(events, 1e-5) <= renyi.get_epsilon(1e-5)


def test_renyi_prices_what_loss_distributions_do_not_cover() -> None:
    event = ZCDpEvent(0.01)
    assert epsilon_of([event], 1e-6) == pytest.approx(RdpAccountant().compose(event).get_epsilon(1e-6))


def test_gaussians_compose_to_one() -> None:
    parts: list[DpEvent] = [GaussianDpEvent(3.0), SelfComposedDpEvent(GaussianDpEvent(6.0), 4)]
    assert gaussian_total(parts) == pytest.approx((1 / 9 + 4 / 36) ** -0.5)
    on_the_grid = PLDAccountant().compose(parts[0]).compose(parts[1]).get_epsilon(1e-6)
    assert epsilon_of(parts, 1e-6) == pytest.approx(on_the_grid, abs=1e-4)
    assert gaussian_total([*parts, LaplaceDpEvent(1.0)]) is None


def test_replacing_a_gaussian_unit_costs_like_half_the_noise() -> None:
    replaced = epsilon_of([GaussianDpEvent(4.0)], 1e-6, Neighbours.REPLACE)
    assert replaced == pytest.approx(epsilon_of([GaussianDpEvent(2.0)], 1e-6))
    direct = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(GaussianDpEvent(4.0)).get_epsilon(1e-6)
    assert replaced == pytest.approx(direct, abs=1e-4)


def test_repeated_randomised_response_is_counted_every_time() -> None:
    answer = RandomizedResponseDpEvent(0.5, 3)  # log((1 - 2 * 0.5 / 3) / (0.5 / 3)) = log 4
    once = epsilon_of([answer], 0.0, Neighbours.REPLACE)
    assert once == pytest.approx(math.log(4), abs=2e-4)
    five = epsilon_of([SelfComposedDpEvent(answer, 5)], 0.0, Neighbours.REPLACE)
    assert five == pytest.approx(5 * math.log(4), abs=1e-3)
    listed = epsilon_of([answer] * 5, 1e-3, Neighbours.REPLACE)
    repeated = epsilon_of([SelfComposedDpEvent(answer, 5)], 1e-3, Neighbours.REPLACE)
    assert listed == pytest.approx(repeated, rel=1e-6)
    assert once < repeated < five


@pytest.mark.parametrize(
    "silent",
    [
        GaussianDpEvent(0.0),
        LaplaceDpEvent(0.0),
        NonPrivateDpEvent(),
        SelfComposedDpEvent(GaussianDpEvent(0.0), 3),
        PoissonSampledDpEvent(0.01, GaussianDpEvent(0.0)),
    ],
)
def test_no_noise_costs_infinity(silent: DpEvent) -> None:
    assert epsilon_of([GaussianDpEvent(5.0), silent], 1e-6) == math.inf
    assert epsilon_of([silent], 1e-6) == math.inf


def test_nothing_done_costs_nothing() -> None:
    assert epsilon_of([], 1e-6) == 0
    assert delta_of([], 0.1) == 0
    assert dpsgd_events(0.1, 1.0, 0) == []


@pytest.mark.parametrize(
    ("event", "neighbours"),
    [(UnsupportedDpEvent(), Neighbours.ADD_OR_REMOVE), (LaplaceDpEvent(1.0), Neighbours.REPLACE)],
)
def test_an_event_that_cannot_be_priced_is_named(event: DpEvent, neighbours: Neighbours) -> None:
    with pytest.raises(InvalidInput, match=type(event).__name__):
        epsilon_of([event], 1e-6, neighbours)


def test_more_noise_fewer_steps_and_larger_delta_cost_less() -> None:
    base = epsilon_of(dpsgd_events(0.02, 1.0, 200), 1e-5)
    assert epsilon_of(dpsgd_events(0.02, 1.2, 200), 1e-5) < base
    assert epsilon_of(dpsgd_events(0.02, 1.0, 100), 1e-5) < base
    assert epsilon_of(dpsgd_events(0.01, 1.0, 200), 1e-5) < base
    assert epsilon_of(dpsgd_events(0.02, 1.0, 200), 1e-4) < base
    assert epsilon_of(dpsgd_events(1.0, 10.0, 20), 1e-5) == pytest.approx(
        epsilon_of([GaussianDpEvent(10 / math.sqrt(20))], 1e-5), rel=1e-6
    )


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_calibrated_noise_meets_the_budget_and_wastes_nothing(epsilon: float) -> None:
    def plan(scale: float) -> list[DpEvent]:
        return [GaussianDpEvent(scale), LaplaceDpEvent(scale)]

    scale = noise_for(epsilon, 1e-6, plan)
    assert epsilon_of(plan(scale), 1e-6) <= epsilon
    assert epsilon_of(plan(scale * 0.997), 1e-6) > epsilon


def test_calibrated_dpsgd() -> None:
    scale = noise_for(2.0, 1e-5, lambda z: dpsgd_events(0.05, z, 50))
    assert epsilon_of(dpsgd_events(0.05, scale, 50), 1e-5) == pytest.approx(2.0, rel=2e-3)
    assert epsilon_of(dpsgd_events(0.05, scale, 50), 1e-5) <= 2.0
    assert noise_for(1.0, 1e-6, lambda z: [GaussianDpEvent(z)]) == pytest.approx(4.22468, rel=2e-4)
    assert noise_for(math.inf, 1e-6, lambda z: [GaussianDpEvent(z)]) == 0.0


def test_a_plan_that_ignores_its_scale_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does the plan use its scale"):
        noise_for(1.0, 1e-6, lambda _: [GaussianDpEvent(0.5)])


def test_shares_spend_the_whole_budget() -> None:
    multipliers = split_gaussian(1.0, 1e-6, {"sums": 3.0, "counts": 1.0})
    spent = epsilon_of([GaussianDpEvent(z) for z in multipliers.values()], 1e-6)
    assert spent == pytest.approx(1.0, rel=1e-6)
    assert spent <= 1.0
    assert multipliers["counts"] / multipliers["sums"] == pytest.approx(math.sqrt(3))


def test_one_total_budget_buys_less_noise_than_epsilon_shared_out() -> None:
    together = split_gaussian(1.0, 1e-6, {"a": 1.0, "b": 1.0})["a"]
    assert together < 0.8 * float(dp_accounting.get_sigma_gaussian(0.5, 0.5e-6))


@pytest.mark.parametrize("clip", [None, math.inf, 0.0])
def test_a_claim_without_clipping_is_no_claim(clip: float | None) -> None:
    claim = guarantee_of([GaussianDpEvent(4.0)], 1e-6, Level.CLIENT, TRUST, clip)
    assert not claim.proven
    assert claim.epsilon == math.inf
    assert "not clipped" in str(claim)


def test_guarantees_say_what_they_mean() -> None:
    claim = guarantee_of([GaussianDpEvent(4.224679)], 1e-6, Level.RECORD, TRUST, clip=11.0)
    assert claim.proven
    assert claim.epsilon == pytest.approx(1.0, rel=1e-5)
    assert "record level" in str(claim)
    assert "trusted aggregator" in str(claim)
    assert not guarantee_of([GaussianDpEvent(0.0)], 1e-6, Level.RECORD, TRUST, clip=11.0).proven
    stated = Guarantee.none("noise on parameters that were not clipped", Level.CLIENT, Trust.LOCAL_NOISE, stated=10.0)
    assert "stated: epsilon=10" in str(stated)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_bad_budgets_name_the_remedy(epsilon: float) -> None:
    with pytest.raises(
        InvalidInput, match=r"epsilon=.* must be positive; to switch privacy off, pass epsilon=math.inf"
    ):
        noise_for(epsilon, 1e-6, lambda z: [GaussianDpEvent(z)])
    with pytest.raises(InvalidInput, match="delta"):
        split_gaussian(1.0, 0.0, {"a": 1.0})
    with pytest.raises(InvalidInput, match=r"shares\['b'\]"):
        split_gaussian(1.0, 1e-6, {"a": 1.0, "b": 0.0})
    with pytest.raises(InvalidInput, match="why_not"):
        Guarantee.none("", Level.RECORD, TRUST)
    with pytest.raises(InvalidInput, match="is no guarantee"):
        Guarantee(math.inf, 0.0, Level.RECORD, TRUST)


@pytest.mark.parametrize("multiplier", [1e-10, 1e-9, 2e-9, LEAST_MULTIPLIER, 1e-7, 1e-6, 0.99 * PLACES])
@pytest.mark.parametrize("delta", [1e-12, 1e-10, 1e-7, 1e-6, 1e-5, 1e-3])
def test_epsilons_of_hardly_any_noise_are_not_below_the_truth(multiplier: float, delta: float) -> None:
    """In exact fractions; the analytic formula's second term, which is left out, only makes delta less.

    In floats, 4.99e17 was stated of a multiplier of 1e-9 where delta is 1.
    """
    stated = epsilon_of([GaussianDpEvent(multiplier)], delta)
    beyond = Fraction(stated) * Fraction(multiplier) - 1 / (2 * Fraction(multiplier))
    assert norm.sf(float(beyond)) <= delta * (1 + 1e-8)
    assert float(beyond) == pytest.approx(norm.isf(delta), abs=1e-3 + 1e-13 / multiplier)


@pytest.mark.parametrize("epsilon", [1e-320, 1e-18, 1e-16, 1e-3, 0.999, 1.0, 39.0, 40.0, 710.0, 1e6, math.inf])
def test_the_gaussian_that_stands_in_for_a_pure_mechanism_exists_for_every_epsilon(epsilon: float) -> None:
    """Near 0 it is epsilon sqrt(2 pi) / 4 from the middle, and far out the root of twice epsilon."""
    multiplier = as_gaussian(epsilon)
    assert 0 <= multiplier < math.inf
    if 1e-300 < epsilon < 0.01:
        assert multiplier == pytest.approx(4 / (epsilon * math.sqrt(2 * math.pi)), rel=1e-5)
    elif epsilon < 700:
        assert norm.logsf(1 / multiplier) <= -np.logaddexp(0, epsilon)
    elif epsilon < math.inf:
        assert multiplier == pytest.approx(1 / math.sqrt(2 * epsilon), rel=0.01)
