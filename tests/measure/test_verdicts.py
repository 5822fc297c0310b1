"""One word for each verdict; and the law that nothing is called safe for being uncertain."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from coterie.audit.evidence import Evidence
from coterie.measure.claims import Promise, judge_guarantee
from coterie.measure.findings import AuditResult, Finding, over_seeds, strongest, telling
from coterie.measure.headline import as_launched, together
from coterie.measure.intervals import Interval, Sample, difference, proportion
from coterie.measure.judge import judge_scores
from coterie.measure.plain import from_plain, to_plain
from coterie.measure.verdicts import POWER, SIZE, Decision, Verdict, decide
from coterie.privacy.accounting import guarantee_of
from coterie.privacy.guarantee import Level, Trust
from coterie.report.html import render
from coterie.report.junit import junit_xml
from coterie.report.terminal import show

SAFE = ("no leak", "no more than chance", "less than 10% of a complete leak", "bounded: less", "no defence is needed")
"""What says that one is safe. The reports' legends explain the words, so "bounded" alone is no such thing."""


def finding(*runs: Sample, chance: float = 0.5) -> Finding:
    return over_seeds([replace(Finding.of("a", "share", run, chance, "clients", ""), family="f") for run in runs])


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(1.0, 0.83, 1.0), Verdict.LEAKS),
        (Interval(0.51, 0.501, 0.52), Verdict.LEAKS),
        (Interval(0.51, 0.49, 0.549), Verdict.BOUNDED),
        (Interval(0.48, 0.46, 0.495), Verdict.BOUNDED),
        (Interval(0.41, 0.3, 0.52), Verdict.UNDECIDED),
        (Interval(0.3, 0.2, 0.4), Verdict.UNDECIDED),  # turned round it would be a leak
        (Interval(0.51, 0.49, 0.56), Verdict.UNDECIDED),
        (Interval(0.9, 0.5, 1.0), Verdict.UNDECIDED),
        (Interval.unknown(1.0), Verdict.UNDECIDED),
        (Interval.unknown(0.2), Verdict.UNDECIDED),
        (Interval.unknown(math.nan), Verdict.NOT_SCORED),
    ],
)
def test_verdicts(interval: Interval, verdict: Verdict) -> None:
    assert decide(interval, 0.5, 1.0, 100, 3).verdict is verdict


def test_a_bound_says_its_size() -> None:
    decision = decide(Interval(0.51, 0.49, 0.54), 0.5, 1.0, 100, 3)
    assert decision == Decision(Verdict.BOUNDED, SIZE)
    assert decision.in_words("clients") == "bounded: less than 10% of a complete leak"


def test_what_lies_below_chance_and_above_its_control_is_not_bounded() -> None:
    """Three in four clients are of one group, and an attack tells either group in 65 of 100; at random it were 54."""
    attack, control = Sample.share(650, 1000), Sample.share(540, 1000)
    alone = finding(attack, chance=0.75)
    assert alone.verdict is Verdict.BOUNDED
    beside = replace(alone, control_runs=(control,))
    assert beside.decision == Decision(Verdict.UNDECIDED, beneath=True)
    assert "more than its control" in beside.decision.in_words("clients")
    assert replace(alone, control_runs=(attack,)).verdict is Verdict.BOUNDED


def test_where_there_is_nothing_to_learn_nothing_is_decided() -> None:
    """One cluster: whoever is in it holds all models there are, and nobody is called safe for it."""
    one = finding(Sample.share(1, 1), chance=1.0)
    assert one.verdict is Verdict.UNDECIDED
    assert math.isnan(one.leakage)


def test_the_power_that_is_stated_is_there() -> None:
    """With as many more units as are named, an audit decides in about 4 of 5 tries; Clopper and Pearson ask for more.

    At a share of 0.6 over 60 units, 50 of which more are asked for. The chances are exact sums over the binomial.
    """
    from scipy.stats import binom

    few = finding(Sample.share(36, 60))
    assert few.verdict is Verdict.UNDECIDED
    units = 60 + int(few.decision.more_units)
    decided = sum(
        float(binom.pmf(right, units, 0.6))
        for right in range(units + 1)
        if finding(Sample.share(right, units)).verdict is not Verdict.UNDECIDED
    )
    assert decided == pytest.approx(POWER, abs=0.06)
    assert few.decision.in_words("clients").startswith("undecided: about ")


