"""What paper 000 says of its tables, and what must hold of any attack: claims on rows by key.

Runs of one seed have the same data, dealt in the same way, so rows are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy.stats import binom

from coterie.measure.intervals import CONFIDENCE
from coterie.measure.reproduced import Claim, Decision, Estimate, Row, Rows, Value
from coterie.recipes.property_inference.entries import (
    ABSENT,
    CHANCE,
    CONTRAST,
    MAIN_TASK,
    OVER_ALL,
    PLACEBO,
    PUBLISHED,
    STEADINESS,
    WITHIN,
)

Part = Mapping[str, Value]  # of a key
PASSIVE: Part = {"attack": "passive", "gamma": 0.0}
ACTIVE: Part = {"attack": "active", "gamma": 1.0}
SCALED: Part = {"attack": "scaled"}


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
        *contrast_finds_more(rows),
    ]


def active_claims(rows: Rows) -> list[Claim]:
    """Section 4.3: scaling up is better than not, whichever gamma; and the active attack finds more on CFL than on FL.

    (That the active attack is better than the passive one, the paper does not say: in its own tables it is in 4 of 12.)
    """
    better = {
        text: [claim for gamma in (5.0, 10.0) for claim in above(rows, text, {**SCALED, "gamma": gamma}, other)]
        for text, other in (
            ("scaling up is better than not", ACTIVE),
            ("scaling up is better than looking on", PASSIVE),
        )
    }
    clustered = above(rows, "the active attack finds more on CFL", {**ACTIVE, "method": "CFL"}, {"method": "FL"})
    return [
        *controls_at_chance(rows),
        *(claim for text, found in better.items() for claim in (*found, *in_one_sentence(text, found))),
        *clustered,
        *contrast_finds_more(rows),
    ]


def own_claims(rows: Rows) -> list[Claim]:
    text = "taking the own upload out finds more"
    found = above(rows, text, {"own": "taken out"}, {"own": "left in"})
    return [*found, *in_one_sentence(text, found)]


def regularised_claims(rows: Rows) -> list[Claim]:
    """Section 5.1: neither is a reliable defence. The attack stays above chance under each."""
    under = [row for row in rows if row.key.get("defence") in ("dropout", "penalty")]
    found = [Claim(f"the attack is above chance ({row.label})", row.ours.above(CHANCE), shown(row)) for row in under]
    return [
        *controls_at_chance(rows),
        *found,
        *in_one_sentence("dropout and L2 are no reliable defence: the attack is above chance under each", found),
    ]


def private_claims(rows: Rows) -> list[Claim]:
    """Section 5.2: at these sigmas every attack is at chance, and CFL loses less of its main task than FL."""
    attacked = [row for row in rows.where(defence="DP-SGD") if "features" in row.key]
    return [
        *controls_at_chance(rows),
        *(
            Claim(f"DP-SGD brings the attack to 0.5 ({row.label})", row.ours.covers(CHANCE), shown(row))
            for row in attacked
        ),
        *_loses_less(rows),
    ]


def _loses_less(rows: Rows) -> list[Claim]:
    claims = []
    for row, twin in rows.where(measure=MAIN_TASK, defence="DP-SGD").pairs({"method": "CFL"}, {"method": "FL"}):
        plain = [rows.get(one.key.but(defence="none", strength=0.0)) for one in (row, twin)]
        if plain[0] is None or plain[1] is None:
            continue
        ours, theirs = plain[0].ours.minus(row.ours), plain[1].ours.minus(twin.ours)
        difference = theirs.minus(ours)
        evidence = f"CFL loses {in_digits(ours)}, FL {in_digits(theirs)}: {in_digits(difference)} more"
        claims.append(Claim(f"CFL loses less of its main task than FL ({row.label})", difference.above(0), evidence))
    return claims


def figure_claims(rows: Rows) -> list[Claim]:
    """Section 4.4: consecutive aggregates point the same way (Figure 4), those of a cluster more than those of
    everybody, and the property shows clearer in them (Figure 2)."""
    alike = [
        Claim(f"consecutive aggregates point the same way ({row.label})", row.ours.above(0), shown(row))
        for row in rows.where(measure=STEADINESS)
    ]
    steady = above(rows, "CFL's aggregates are steadier", {"method": "CFL", "measure": STEADINESS}, {"method": "FL"})
    clear = above(
        rows, "the property shows clearer on CFL", {"method": "CFL", "measure": "neighbours"}, {"method": "FL"}
    )
    return [*alike, *steady, *clear]


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


def contrast_finds_more(rows: Rows) -> list[Claim]:
    """Our reader against the published one, on the same runs."""
    text = "a contrast with what was imagined finds more than the published reader"
    found = above(rows, text, {"features": CONTRAST}, {"features": PUBLISHED})
    return [*found, *in_one_sentence(text, found)]


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
