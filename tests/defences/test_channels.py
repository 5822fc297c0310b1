"""Channels: tables by hand, the epsilon that follows, and draws that keep to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from coterie.defences.randomised_response.channel import TOTAL, Channel
from coterie.defences.randomised_response.defence import PerturbOnce, RandomisedResponse, told
from coterie.defences.randomised_response.mechanisms import (
    MECHANISMS,
    discrete_laplace,
    discretised,
    gap_rr,
    generalised,
    ordered,
    piecewise,
    square_wave,
)
from coterie.errors import InvalidInput
from coterie.privacy.accounting import epsilon_of, pure_events
from coterie.privacy.guarantee import Neighbours
from coterie.rng import Secrets

HOLDING: dict[str, Callable[..., Channel]] = {name: make for name, make in MECHANISMS.items() if name != "gap_rr"}
every_holding = pytest.mark.parametrize("make", HOLDING.values(), ids=HOLDING.keys())
EPSILONS = pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])


def worst_case(channel: Channel) -> float:
    """The oracle: all pairs of inputs and all answers, in exact whole numbers."""
    table = channel.chances.tolist()
    ratios = [
        math.inf if other == 0 else one / other
        for answers in zip(*table, strict=True)
        for one, other in product(answers, answers)
        if one > 0
    ]
    return math.log(max(ratios))


class TestTables:
    @every_holding
    @EPSILONS
    def test_the_epsilon_is_the_one_that_was_asked_for(self, make: Callable[..., Channel], epsilon: float) -> None:
        channel = make(epsilon, 17)
        assert channel.epsilon == pytest.approx(worst_case(channel), rel=1e-12)
        assert channel.epsilon <= epsilon * (1 + 1e-9)
        assert channel.epsilon == pytest.approx(epsilon, rel=1e-6)
        assert channel.delta(epsilon * (1 + 1e-9)) < 1e-12
        assert channel.delta(0.0) > 0

    @every_holding
    def test_rows_are_distributions_to_the_last_bit(self, make: Callable[..., Channel]) -> None:
        for row in make(1.0, 9).chances.tolist():
            assert sum(row) == TOTAL

    def test_generalised_by_hand(self) -> None:
        channel = generalised(math.log(3), 4)
        np.testing.assert_allclose(channel.probabilities, np.full((4, 4), 1 / 6) + np.eye(4) / 3)

    @EPSILONS
    @pytest.mark.parametrize("make", [piecewise, square_wave])
    def test_windows_are_unbiased(self, make: Callable[..., Channel], epsilon: float) -> None:
        channel = make(epsilon, 33)
        np.testing.assert_allclose(channel.probabilities @ channel.values, np.linspace(0, 1, 33), atol=1e-9)

    def test_the_piecewise_variance_is_the_published_one(self) -> None:
        """Wang et al. 2019, Lemma 1, on [-1, 1]: t^2 / (e^(eps/2) - 1) + (e^(eps/2) + 3) / (3 (e^(eps/2) - 1)^2)."""
        epsilon, channel = 2.0, piecewise(2.0, 2001)
        half = math.exp(epsilon / 2)
        for level, t in ((0, -1.0), (1000, 0.0), (2000, 1.0)):
            row = channel.probabilities[level]
            variance = float(row @ np.square(channel.values) - (row @ channel.values) ** 2) * 4
            assert variance == pytest.approx(t**2 / (half - 1) + (half + 3) / (3 * (half - 1) ** 2), rel=0.01)

    def test_near_answers_are_likelier_in_the_exponential_mechanism(self) -> None:
        row = ordered(2.0, 9).probabilities[4]
        assert (np.diff(row[:5]) > 0).all()
        textbook = np.exp(-2.0 / 2 / 8 * np.abs(np.arange(9) - 4))
        assert row[4] > textbook[4] / textbook.sum()  # for the same epsilon

    def test_laplace_reaches_beyond_the_range_and_is_unbiased(self) -> None:
        channel = discrete_laplace(1.0, 17)
        assert channel.values[0] < -13
        np.testing.assert_allclose(channel.probabilities @ channel.values, np.linspace(0, 1, 17), atol=1e-6)

    def test_metric_privacy(self) -> None:
        """Laplace over the range is epsilon times the distance; generalised response is not: neighbours cost all."""
        assert discrete_laplace(1.0, 17).metric_epsilon == pytest.approx(1.0, rel=1e-6)
        assert generalised(1.0, 17).metric_epsilon == pytest.approx(16.0, rel=1e-6)
        assert gap_rr(1.0, 17).metric_epsilon == math.inf

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (lambda: generalised(0.0), r"epsilon=0.0 must lie in \(0, 40\] a value"),
            (lambda: generalised(1.0, 1), "levels=1 must lie in 2..4096"),
            (lambda: gap_rr(1.0, 2), "levels=2 must be at least 3"),
            (lambda: gap_rr(1.0, 9, 0.0), r"ratio=0.0 must lie in \(0, 1\]"),
            (lambda: discrete_laplace(0.001, 4000), "levels=4000 are too many at epsilon=0.001"),
            (lambda: RandomisedResponse(bound=0.0), "bound=0.0 must be positive"),
            (lambda: RandomisedResponse(bound=math.inf), "bound=inf must be positive and finite"),
            (lambda: PerturbOnce(low=1.0), "low=1.0 must be less than high=1.0"),
            (lambda: PerturbOnce(low=-math.inf), "high - low=inf must be finite"),
            (lambda: PerturbOnce(high=math.nan), "low=0.0 must be less than high=nan"),
            (lambda: generalised(1.0).delta(-1.0), "epsilon=-1.0 must not be negative"),
        ],
    )
    def test_what_cannot_be(self, wrong: Callable[[], object], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            wrong()


class TestGapRR:
    def test_answer_sets_by_hand(self) -> None:
        """Q = 9, ratio 0.5: l = (4.5 - 1) / 2 = 1.75, so 1. Q = 11, ratio 0.5: l = 2."""
        sets = [set(np.flatnonzero(row)) for row in gap_rr(1.0, 11, 0.5).chances]
        assert sets[0] == {0, 1, 2}
        assert sets[1] == {1, 2, 3}  # nothing at -1, so the nearest other value, towards the middle
        assert sets[2] == {2, 0, 4}
        assert sets[5] == {5, 3, 7}
        assert sets[10] == {10, 9, 8}
        assert all(len(one) == 3 for one in sets)
        assert set(np.flatnonzero(gap_rr(1.0, 9, 0.5).chances[0])) == {0, 1, 2}  # where l is 1 they stay distinct

    def test_chances(self) -> None:
        row = gap_rr(math.log(2), 11, 0.5).probabilities[5]
        np.testing.assert_allclose(row[[3, 5, 7]], [0.25, 0.5, 0.25])  # e^eps / (e^eps + 2), and not Eq. 9's e^eps + 1

    @pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
    @pytest.mark.parametrize("levels", [5, 10, 25])
    def test_no_epsilon_holds_and_a_pair_proves_it(self, levels: int, ratio: float) -> None:
        channel = gap_rr(0.1, levels, ratio)
        assert channel.epsilon == math.inf == worst_case(channel)
        pair = channel.pair
        assert channel.chances[pair.likely, pair.answer] > 0
        assert channel.chances[pair.unlikely, pair.answer] == 0

    def test_its_delta_is_the_mass_that_gives_an_input_away(self) -> None:
        """Two values without a common answer are told apart for certain: delta is 1 at every epsilon."""
        assert gap_rr(0.5, 25, 0.5).delta(20.0) == pytest.approx(1.0)
        near = gap_rr(0.5, 3, 1.0)  # three values, one answer set: here it is generalised response, and holds
        assert near.epsilon == pytest.approx(0.5)
        assert near.delta(0.5 * (1 + 1e-9)) < 1e-12

    def test_delta_by_all_pairs_and_events(self) -> None:
        channel = gap_rr(1.0, 5, 0.5)
        table, grown = channel.probabilities, math.exp(0.3)
        slow = max(
            sum(max(0.0, p - grown * q) for p, q in zip(table[one], table[other], strict=True))
            for one, other in product(range(5), range(5))
        )
        assert channel.delta(0.3) == pytest.approx(slow)


class TestDraws:
    """Frequencies of 40,000 draws from each input, by chi-squared; the false-alarm rate of each check is 1e-6."""

    @pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS.keys())
    def test_draws_have_the_chances_of_the_table(self, make: Callable[..., Channel]) -> None:
        channel, count = make(1.5, 7), 40_000
        for level in (0, 3, 6):
            drawn = channel.draw(np.full(count, level), Secrets.seeded(level))
            found = np.bincount(drawn, minlength=len(channel.values))
            expected = channel.probabilities[level] * count
            assert (found[expected == 0] == 0).all()
            often = expected >= 10
            statistic = ((found - expected)[often] ** 2 / expected[often]).sum()
            rest = max(0.0, count - expected[often].sum())
            seldom = abs(found[~often].sum() - rest)
            assert statistic < chi2.ppf(1 - 1e-6, int(often.sum()))
            assert seldom < 6 * math.sqrt(rest + 10) + 10

    def test_without_noise_the_levels_come_back(self) -> None:
        levels = np.arange(64).repeat(3)
        assert np.array_equal(discretised(64).draw(levels, Secrets.seeded(0)), levels)

    def test_another_place_another_stream_and_the_same_again(self) -> None:
        channel, levels = generalised(0.5, 16), np.zeros(200, dtype=np.int64)
        one, again, other = (channel.draw(levels, Secrets.seeded(seed)) for seed in (1, 1, 2))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_memoised_answers_stay_while_the_level_does(self) -> None:
        channel, draws = generalised(0.5, 16), np.random.default_rng(0)
        before = draws.integers(16, size=300)
        after = np.where(draws.random(300) < 0.5, before, (before + 1) % 16)
        one, other = (channel.draw_once(levels, Secrets.seeded(1)) for levels in (before, after))
        assert np.array_equal(one[before == after], other[before == after])
        assert not np.array_equal(one[before != after], other[before != after])

    def test_numbers_outside_the_public_range_are_cut(self) -> None:
        found = told(torch.tensor([[-9.0, 0.0, 0.49, 2.0, 9.0]]), 0.0, 2.0, discretised(3), Secrets.seeded(0))
        assert found.tolist() == [[0.0, 0.0, 0.0, 2.0, 2.0]]

    def test_what_is_no_number_counts_as_high(self) -> None:
        plain = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
        for memoised in (False, True):
            found = told(plain, 0.0, 2.0, discretised(3), Secrets.seeded(0), memoised)
            assert found.tolist() == [2.0, 2.0, 0.0, 1.0]

    @pytest.mark.parametrize("level", [-1, 4, np.iinfo(np.int64).min])
    def test_a_level_that_is_none_has_no_answer(self, level: int) -> None:
        levels, channel = np.array([0, level, 3]), generalised(1.0, 4)
        for draw in (channel.draw, channel.draw_once):
            with pytest.raises(InvalidInput, match=rf"levels=\[{level}\] must lie in 0..3"):
                draw(levels, Secrets.seeded(0))


@cache
def rr(epsilon: float, times: int) -> float:
    return epsilon_of(pure_events(epsilon, times), 1e-6, Neighbours.REPLACE)


def test_pure_events_compose() -> None:
    assert epsilon_of(pure_events(0.7, 5), 0.0, Neighbours.REPLACE) == pytest.approx(3.5)
    assert epsilon_of(pure_events(math.inf, 1), 0.0, Neighbours.REPLACE) == math.inf
    assert pure_events(1.0, 0) == []
    assert rr(0.1, 100) < 0.6 * 10.0  # advanced composition, at a small delta
