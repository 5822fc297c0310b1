"""What is claimed of property inference: claims hold, fail and stay undecided by their rows."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.reproduced import Claim, Decision, Estimate, Key, Row, Rows, Value
from coterie.recipes.property_inference.claims import (
    above,
    active_claims,
    controls_at_chance,
    figure_claims,
    found_beyond_placebo,
    in_one_sentence,
    own_claims,
    passive_claims,
    private_claims,
    regularised_claims,
)
from coterie.recipes.property_inference.entries import (
    CONTRAST,
    MAIN_TASK,
    OVER_ALL,
    PUBLISHED,
    STEADINESS,
    WITHIN,
    label,
)

HOLDS, FAILS, UNDECIDED = Decision.HOLDS, Decision.FAILS, Decision.UNDECIDED


def around(value: float, spread: float = 0.01) -> Estimate:
    """Of three seeds; its interval reaches 2.5 times the spread to either side."""
    return Estimate.over({0: value - spread, 1: value, 2: value + spread})


def row(task: str, method: str, ours: Estimate, *, scoring: str = OVER_ALL, **controls: Estimate) -> Row:
    key = Key.of(task=task, method=method, clients=3, features=PUBLISHED, scoring=scoring)
    return Row(key, label(key), None, ours, controls)


def decisions(claims: Sequence[Claim]) -> list[Decision]:
    return [claim.decision for claim in claims]


def test_rows_are_compared_seed_by_seed() -> None:
    rows = Rows.of(
        [
            row("C", "CFL", Estimate.over({0: 0.61, 1: 0.72, 2: 0.83})),
            row("C", "FL", Estimate.over({0: 0.60, 1: 0.70, 2: 0.80})),  # intervals overlap; differences are above 0
            row("D", "CFL", around(0.55)),
            row("D", "FL", Estimate.over({0: 0.5, 1: 0.6, 2: 0.55})),
            row("E", "CFL", around(0.5)),
            row("E", "FL", around(0.6)),
        ]
    )
    compared = above(rows, "more", {"method": "CFL"}, {"method": "FL"})
    found = {claim.text: claim.decision for claim in compared}
    assert found == {
        "more (C CFL 3 clients, published reader)": UNDECIDED,
        "more (D CFL 3 clients, published reader)": UNDECIDED,
        "more (E CFL 3 clients, published reader)": FAILS,
    }
    steady = Rows.of([row("C", "CFL", around(0.75)), row("C", "FL", around(0.7))])
    assert decisions(above(steady, "more", {"method": "CFL"}, {"method": "FL"})) == [HOLDS]
    assert decisions(in_one_sentence("in all", compared)) == [FAILS]
    assert decisions(in_one_sentence("in all", compared[:2])) == [UNDECIDED]
    assert decisions(in_one_sentence("in all", above(steady, "more", {"method": "CFL"}, {"method": "FL"}) * 2)) == [
        HOLDS
    ]
    assert in_one_sentence("in all", compared[:1]) == []


def test_fl_has_one_cluster_to_be_compared_with() -> None:
    rows = Rows.of([row("C", "CFL", around(0.8), scoring=WITHIN), row("C", "FL", around(0.6))])
    claims = [claim for claim in passive_claims(rows) if claim.text.startswith("CFL leaks more")]
    assert decisions(claims) == [HOLDS]


def test_a_placebo_may_explain_all() -> None:
    far = Rows.of([row("C", "CFL", around(0.8), placebo=around(0.5))])
    assert decisions(found_beyond_placebo(far)) == [HOLDS]
    near = Rows.of([row("C", "CFL", around(0.8), placebo=Estimate.over({0: 0.75, 1: 0.85, 2: 0.8}))])
    assert decisions(found_beyond_placebo(near)) == [UNDECIDED]
    beaten = Rows.of([row("C", "CFL", around(0.7), placebo=around(0.8))])
    assert decisions(found_beyond_placebo(beaten)) == [FAILS]
    assert found_beyond_placebo(Rows.of([row("C", "CFL", around(0.7))])) == []


def test_one_of_many_comparisons_is_not_found_by_accident() -> None:
    """Three seeds 0.02, 0.03 and 0.04 above: beyond 0 alone, and not among twenty."""
    lucky, flat = Estimate.over({0: 0.62, 1: 0.63, 2: 0.64}), Estimate.over({0: 0.6, 1: 0.6, 2: 0.6})
    alone = [row("C", "CFL", lucky, placebo=flat)]
    same = [
        row(f"D{number}", "CFL", around(0.6), placebo=Estimate.over({0: 0.6, 1: 0.59, 2: 0.61})) for number in range(19)
    ]
    rows = Rows.of([*alone, *same])
    assert decisions(found_beyond_placebo(Rows.of(alone))) == [HOLDS]
    assert decisions(found_beyond_placebo(rows)) == [UNDECIDED]


def controlled(*controls: Estimate, method: str = "FL") -> Rows:
    return Rows.of(row(f"T{number}", method, around(0.7), absent=one) for number, one in enumerate(controls))


def test_controls_score_chance_as_often_as_chance_would() -> None:
    fine, off = around(0.5), Estimate(0.56, 0.51, 0.61, by_seed={0: 0.54, 1: 0.56, 2: 0.58})
    assert decisions(controls_at_chance(controlled(fine, fine))) == [HOLDS]
    claim = controls_at_chance(controlled(off))[0]
    assert claim.decision is FAILS
    assert "absent" in claim.evidence
    # Of twenty true intervals, more than two miss in 8 % of tables and more than three in 2 %: three are allowed.
    assert [controls_at_chance(controlled(*[off] * bad, *[fine] * (20 - bad)))[0].decision for bad in (3, 4)] == [
        HOLDS,
        FAILS,
    ]
    # One of four misses by so much that no multiplicity excuses it.
    assert decisions(controls_at_chance(controlled(around(0.7), fine, fine, fine))) == [FAILS]
    assert decisions(controls_at_chance(controlled(Estimate(0.5)))) == [UNDECIDED]  # one seed
    # A control that only tells clusters apart is off as published and at chance within clusters.
    pooled = row("C", "CFL", around(0.7), placebo=around(0.7))
    within = row("C", "CFL", around(0.7), scoring=WITHIN, placebo=fine)
    assert decisions(controls_at_chance(Rows.of([pooled, within]))) == [HOLDS, FAILS]


def test_a_defence_is_judged_at_chance_by_the_attack_alone() -> None:
    def private(method: str, ours: Estimate, **more: Value) -> Row:
        key = Key.of(task="C", method=method, clients=5, attack="passive", gamma=0.0, defence="DP-SGD", strength=0.5)
        return Row(key.but(**more), label(key), None, ours)

    ours = {"features": CONTRAST, "scoring": OVER_ALL}
    undefended: dict[str, Value] = {"measure": MAIN_TASK, "defence": "none", "strength": 0.0}
    rows = Rows.of(
        [
            private("CFL", around(0.51), features=PUBLISHED, scoring=OVER_ALL),
            private("CFL", around(0.7), **ours),
            private("FL", Estimate(0.5), **ours),
            private("CFL", around(0.7), measure=MAIN_TASK),
            private("FL", around(0.8), measure=MAIN_TASK),
            private("CFL", around(0.9), **undefended),  # it loses 0.2,
            private("FL", around(0.85), **undefended),  # and this one 0.05, from less to more
        ]
    )
    assert decisions(private_claims(rows)) == [HOLDS, FAILS, UNDECIDED, FAILS]


def test_stronger_attacks_and_defences_may_do_nothing() -> None:
    def attacked(attack: str, gamma: float, value: float, method: str = "CFL") -> Row:
        key = Key.of(task="C", method=method, clients=3, attack=attack, gamma=gamma, features=CONTRAST, scoring=WITHIN)
        return Row(key, label(key), None, around(value))

    rows = [
        attacked("passive", 0.0, 0.8),
        attacked("active", 1.0, 0.7),
        attacked("active", 1.0, 0.6, "FL"),
        attacked("scaled", 5.0, 0.75),
    ]
    assert decisions(active_claims(Rows.of(rows))) == [HOLDS, FAILS, HOLDS]  # than active, than passive; CFL than FL

    def defended(defence: str, strength: float, value: float) -> Row:
        key = Key.of(task="C", method="CFL", clients=3, defence=defence, strength=strength, features=CONTRAST)
        return Row(key, label(key), None, around(value))

    rows = [defended("none", 0.0, 0.8), defended("dropout", 0.1, 0.9), defended("penalty", 0.02, 0.4)]
    assert decisions(regularised_claims(Rows.of(rows))) == [HOLDS, FAILS, FAILS]  # the last: not each of them


def test_steadier_aggregates_and_own_uploads_are_compared_by_seed() -> None:
    def steady(method: str, measure: str, value: float) -> Row:
        key = Key.of(task="C", method=method, clients=5, measure=measure)
        return Row(key, f"{method} {measure}", None, around(value))

    rows = [
        steady(method, measure, value)
        for method, measure, value in (
            ("FL", STEADINESS, 0.3),
            ("CFL", STEADINESS, 0.9),
            ("FL", "neighbours", 0.6),
            ("CFL", "neighbours", 0.5),
        )
    ]
    assert decisions(figure_claims(Rows.of(rows))) == [HOLDS, HOLDS, HOLDS, FAILS]
    back = [steady("FL", STEADINESS, -0.3), steady("CFL", STEADINESS, 0.01)]
    assert decisions(figure_claims(Rows.of(back))) == [FAILS, UNDECIDED, HOLDS]  # an oscillation is no agreement
    own = [
        Row(Key.of(task="C", method="CFL", clients=3, own=own), own, None, around(value))
        for own, value in (("taken out", 0.9), ("left in", 0.7))
    ]
    assert decisions(own_claims(Rows.of(own))) == [HOLDS]
