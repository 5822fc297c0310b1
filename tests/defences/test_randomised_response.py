"""Channels: tables by hand, the epsilon that follows, draws that keep to them; and the two defences on the ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from tests.laws.members import by_columns
from tests.ring import play

from coterie.defences.randomised_response.channel import TOTAL, Channel
from coterie.defences.randomised_response.defence import RELEASED, PerturbOnce, RandomisedResponse, told
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
from coterie.protocols.clusterings.vertical_kmeans import CENTRES, Start, VerticalKMeans
from coterie.rng import Secrets
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

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
            (lambda: PerturbOnce(low=1.0), "low=1.0 must be less than high=1.0"),
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

    def test_kept_answers_tell_for_certain_that_a_number_changed_and_claim_nothing(self) -> None:
        """Two answers about a number that stays never differ; about one that moves they do. No epsilon allows that."""
        channel, stays, moves = generalised(0.5, 16), np.zeros(300, dtype=np.int64), np.ones(300, dtype=np.int64)
        first, second, third = (channel.draw_once(levels, Secrets.seeded(1)) for levels in (stays, stays, moves))
        assert not (first != second).any()
        assert (first != third).mean() > 0.5
        kept = RandomisedResponse(channel, bound=35.0, memoised=True)
        said = kept.guarantee(PROTOCOL.facts(by_columns()))
        assert not said.proven
        assert "says for certain" in str(said)
        done = play(PROTOCOL, by_columns(), None, defence=kept)
        assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == math.inf

    def test_numbers_outside_the_public_range_are_cut(self) -> None:
        found = told(torch.tensor([[-9.0, 0.0, 0.49, 2.0, 9.0]]), 0.0, 2.0, discretised(3), Secrets.seeded(0))
        assert found.tolist() == [[0.0, 0.0, 0.0, 2.0, 2.0]]


PROTOCOL = VerticalKMeans(3, steps=3, start_on=Start.RECORDS)


class TestOnTheRing:
    def test_the_server_is_sent_levels_alone(self) -> None:
        server = ThreatModel("server", server=True)
        tape = Tape([server])
        play(PROTOCOL, by_columns(), None, defence=RandomisedResponse(generalised(2.0, 8), bound=35.0), tape=tape)
        view = tape.view(server)
        sent = torch.cat([view.sent(round, "distances").values["distances"] for round in view.rounds("distances")])
        levels = sent.double() / 5
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-6)

    def test_what_is_spent_adds_up_over_numbers_steps_and_parties(self) -> None:
        defence = RandomisedResponse(generalised(0.5, 8), bound=35.0)
        done = play(PROTOCOL, by_columns(), None, defence=defence)
        steps = done.state.round
        assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == pytest.approx(0.5 * 3 * steps * 3)
        said = defence.guarantee(PROTOCOL.facts(by_columns()))
        assert said.proven
        assert said.epsilon == pytest.approx(0.5 * 3 * 3 * 3)
        assert said.neighbours is Neighbours.REPLACE

    def test_seeding_is_charged_too(self) -> None:
        protocol = VerticalKMeans(3, steps=2)
        defence = RandomisedResponse(generalised(0.5, 8), bound=35.0)
        done = play(protocol, by_columns(), None, defence=defence)
        steps = done.state.round - protocol.seedings
        spent = done.ring.ledger.epsilon(0.0, Neighbours.REPLACE)
        assert spent == pytest.approx(0.5 * 3 * (2 + 3 * steps))
        assert spent <= defence.guarantee(protocol.facts(by_columns())).epsilon * (1 + 1e-9)

    def test_perturb_once_pays_once_and_tells_the_same_in_every_step(self) -> None:
        defence = PerturbOnce(piecewise(0.5), -6.0, 6.0)
        short, long = (
            play(VerticalKMeans(3, steps, start_on=Start.RECORDS), by_columns(), None, defence=defence)
            for steps in (1, 9)
        )
        for party in range(3):
            assert torch.equal(short.ring.memory[party][RELEASED], long.ring.memory[party][RELEASED])
            assert not torch.equal(long.ring.memory[party][RELEASED], by_columns().part(party))
        for done in (short, long):
            assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == pytest.approx(0.5 * 7)
        said = defence.guarantee(PROTOCOL.facts(by_columns()))
        assert said.epsilon == pytest.approx(0.5 * 7)
        assert said.proven

    def test_perturb_once_computes_from_what_was_told_and_nothing_else(self) -> None:
        """The same run on the released columns, undefended, has the same labels and centres."""
        from dataclasses import replace

        defence, federation = PerturbOnce(piecewise(1.0), -6.0, 6.0), by_columns()
        done = play(PROTOCOL, federation, None, defence=defence)
        x = federation.examples.x.clone()
        for party, own in enumerate(federation.columns):
            x[:, own] = done.ring.memory[party][RELEASED]
        released = replace(federation, examples=replace(federation.examples, x=x))
        bare = play(PROTOCOL, released, None)
        assert torch.equal(bare.state.labels, done.state.labels)
        for party in range(3):
            assert torch.equal(bare.ring.memory[party][CENTRES], done.ring.memory[party][CENTRES])

    def test_what_is_claimed(self) -> None:
        facts = PROTOCOL.facts(by_columns())
        published = RandomisedResponse(gap_rr(0.5, 25)).guarantee(facts)
        assert "range is read off the private data" in published.why_not
        assert published.epsilon == 0.5  # what the paper calls it
        bounded = RandomisedResponse(gap_rr(0.5, 25), bound=9.0).guarantee(facts)
        assert "has no finite epsilon: answer" in bounded.why_not
        assert "nothing is randomised" in RandomisedResponse().guarantee(facts).why_not
        read_off = play(PROTOCOL, by_columns(), None, defence=RandomisedResponse(generalised(0.5, 8)))
        assert read_off.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == math.inf

    def test_records_that_are_all_alike(self) -> None:
        from dataclasses import replace

        federation = by_columns()
        flat = replace(federation, examples=replace(federation.examples, x=torch.ones_like(federation.examples.x)))
        for defence in (RandomisedResponse(gap_rr(0.5, 25)), RandomisedResponse(generalised(1.0), bound=1.0)):
            done = play(PROTOCOL, flat, None, defence=defence)
            assert all(torch.isfinite(kept[CENTRES]).all() for kept in done.ring.memory.values())


@cache
def rr(epsilon: float, times: int) -> float:
    return epsilon_of(pure_events(epsilon, times), 1e-6, Neighbours.REPLACE)


def test_pure_events_compose() -> None:
    assert epsilon_of(pure_events(0.7, 5), 0.0, Neighbours.REPLACE) == pytest.approx(3.5)
    assert epsilon_of(pure_events(math.inf, 1), 0.0, Neighbours.REPLACE) == math.inf
    assert pure_events(1.0, 0) == []
    assert rr(0.1, 100) < 0.6 * 10.0  # advanced composition, at a small delta
