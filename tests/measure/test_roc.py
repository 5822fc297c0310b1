"""ROC curves by hand, and the law that their area is the score beside them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from coterie.attacks.base import Suspicions
from coterie.errors import InvalidInput
from coterie.measure.findings import over_seeds
from coterie.measure.judge import YesNo, judge
from coterie.measure.roc import MOST_POINTS, RATES, Curve, stratified


def test_a_curve_by_hand() -> None:
    curve = Curve.of(np.array([0.9, 0.6, 0.6, 0.1]), np.array([True, True, False, False]))
    assert (list(curve.false), list(curve.true)) == ([0, 0, 0.5, 1], [0, 0.5, 1, 1])
    assert curve.area == 0.875
    with pytest.raises(InvalidInput, match="must have ends"):
        Curve([0], [0])


def test_a_curve_is_scikit_learn_s() -> None:
    draws = np.random.default_rng(0)
    scores, answers = draws.integers(0, 30, 200) / 30, draws.random(200) < 0.3
    curve = Curve.of(scores, answers)
    false, true, _ = roc_curve(answers, scores, drop_intermediate=False)
    assert np.allclose(curve.false, false)
    assert np.allclose(curve.true, true)
    assert curve.area == pytest.approx(float(roc_auc_score(answers, scores)))


def test_an_average_is_taken_upright() -> None:
    """At any rate of false positives, the mean of the rates of true ones, on upright pieces at both of their ends."""
    perfect, guess = Curve([0, 0, 1], [0, 1, 1]), Curve([0, 1], [0, 1])
    mean = Curve.average([perfect, guess], [1.0, 1.0])
    assert mean.area == pytest.approx(0.75)
    assert (mean.false[:2], mean.true[:2]) == ([0.0, 0.0], [0.0, 0.5])
    assert Curve.average([perfect, guess], [3.0, 1.0]).area == pytest.approx(0.875)


observed = st.lists(
    st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 2)), min_size=6, max_size=60
)  # score, answer, stratum


@given(st.lists(observed, min_size=1, max_size=3))
def test_the_area_is_the_score_over_strata_and_seeds(seeds: list[list[tuple[int, bool, int]]]) -> None:
    findings = []
    for seed in seeds:
        scores = Suspicions({number: float(score) for number, (score, _, _) in enumerate(seed)})
        answers: dict[Hashable, bool] = {number: answer for number, (_, answer, _) in enumerate(seed)}
        findings.append(judge(scores, YesNo(answers, {number: group for number, (_, _, group) in enumerate(seed)})))
    for finding in (*findings, over_seeds(findings)):
        if finding.roc is not None:
            assert finding.roc.area == pytest.approx(finding.score, abs=1e-12)


def test_pooled_scores_would_draw_another_area() -> None:
    """Two clusters whose scores are shifted: within each the attack is perfect, over both it is not."""
    scores = np.array([1.0, 2.0, 11.0, 12.0])
    answers = np.array([False, True, False, True])
    run, curve = stratified(scores, answers, [0, 0, 1, 1])
    assert curve is not None
    assert run.mean == curve.area == 1.0
    assert Curve.of(scores, answers).area == 0.75


@pytest.mark.parametrize("apart", [0.0, 0.5, 2.0, 20.0])
def test_thinning_keeps_area_ends_and_low_rates(apart: float) -> None:
    draws = np.random.default_rng(1)
    answers = np.arange(6000) < 2000
    whole = Curve.of(draws.normal(0, 1, 6000) + apart * answers, answers)
    thin = whole.thinned()
    assert len(thin.false) <= MOST_POINTS
    assert thin.area == pytest.approx(whole.area, abs=1e-12)
    assert (thin.false[0], thin.true[0], thin.false[-1], thin.true[-1]) == (0, 0, 1, 1)
    assert np.all(np.diff(thin.false) >= 0)
    assert np.all(np.diff(thin.true) >= 0)
    assert [thin.at(rate) for rate in RATES] == [whole.at(rate) for rate in RATES]
    assert thin.thinned() is thin


def test_rates_at_low_false_positives() -> None:
    curve = Curve([0.0, 0.005, 0.02, 1.0], [0.0, 0.2, 0.4, 1.0])
    assert curve.at(0.01) == 0.2
    assert curve.at(0.02) == 0.4
    assert curve.at(0.001) == 0.0


def test_without_both_answers_there_is_no_curve() -> None:
    run, curve = stratified(np.array([0.1, 0.2]), np.array([True, True]), [None, None])
    assert np.isnan(run.mean)
    assert curve is None