def test_what_no_number_decides_says_so() -> None:
    far = decide(Interval(0.5000001, 0.4, 0.6), 0.5, 0.5000002, 100, 3)
    assert far.more_seeds == math.inf
    assert "within reach" in far.remedy("clients")
    assert "more seeds" in decide(Interval.unknown(0.9), 0.5, 1.0, 1, 1).remedy("clients")


def test_a_family_is_judged_by_its_strongest_word() -> None:
    leaks, open_, bounded = (
        finding(Sample.share(40, 40)),
        finding(Sample.share(6, 10)),
        finding(Sample.share(500, 1000)),
    )
    lost = replace(leaks, interval=Interval.unknown(math.nan))
    assert telling([bounded, open_, leaks, lost]) is leaks
    assert telling([bounded, lost, open_]) is open_
    assert telling([lost, bounded]) is lost  # what it would have scored, nobody knows
    assert strongest([lost]) is None
    assert strongest([bounded, replace(leaks, control=True)]) is bounded


# -- the law ---------------------------------------------------------------------------------------------------------

scores = st.floats(0, 1)


@st.composite
def audits(draw: st.DrawFn) -> AuditResult:
    """Up to four findings, of which some have no interval, in up to two families."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        units = draw(st.integers(1, 200))
        runs = [Sample.share(draw(st.integers(0, units)), units) for _ in range(draw(st.integers(1, 3)))]
        one = finding(*runs, chance=draw(st.floats(0.01, 0.9)))
        if draw(st.booleans()):
            one = replace(one, interval=Interval.unknown(one.score))
        found.append(replace(one, family=f"family {number % 2}", attack=f"attack {number}", adversary="server"))
    return AuditResult("t", {}, found, [], recorded=draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(audits())
def test_no_score_above_chance_is_called_safe_without_an_interval_that_bounds_it(result: AuditResult) -> None:
    for one in result.findings:
        bounding = one.interval.is_known and one.interval.high <= one.chance + SIZE * (one.perfect - one.chance)
        assert (one.verdict is Verdict.BOUNDED) <= bounding
    assume(all(one.verdict is not Verdict.BOUNDED for one in result.findings))
    out = io.StringIO()
    show(result, Console(file=out, width=200))
    texts = {
        "headline": result.headline,
        "sentences": " ".join(one.sentence for one in result.findings),
        "terminal": out.getvalue(),
        "page": render(result),
        "JSON": result.to_json(),
        "JUnit": junit_xml(result),
    }
    for where, text in texts.items():
        for words in SAFE:
            assert words not in text.lower(), where


@settings(max_examples=60, deadline=None)
@given(audits())
def test_everybody_says_the_same_word(result: AuditResult) -> None:
    values = json.loads(result.to_json())
    assert [row["decision"]["verdict"] for row in values["findings"]] == [one.verdict.value for one in result.findings]
    for family, one in together(result.findings).items():
        word = one.verdict
        sentence = next(part for part in result.headline.split(". ") if family in part)
        said = {Verdict.LEAKS: "federation leaks", Verdict.UNDECIDED: "is undecided", Verdict.BOUNDED: "less than"}
        assert said[word] in sentence.lower()


def test_two_seeds_of_which_nothing_is_known_are_undecided_and_not_safe() -> None:
    one = finding(Sample.average([0.9], 0, 1), Sample.average([0.8], 0, 1))
    assert one.interval.ends == pytest.approx((0.0238, 1.0), abs=1e-3)
    assert one.verdict is Verdict.UNDECIDED
    assert "undecided" in AuditResult("t", {}, [one], []).headline


def named(family: str, *runs: Sample, **more: Any) -> Finding:
    return replace(finding(*runs), family=family, adversary="server", **more)


def test_the_headline_is_of_what_is_launched_and_stress_tests_stand_apart() -> None:
    leaks, open_, bounded = Sample.share(40, 40), Sample.share(6, 10), Sample.share(500, 1000)
    found = [
        named("members", leaks),
        named("members", bounded, defence="noise"),
        named("profiles", leaks),
        named("properties", leaks, stress=True),
        named("properties", open_, stress=True, defence="noise"),
    ]
    result = AuditResult("t", {}, found, [], launched="noise")
    assert as_launched(result) == [found[1], found[2]]  # the defence has no place in profiling, and that leaks
    said = result.headline
    assert "As configured, under noise, this federation leaks to 1 kind of attack (profiles)." in said
    assert "Less than 10% of a complete leak is learnt by 1 kind of attack (members)." in said
    assert "Without a defence it leaks to 2 kinds of attack (members, profiles)." in said
    assert "Stress tests, of a federation that was changed for them: undecided (properties)." in said
    bare = replace(result, findings=found[3:4], launched="none").headline
    assert bare.startswith("No attack was run on the federation as configured.")
    assert "federation leaks" not in bare


def test_the_more_attacks_there_are_the_surer_a_leak_must_be() -> None:
    one = named("members", Sample.share(62, 100))
    assert one.verdict is Verdict.LEAKS
    assert together([one])["members"].verdict is Verdict.LEAKS
    many = [one, *(named("others", Sample.share(50, 100)) for _ in range(19))]
    assert together(many)["members"].verdict is Verdict.UNDECIDED
    assert one.among(20).interval.ends == proportion(62, 100, 1 - 0.05 / 20).ends


def test_twenty_attacks_on_nothing_are_a_headline_in_at_most_five_of_a_hundred_audits() -> None:
    """By more than 10 of 200 audits at a rate of 5 % at most, a true algebra fails once in 90; simulated ones pass."""
    draws = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        found = [named(f"family {n}", Sample.share(int(draws.binomial(100, 0.5)), 100)) for n in range(20)]
        alarms += any(one.verdict is Verdict.LEAKS for one in together(found).values())
    assert alarms <= 10


def test_a_leak_that_its_control_finds_as_well_is_none() -> None:
    attack = named("members", Sample.share(70, 100))
    assert replace(attack, control_runs=[Sample.share(50, 100)]).verdict is Verdict.LEAKS
    fooled = replace(attack, control_runs=[Sample.share(60, 100)])
    assert fooled.verdict is Verdict.UNDECIDED
    assert fooled.beyond is not None
    assert fooled.beyond.low < 0 < fooled.beyond.estimate == pytest.approx(0.1)
    assert "not known to find more than its control does" in fooled.sentence


def test_a_control_that_says_the_same_of_all_hides_no_leak() -> None:
    """A perfect attack, or a release without noise, leaves it nothing to say: that it finds nothing is certain."""
    told, same = np.repeat([1.0, 0.0], 20), np.zeros(40)
    answers = told == 1.0
    attack, control = (judge_scores(scores, answers, [None] * 40, "a", "all", "records") for scores in (told, same))
    (silent,) = control.runs
    assert silent.silent
    assert not attack.runs[0].silent
    assert not Sample.unknown().silent
    assert replace(attack, control_runs=(silent,)).verdict is Verdict.LEAKS
    beside = replace(over_seeds([attack, attack]), control_runs=(silent, attack.runs[0]))
    assert beside.verdict is Verdict.UNDECIDED  # in the second seed it finds as much
    assert difference([silent], [silent]).low < 0  # who is silent beside it has still found nothing


def test_what_was_scored_in_any_seed_has_no_reason_not_to_be() -> None:
    """Tables leave out what has one, and a rate may have too few non-members in the first seed alone."""
    scored = Finding.of("a", "rate", Sample.share(9, 10), 0.01, "records", "")
    few = Finding.unscored("a", "rate", 0.01, "", "too few non-members")
    assert over_seeds([few, scored]).verdict is Verdict.LEAKS
    assert over_seeds([few, scored]).why_not == over_seeds([scored, few]).why_not == ""
    assert over_seeds([few, few]).why_not == "too few non-members"
    assert not over_seeds([few, Finding.unscored("a", "rate", 0.01, "")]).nothing_there  # of one nobody knows


def test_a_control_is_compared_seed_by_seed() -> None:
    """Both rise and fall together from seed to seed: the difference is steady, and the scores are not."""
    ours, theirs = [Sample.share(90, 100), Sample.share(70, 100)], [Sample.share(70, 100), Sample.share(50, 100)]
    assert difference(ours, theirs).low > 0.1
    crossed = difference(ours, theirs[::-1])
    assert crossed.estimate == pytest.approx(0.2)
    assert crossed.low < 0
    assert math.isnan(difference([Sample.unknown()], [Sample.share(1, 2)]).estimate)


def test_the_same_clients_in_every_seed_count_once() -> None:
    runs = [Finding.of("a", "share", Sample.share(14, 20), 0.5, "clients", "") for _ in range(3)]
    anew, same = over_seeds(runs), over_seeds(runs, repeated=True)
    assert anew.verdict is Verdict.LEAKS
    assert same.interval.ends == runs[0].interval.ends
    assert same.verdict is Verdict.UNDECIDED
    assert "more clients would decide, and more seeds of the same would not" in same.sentence
    assert math.isnan(same.decision.more_seeds)
    assert not math.isnan(same.decision.more_units)
    one = over_seeds(runs[:1], repeated=True)  # one seed, and another would have the same
    assert "more seeds of the same would not" in one.sentence
    assert one.decision.more_units == same.decision.more_units


def test_the_power_of_a_finding_is_what_it_would_have_seen() -> None:
    """At the score that is named, four of five samples of this size lie above chance."""
    one = named("members", Sample.share(100, 200))
    draws = np.random.default_rng(6)
    rights = draws.binomial(200, 0.5 + one.detectable / 2, size=2000)
    seen = np.mean([named("members", Sample.share(int(right), 200)).verdict is Verdict.LEAKS for right in rights])
    assert 0.75 < seen < 0.85


# -- plain values ----------------------------------------------------------------------------------------------------


def test_a_promise_survives_its_plain_form() -> None:
    said = judge_guarantee(guarantee_of([GaussianDpEvent(2.0)], 1e-5, Level.RECORD, Trust.LOCAL_NOISE, 1.0), [])
    assert from_plain(Promise, json.loads(json.dumps(to_plain(said)))) == said


def test_evidence_survives_its_plain_form() -> None:
    draws = np.random.default_rng(0)
    one = judge_scores(draws.random(40), np.arange(40) < 20, [None] * 40, "a", "all", "records")
    one = replace(one, by_round=((1, 0.5), (2, 0.7)))
    evidence = Evidence([one], "k-means cost", Sample.average([3.0], 0.0, math.inf), 1.0, 2.0, 3.0)
    text = json.dumps(to_plain(evidence), allow_nan=False)
    again = from_plain(Evidence, json.loads(text))
    assert json.dumps(to_plain(again), allow_nan=False) == text
    (back,) = again.findings
    assert (back.interval, back.roc and back.roc.area, back.operating) == (
        one.interval,
        one.roc and one.roc.area,
        one.operating,
    )
    assert back.by_round == one.by_round
    assert over_seeds([back, back]).interval == over_seeds([one, one]).interval
    assert again.utility.most == math.inf
    assert math.isnan(again.utility.spread)


def test_what_nobody_said_of_defences_is_not_said() -> None:
    """Judged by hand a finding knows of no defence, and may well come of a defended run."""
    by_hand = Finding.of("guess", "accuracy", Sample.share(9, 10), 0.5, "clients", "nothing")
    audited = replace(by_hand, family="profiling")
    assert "defence" not in by_hand.sentence
    assert "(accuracy; chance 0.500) without a defence: it leaks" in audited.sentence
    assert "(accuracy; chance 0.500) under dropout" in replace(by_hand, defence="dropout").sentence
