"""Intervals that hold what they promise, at the edges too, and units that decide with seeds as their clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, norm, ttest_1samp, ttest_ind

from coterie.errors import InvalidInput
from coterie.measure.intervals import Interval, Sample, difference, pooled, proportion, student


def shares(*counts: tuple[int, int]) -> Interval:
    return pooled([Sample.share(right, units) for right, units in counts])


def test_an_interval_is_in_order_or_unknown() -> None:
    with pytest.raises(InvalidInput, match="not in order"):
        Interval(1.0, 2.0, 3.0)
    with pytest.raises(InvalidInput, match="not in order"):
        Interval(1.0, math.nan, 3.0)
    assert not Interval.unknown(0.5).is_known
    assert str(Interval.unknown(0.5)) == "0.5"
    assert 0.5 not in Interval.unknown(0.5)  # nothing is known to be in it


def test_one_seed_has_the_interval_over_its_units() -> None:
    assert shares((20, 20)) == proportion(20, 20)
    assert shares((20, 20)).low == pytest.approx(0.025 ** (1 / 20))
    assert shares((0, 10)).ends == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))


def test_the_clients_of_all_seeds_decide() -> None:
    """0.358 against a chance of 0.2, over 120 clients in each of three seeds; Student would have three numbers."""
    assert shares((38, 120), (43, 120), (48, 120)).ends == pytest.approx(proportion(129, 360).ends)
    assert shares((11, 40), (14, 40), (18, 40)).low > 0.2
    assert student([11 / 40, 14 / 40, 18 / 40]).low < 0.2


def test_all_right_in_three_seeds_is_not_certainty() -> None:
    assert shares((8, 8), (8, 8), (8, 8)).ends == pytest.approx((0.025 ** (1 / 24), 1.0))


@pytest.mark.parametrize("units", [10, 20, 40, 100])
def test_two_seeds_that_units_explain_are_not_stretched_over_everything(units: int) -> None:
    """0.9 and 0.8, of which Student makes [0.215, 1]."""
    assert student([0.9, 0.8]).low == pytest.approx(0.215, abs=1e-3)
    assert shares((round(0.9 * units), units), (round(0.8 * units), units)).low > 0.5


def test_seeds_that_differ_more_than_their_units_explain_are_charged_for_it() -> None:
    alike, apart = shares((100, 200), (100, 200), (100, 200)), shares((60, 200), (100, 200), (140, 200))
    assert alike.ends == pytest.approx(proportion(300, 600).ends)
    # phi = 200 * (0.2^2 + 0.2^2) / 2 / 0.25 = 32; 600 / (1 + 31 * (3.182 / 1.960)^2) = 7.25 trials are left
    trials = 600 / (1 + 31 * (3.182446 / 1.959964) ** 2)
    assert apart.low == pytest.approx(float(beta.ppf(0.025, trials / 2, trials / 2 + 1)), rel=1e-4)


def test_seeds_in_which_nothing_was_scored_do_not_count() -> None:
    lost = Sample.area(math.nan, [(0, 5)])
    assert pooled([Sample.share(5, 10), lost]) == pooled([Sample.share(5, 10)])
    assert math.isnan(pooled([lost]).estimate)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 80)), min_size=1, max_size=6))
def test_any_shares_make_an_interval_around_them(counts: list[tuple[int, int]]) -> None:
    found = shares(*counts)
    assert 0 <= found.low <= found.estimate <= found.high <= 1
    assert found.low < found.high
    assert found.estimate == pytest.approx(sum(right for right, _ in counts) / sum(units for _, units in counts))


def covered(truth: float, seeds: int, units: int, likeness: float) -> tuple[float, float]:
    """How often the interval is too high, and too low, over 2000 audits; clients of a seed are alike by so much."""
    draws = np.random.default_rng(0)
    above = below = 0
    for _ in range(2000):
        own = draws.beta(truth * (1 / likeness - 1), (1 - truth) * (1 / likeness - 1), seeds) if likeness else truth
        found = shares(*((int(right), units) for right in draws.binomial(units, np.broadcast_to(own, seeds))))
        above, below = above + (found.low > truth), below + (found.high < truth)
    return above / 2000, below / 2000


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_units_alone_cover_as_often_as_they_say(seeds: int) -> None:
    """Nominally 2.5 % on either side; Binomial(2000, 0.025) exceeds 73 with probability under 1e-3."""
    above, below = covered(0.2, seeds, 40, 0.0)
    assert max(above, below) <= 73 / 2000


@pytest.mark.parametrize(("likeness", "most"), [(0.01, 0.045), (0.1, 0.055)])
def test_clients_that_are_alike_within_a_seed_raise_few_false_alarms(likeness: float, most: float) -> None:
    """Measured 3.8 % and 3.2 % in 6000; counting units alone raises 9 % and 26 %."""
    above, _ = covered(0.2, 3, 120, likeness)
    assert above <= most


# -- areas under ROC curves ------------------------------------------------------------------------------------------


def area(value: float, *pairs: tuple[int, int]) -> Interval:
    return pooled([Sample.area(value, pairs)])


def test_a_perfect_area_is_not_certainty() -> None:
    assert area(1.0, (10, 10)).low == pytest.approx(0.025 ** (11 / 200), abs=1e-4)  # 2 * 10 * 10 / 11 trials
    assert area(0.0, (10, 10)).high == pytest.approx(1 - area(1.0, (10, 10)).low)
    assert area(1.0, (1, 19)).low < 0.5  # one that stands out of twenty does so by chance every twentieth time
    assert area(1.0, (3, 17)).low > 0.5


def test_an_area_of_a_half_has_the_variance_of_mann_and_whitney() -> None:
    """(m + n + 1) / (12 m n)."""
    worth = Sample.area(0.5, [(30, 60)]).worth
    assert 0.25 / worth == pytest.approx(91 / (12 * 30 * 60))


def test_a_better_area_proves_more() -> None:
    lows = [area(value, (30, 60)).low for value in (0.5, 0.7, 0.9, 0.99, 0.999, 1.0)]
    assert lows == sorted(lows)


def test_strata_add_up() -> None:
    one, two = Sample.area(0.8, [(30, 60)]), Sample.area(0.8, [(30, 60), (30, 60)])
    assert two.worth == pytest.approx(2 * one.worth)
    assert two.units == 180


@pytest.mark.parametrize("truth", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(("yes", "no"), [(10, 10), (30, 60), (5, 40)])
def test_an_area_is_covered_as_often_as_it_says(truth: float, yes: int, no: int) -> None:
    """Normal scores. Nominally 2.5 % on either side; Binomial(1000, 0.025) exceeds 41 with probability under 1e-3."""
    draws = np.random.default_rng(0)
    apart = math.sqrt(2) * float(norm.ppf(truth))
    above = below = 0
    for _ in range(1000):
        wins = draws.normal(apart, 1, (yes, 1)) > draws.normal(0, 1, (1, no))
        found = area(float(wins.mean()), (yes, no))
        above, below = above + (found.low > truth), below + (found.high < truth)
    assert max(above, below) <= 41


# -- means of other values -------------------------------------------------------------------------------------------


def test_a_mean_over_units_has_student_s_interval() -> None:
    values = [0.7, 0.8, 0.85]
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    endless = pooled([Sample.average(values, -math.inf, math.inf)])
    assert endless.ends == pytest.approx((expected.low, expected.high))
    assert student(values).ends == pytest.approx((expected.low, expected.high))
    assert not student([0.5]).is_known
    assert not pooled([Sample.average([0.5], 0.0, 1.0)]).is_known


def test_a_mean_between_ends_is_bounded_as_a_share_of_so_many_trials() -> None:
    """Of a unit that is 0 or 1, of many that is the share's own interval; and a scale makes no difference."""
    answers = np.arange(1000) < 950
    share = pooled([Sample.share(950, 1000)])
    found = pooled([Sample.average(answers.tolist(), 0.0, 1.0)])
    assert found.ends == pytest.approx(share.ends, abs=1e-4)
    assert found.high - found.estimate < found.estimate - found.low  # away from the end it may be further off
    shifted = pooled([Sample.average((2.0 * answers - 1).tolist(), -1.0, 1.0)])
    assert shifted.ends == pytest.approx([2 * end - 1 for end in found.ends])


