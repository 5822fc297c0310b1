"""Scores by hand, intervals that hold what they promise, and truths that are needed."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import pytest

from coterie.attacks.base import Attributions, Suspicions
from coterie.errors import InvalidInput
from coterie.measure.findings import Finding, over_seeds
from coterie.measure.intervals import proportion
from coterie.measure.judge import Labels, YesNo, judge, over_victims
from coterie.measure.operating import operating_point
from coterie.measure.roc import Curve
from coterie.measure.verdicts import Verdict


def test_auc_by_hand() -> None:
    guess = Suspicions({"a": 0.9, "b": 0.4, "c": 0.6, "d": 0.1})
    truth = YesNo({"a": True, "b": True, "c": False, "d": False, "unasked": True})
    finding = judge(guess, truth, "some attack", knew="a lot")
    assert finding.score == 0.75  # of the four pairs, only (b, c) is the wrong way round
    assert finding.units == 4
    assert finding.knew == "a lot"
    assert "some attack scores 0.750" in str(finding).lower()


def test_who_says_the_same_of_all_bounds_nothing() -> None:
    """An attack that is silent, because it saw nothing or broke inside, is no evidence of safety."""
    truth = YesNo({number: number % 2 == 0 for number in range(1000)})
    silent = over_seeds([judge(Suspicions(dict.fromkeys(range(1000), 0.0)), truth)] * 3)
    assert silent.score == 0.5
    assert silent.verdict is Verdict.UNDECIDED
    assert "the same of all" in silent.sentence
    assert silent.among(20).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    guess = Suspicions({"a": 0.1, "b": score, "c": 0.3})
    with pytest.raises(InvalidInput, match="rank nobody"):
        judge(guess, YesNo({"a": True, "b": False, "c": False}))


def test_where_guessing_tells_all_nothing_is_bounded() -> None:
    """One group to choose from: whoever says it is right, and has learnt nothing."""
    one = judge(Attributions(dict.fromkeys(range(40), 0)), Labels(dict.fromkeys(range(40), 0), 1))
    assert one.verdict is Verdict.UNDECIDED
    assert "nothing to tell apart" in one.sentence


def test_a_curve_over_victims_has_the_score_as_its_area() -> None:
    """However many rounds each was seen in, and though nothing could be told of one of them."""
    draws = np.random.default_rng(3)
    victims = []
    for count, shift in ((90, 2.0), (10, 0.0), (4, 0.0)):
        answers: dict[Hashable, bool] = {number: number % 2 == 0 and count > 4 for number in range(count)}
        scores: dict[Hashable, float] = {one: float(draws.normal() + shift * yes) for one, yes in answers.items()}
        victims.append(judge(Suspicions(scores), YesNo(answers)))
    seeds = [over_victims(victims), over_victims(victims[:1])]
    for found in (*seeds, over_seeds(seeds)):
        assert found.roc is not None
        assert found.roc.area == pytest.approx(found.score)


@pytest.mark.parametrize("spoken", [0, 4])
def test_an_attack_that_broke_down_for_every_victim_bounds_nothing(spoken: int) -> None:
    """It says one thing of all but so many rounds, as one did whose numbers overflowed: all areas lie at one half."""
    draws, truth = np.random.default_rng(5), YesNo({number: number % 3 == 0 for number in range(24)})

    def victim(said: int) -> Finding:
        return judge(Suspicions({number: draws.random() if number < said else 0.5 for number in range(24)}), truth)

    runs = [over_victims([victim(spoken) for _ in range(80)]) for _ in range(3)]
    for found in (runs[0], over_seeds(runs)):
        assert found.verdict is Verdict.UNDECIDED
        assert "says the same of all" in found.sentence
        assert found.roc is not None
        assert found.roc.area == pytest.approx(found.score, abs=0.01)
    told = [over_victims([victim(24) for _ in range(80)] + [victim(spoken)] * 40) for _ in range(3)]
    assert [one.units for one in told] == [80] * 3  # of the others it said nothing, and they are no units
    mixed, alone = over_seeds([told[0], runs[0], told[1]]), over_seeds(told[:2])
    assert mixed.interval == alone.interval  # a seed in which it was silent does not make others surer


def test_ties_are_what_a_curve_cuts_aslant() -> None:
    answers = np.array([True, True, False, False])
    assert Curve.of(np.array([1.0, 2.0, 3.0, 4.0]), answers).tied == 0.0
    assert Curve.of(np.array([1.0, 1.0, 1.0, 1.0]), answers).tied == 1.0
    assert Curve.of(np.array([1.0, 2.0, 1.0, 0.0]), answers).tied == 0.25  # one pair of four


def test_rounds_of_one_victim_are_one_unit() -> None:
    """A coin whose areas spread from run to run, as those of a federation do, beyond what 90 rounds explain.

    Judged by rounds, 3 seeds raise a false alarm more than twice as often as the 2.5 % that an interval has above it.
    With at most 4 % of 400 games the rule by victims passes if its rate is 2.5 % (0.972 of the time).
    """
    draws = np.random.default_rng(12)
    by_rounds = by_victims = 0
    truth = YesNo({number: number % 3 == 0 for number in range(90)})
    answers = np.array([truth.answers[number] for number in range(90)])
    for _ in range(400):
        seeds = []
        for _ in range(3):
            shifts = draws.normal(0, 0.35, 3)
            scores = [draws.normal(size=90) + shift * answers for shift in shifts]
            seeds.append([judge(Suspicions(dict(enumerate(one.tolist()))), truth) for one in scores])
        by_rounds += over_seeds([seed[0] for seed in seeds]).verdict is Verdict.LEAKS
        by_victims += over_seeds([over_victims(seed) for seed in seeds]).verdict is Verdict.LEAKS
    assert by_rounds > 20
    assert by_victims <= 16


def test_pairs_across_strata_do_not_count() -> None:
    """A score that only says which cluster it is scores 1 without strata and 0.5 with them."""
    keys = [(round, slot) for round in range(20) for slot in (0, 1)]
    answers: dict[Hashable, bool] = {(round, slot): slot == 1 and round % 2 == 0 for round, slot in keys}
    guess = Suspicions({key: float(key[1]) for key in keys})
    assert judge(guess, YesNo(answers)).score > 0.8
    assert judge(guess, YesNo(answers, {key: key[1] for key in keys})).score == 0.5


def test_an_auc_interval_covers_chance_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0)
    answers = np.arange(60) % 3 == 0
    covered = 0
    truth = YesNo(dict(enumerate(answers.tolist())))
    for _ in range(400):
        covered += 0.5 in judge(Suspicions(dict(enumerate(draws.random(60).tolist()))), truth).interval
    # Binomial(400, 0.95) is below 364 with probability under 1e-3; the interval may be wider than it need be.
    assert covered >= 364


def test_several_seeds_make_one_finding() -> None:
    truth = YesNo({number: number % 2 == 0 for number in range(40)})
    draws = np.random.default_rng(0)
    single = [
        judge(
            Suspicions(
                {
                    key: value + answer
                    for (key, answer), value in zip(truth.answers.items(), draws.random(40), strict=True)
                }
            ),
            truth,
        )
        for _ in range(3)
    ]
    together = over_seeds(single)
    assert (together.seeds, together.units) == (3, 120)
    assert together.score == pytest.approx(1.0)
    assert together.interval.low < 0.98  # 20 of 20 above 20 others, three times, is not certainty
    assert together.verdict is Verdict.LEAKS
    assert over_seeds(single[:1]).interval == single[0].interval


def test_the_operating_point_is_chosen_on_other_observations() -> None:
    answers = np.arange(400) % 4 == 0
    perfect = operating_point(answers * 1.0, answers)
    assert perfect is not None
    assert (perfect.accuracy, perfect.precision, perfect.recall, perfect.base_rate) == (1, 1, 1, 0.75)
    blind = operating_point(np.random.default_rng(0).random(400), answers)
    assert blind is not None
    assert 0.1 < blind.precision < 0.4  # a blind accusation holds as often as there is something to accuse of
    assert operating_point(np.zeros(3), np.array([True, False, False])) is None


def test_labels_are_judged_by_accuracy_over_clients() -> None:
    finding = judge(Attributions({1: 0, 2: 1, 3: 2}), Labels({1: 0, 2: 1, 3: 0}, choices=5))
    assert finding.score == pytest.approx(2 / 3)
    assert finding.chance == pytest.approx(2 / 3)  # two of three are 0, whoever says so of all
    assert finding.interval.ends == pytest.approx(proportion(2, 3).ends)
    assert finding.unit == "clients"


def test_what_cannot_be_judged_raises() -> None:
    with pytest.raises(InvalidInput, match="same rounds"):
        judge(Suspicions({1: 0.5}), YesNo({2: True}))
    with pytest.raises(TypeError, match="cannot be judged"):
        judge("a hunch", YesNo({2: True}))
    nothing = judge(Suspicions({1: 0.5, 2: 0.1}), YesNo({1: False, 2: False}))
    assert math.isnan(nothing.score)
    assert nothing.verdict is Verdict.NOT_SCORED
    assert over_seeds([nothing, nothing]).verdict is Verdict.NOT_SCORED
