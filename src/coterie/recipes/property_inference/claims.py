"""What paper 000 says of its tables, and what must hold of any attack: claims on rows by key.

Runs of one seed have the same data, dealt in the same way, so rows are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy.stats import binom

from coterie.measure.intervals import CONFIDENCE
from coterie.measure.reproduced import Claim, Decision, Estimate, Row, Rows, Value
from coterie.recipes.property_inference.entries import ABSENT, CHANCE, MAIN_TASK, OVER_ALL, PLACEBO, WITHIN

Part = Mapping[str, Value]  # of a key
PASSIVE: Part = {"attack": "passive", "gamma": 0.0}
ACTIVE: Part = {"attack": "active", "gamma": 1.0}
UNDEFENDED: Part = {"defence": "none", "strength": 0.0}


def passive_claims(rows: Rows) -> list[Claim]:
    text = "CFL leaks more than FL"
    pooled = above(rows, text, {"method": "CFL", "scoring": OVER_ALL}, {"method": "FL"})
    within = above(rows, text, {"method": "CFL", "scoring": WITHIN}, {"method": "FL", "scoring": OVER_ALL})
    return [
        *controls_at_chance(rows),
        *found_beyond_placebo(rows),
        *pooled,
        *within,
        *in_one_sentence(f"{text}, scored within clusters", within),
    ]


def active_claims(rows: Rows) -> list[Claim]:
    active = above(rows, "the active attack is better than the passive one", ACTIVE, PASSIVE)
    scaled = [
        claim
        for gamma in (5.0, 10.0)
        for claim in above(rows, "scaling up is better than not", {"attack": "scaled", "gamma": gamma}, ACTIVE)
    ]
    return [
        *controls_at_chance(rows),
        *active,
        *in_one_sentence("the active attack is better than the passive one", active),
        *scaled,
        *in_one_sentence("scaling up is better than not", scaled),
    ]


def regularised_claims(rows: Rows) -> list[Claim]:
    defences: Sequence[tuple[str, float]] = (("dropout", 0.1), ("dropout", 0.2), ("penalty", 0.01), ("penalty", 0.02))
    weaker = [
        above(rows, f"{name} {strength:g} lowers the attack", UNDEFENDED, {"defence": name, "strength": strength})
        for name, strength in defences
    ]
    return [*controls_at_chance(rows), *(claim for claims in weaker for claim in claims)]


def private_claims(rows: Rows) -> list[Claim]:
    attacked = [row for row in rows.where(defence="DP-SGD") if "features" in row.key]
    return [
        *controls_at_chance(rows),
        *(
            Claim(f"DP-SGD brings the attack to 0.5 ({row.label})", row.ours.covers(CHANCE), shown(row))
            for row in attacked
        ),
        *above(rows, "CFL keeps more utility than FL", {"method": "CFL", "measure": MAIN_TASK}, {"method": "FL"}),
    ]


# -- what several of them use -----------------------------------------------------------------------------------------


def controls_at_chance(rows: Rows) -> list[Claim]:
    """Of many 95 % intervals some miss 0.5 although it is true; the claim allows for as many as chance makes likely.

    It allows for none that misses still when all are widened to hold together.
    """
    clean: list[tuple[str, Estimate]] = []
    pooled: list[tuple[str, Estimate]] = []
    for row in rows:
        kind = clean if row.key.has(scoring=WITHIN) or not row.key.has(method="CFL") else pooled
        kind += [(f"{row.label}, {name}", row.values[name]) for name in (PLACEBO, ABSENT) if name in row.values]
    parts = (("within a cluster", clean), ("over all clusters, as published", pooled))
    return [_at_chance(f"the controls score 0.5, {which}", part) for which, part in parts if part]


def _at_chance(text: str, controls: Sequence[tuple[str, Estimate]]) -> Claim:
    decided = [one.covers(CHANCE) for _, one in controls]
    if Decision.UNDECIDED in decided:
        return Claim(
            text, Decision.UNDECIDED, f"{decided.count(Decision.UNDECIDED)} of {len(controls)} have no interval"
        )
    off = [(name, one) for name, one in controls if one.covers(CHANCE) is Decision.FAILS]
    by_chance = int(binom.ppf(CONFIDENCE, len(controls), 1 - CONFIDENCE))
    far = [name for name, one in off if one.among(len(controls)).covers(CHANCE) is Decision.FAILS]
    evidence = f"{len(off)} of {len(controls)} intervals miss 0.5, where up to {by_chance} would by chance"
    evidence += "".join(f"; {name} {in_digits(one)}{', by far' if name in far else ''}" for name, one in off)
    return Claim(text, Decision.of(len(off) <= by_chance and not far), evidence)


def found_beyond_placebo(rows: Rows) -> list[Claim]:
    """One of many comparisons is above by accident, so their intervals are widened to hold together."""
    beyond = [(row, row.ours.minus(row.values[PLACEBO])) for row in rows if PLACEBO in row.values]
    if not beyond:
        return []
    decided = [(row, difference.among(len(beyond)).above(0)) for row, difference in beyond]
    apart = [row for row, decision in decided if decision is Decision.HOLDS]
    evidence = "; ".join(f"{shown(row)} against placebo {in_digits(row.values[PLACEBO])}" for row in apart)
    return [
        Claim(
            "the attack is above its placebo for at least one combination, by intervals that hold together",
            Decision.some(decision for _, decision in decided),
            evidence or "no difference is above 0",
        )
    ]


def above(rows: Rows, claim: str, higher: Part, lower: Part) -> list[Claim]:
    """Whether every row of one kind beats its twin of the other kind."""
    claims = []
    for row, twin in rows.pairs(higher, lower):
        difference = row.ours.minus(twin.ours)
        decision = difference.above(0)
        evidence = f"{shown(row)} against {shown(twin)}: difference {in_digits(difference)}"
        claims.append(Claim(f"{claim} ({row.label})", decision, evidence))
    return claims


def in_one_sentence(text: str, claims: Sequence[Claim]) -> list[Claim]:
    """A claim over all comparisons of a table: it holds if each does, and fails if any is the other way round."""
    if len(claims) < 2:
        return []
    found = [claim.decision for claim in claims]
    held, other, open_ = (found.count(one) for one in (Decision.HOLDS, Decision.FAILS, Decision.UNDECIDED))
    counts = f"holds in {held} of {len(found)} comparisons, {other} are the other way round, {open_} undecided"
    return [Claim(text, Decision.every(found), counts)]


def shown(row: Row) -> str:
    return f"{row.label} {in_digits(row.ours)}"


def in_digits(one: Estimate) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