@pytest.mark.parametrize(("clients", "rows", "truth"), [(8, 10, 0.95), (8, 10, 0.05), (20, 10, 0.95), (8, 50, 0.98)])
def test_few_units_close_to_an_end_raise_few_false_alarms(clients: int, rows: int, truth: float) -> None:
    """As skewed as they are: Student's interval errs in 5 to 8 %. Binomial(2000, 0.025) exceeds 73 in under 1e-3."""
    draws = np.random.default_rng(0)
    found = [pooled([Sample.average(draws.binomial(rows, truth, clients) / rows, 0.0, 1.0)]) for _ in range(2000)]
    assert max(sum(one.low > truth for one in found), sum(one.high < truth for one in found)) <= 73


def test_a_unit_beyond_its_ends_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a unit scores 1\.5, and is said to lie in \[0, 1\]"):
        Sample.average([0.5, 1.5], 0.0, 1.0)
    assert Sample.average([0.5, 1.0000001], 0.0, 1.0).units == 2  # rounding


def test_means_of_several_seeds_are_pooled_as_shares_are() -> None:
    draws = np.random.default_rng(0)
    alike = [Sample.average(draws.normal(0.5, 0.1, 50), -1.0, 1.0) for _ in range(3)]
    assert pooled(alike).high - pooled(alike).low == pytest.approx(2 * 1.976 * 0.1 / math.sqrt(150), rel=0.15)
    apart = [Sample.average(draws.normal(mean, 0.01, 50), -1.0, 1.0) for mean in (0.4, 0.5, 0.6)]
    reach = 3.182 * 0.1 / math.sqrt(3)  # of the seeds, with as many degrees of freedom as there are
    assert (pooled(apart).high - pooled(apart).low) / 2 == pytest.approx(reach, rel=0.05)


def test_units_that_are_all_alike_are_no_certainty() -> None:
    """Two of two at the edge are as sure as a share that two of two have; a cost without a known end has no such."""
    perfect = pooled([Sample.average([1.0, 1.0], -1.0, 1.0)])
    assert pooled([Sample.average([1.0, 0.9999], -1.0, 1.0)]).low == pytest.approx(perfect.low, abs=1e-3)
    share = pooled([Sample.share(2, 2)])
    assert perfect.ends == pytest.approx((2 * share.low - 1, 1.0))
    assert pooled([Sample.average([1.0, 1.0], -1.0, 1.0)] * 3).low > perfect.low
    assert difference([Sample.average([1.0, 1.0], 0.0, 1.0)], [Sample.average([0.0, 0.0], 0.0, 1.0)]).low < 0.5
    assert pooled([Sample.average([2.0, 2.0], 0.0, math.inf)]).ends == (2.0, 2.0)


def test_units_that_are_all_alike_away_from_an_end_are_no_certainty_either() -> None:
    """Of n alike, the true mean is at least value * error^(1/n) above the lower end, and likewise from above."""
    pairs = pooled([Sample.average([0.5] * 24, 0.0, 1.0)])
    assert pairs.ends == pytest.approx((0.5 * 0.85753, 1 - 0.5 * 0.85753), abs=1e-5)  # 0.025^(1/24)
    nobody_lost = pooled([Sample.average([0.0, 0.0], -1.0, 1.0)])
    assert nobody_lost.ends == pytest.approx((-1 + math.sqrt(0.025), 1 - math.sqrt(0.025)))
    one_a_seed = pooled([Sample.average([0.5], 0.0, 1.0)] * 3)
    assert one_a_seed.low == pytest.approx(0.5 * 0.025 ** (1 / 3))
    once = Sample.average([0.5, 0.5], 0.0, 1.0)
    assert pooled([once.shared(3)] * 3).ends == pytest.approx(pooled([once]).ends)
    assert once.variance == pytest.approx(((2 * 0.25 + 1) / 4 - 0.25) / 4)  # 0, 0.5, 0.5, 1
    assert Sample.average([1.0] * 8, 0.0, 1.0).variance == pytest.approx(Sample.share(8, 8).variance)


@pytest.mark.parametrize(("clients", "rows", "truth"), [(2, 3, 0.8), (2, 10, 0.8), (2, 10, 0.6), (3, 3, 0.8)])
def test_accuracies_of_a_few_rows_that_agree_by_luck_raise_few_false_alarms(
    clients: int, rows: int, truth: float
) -> None:
    """Binomial(1000, 0.025) exceeds 41 with probability under 1e-3; a point for an interval errs in 5 to 14 %."""
    draws = np.random.default_rng(0)
    found = [pooled([Sample.average(draws.binomial(rows, truth, clients) / rows, 0.0, 1.0)]) for _ in range(1000)]
    assert max(sum(one.low > truth for one in found), sum(one.high < truth for one in found)) <= 41


def test_a_loss_that_few_test_rows_do_not_show_is_not_bounded() -> None:
    """Two others of three test rows each lose 0.2 truly; nothing was seen of it in two of five audits."""
    draws = np.random.default_rng(0)
    bounded = 0
    for _ in range(1000):
        luck = draws.random((2, 3))
        lost = (luck < 0.9).mean(1) - (luck < 0.7).mean(1)
        bounded += pooled([Sample.average(lost, -1.0, 1.0)]).high < 0.2
    assert bounded <= 41  # of Binomial(1000, 0.025), with probability under 1e-3 more


def test_two_means_of_few_units_are_told_apart_as_welch_does() -> None:
    ours, theirs = [0.6, 0.8, 0.7], [0.3, 0.35]
    expected = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    found = difference([Sample.average(ours, 0.0, 1.0)], [Sample.average(theirs, 0.0, 1.0)])
    assert found.ends == pytest.approx((expected.low, expected.high))
    normal = difference([Sample.share(6, 10)], [Sample.share(3, 10)])  # a share's variance is known
    assert normal.high - normal.low == pytest.approx(2 * 1.959964 * math.sqrt((7 * 5 + 4 * 8) / 12**3), rel=1e-5)


def test_units_that_every_seed_has_give_a_difference_the_freedom_of_one_seed() -> None:
    ours, theirs = Sample.average([0.6, 0.7, 0.8], 0.0, 1.0), Sample.average([0.3, 0.5, 0.55], 0.0, 1.0)
    alone, thrice = difference([ours], [theirs]), difference([ours.shared(3)] * 3, [theirs.shared(3)] * 3)
    assert thrice.ends == pytest.approx(alone.ends)


def test_a_unit_a_seed_whose_gaps_are_alike_is_no_certainty() -> None:
    ours, theirs = [Sample.average([1.0], 0.0, 1.0)] * 2, [Sample.average([0.5], 0.0, 1.0)] * 2
    assert difference(ours, theirs).low == pytest.approx(-1 + 1.5 * math.sqrt(0.025))
    assert not difference(ours[:1], theirs[:1]).is_known


@pytest.mark.parametrize("victims", [2, 3, 4])
def test_an_attack_that_is_its_own_control_is_seldom_above_it(victims: int) -> None:
    """Binomial(1000, 0.025) exceeds 41 with probability under 1e-3; with a normal quantile it is 4 to 9 %."""
    draws = np.random.default_rng(1)

    def one() -> list[Sample]:
        return [Sample.average(draws.normal(0.7, 0.1, victims).clip(0, 1), 0.0, 1.0)]

    assert sum(difference(one(), one()).low > 0 for _ in range(1000)) <= 41


def test_a_unit_a_seed_leaves_student_over_seeds() -> None:
    costs = [Sample.average([value], 0.0, math.inf) for value in (3.0, 4.0, 5.0)]
    assert pooled(costs).ends == pytest.approx(student([3.0, 4.0, 5.0]).ends)


def test_a_mean_stays_within_what_it_can_be() -> None:
    found = pooled([Sample.average([1.0, 0.8], 0.0, 1.0)])
    assert found.high == 1.0
    assert pooled([Sample.average([value], 0.0, math.inf) for value in (0.1, 5.0)]).low == 0.0


def test_units_that_every_seed_has_give_the_freedom_of_one_seed() -> None:
    """Three sites in three seeds are three sites: Student's quantile is that of two degrees of freedom, not of six."""
    once = Sample.average([0.2, 0.4, 0.6], 0.0, 1.0)
    alone, thrice = pooled([once]), pooled([once.shared(3)] * 3)
    assert thrice.ends == pytest.approx(alone.ends)
    assert pooled([once] * 3).high < alone.high  # three seeds of three sites each
