"""What each defence costs, what it promises, and whether measurement contradicts the promise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.claims import Outcome
from coterie.measure.findings import AuditResult, ClaimVerdict, Defended
from coterie.report.markup import Html, element, join
from coterie.report.parts import grouped, measured, outcome_badge, row, section, table
from coterie.report.values import (
    UNDEFENDED,
    capital,
    defence_name,
    lower_bound,
    number,
    power,
    seconds,
    size,
)

COSTS = ("Defence", "Utility", "Against undefended", "Time", "Upload", "Peak memory")
CLAIMS = ("Defence", "Formal guarantee", "Trust model", "Measured", "Verdict", "Evidence")


def defences(result: AuditResult) -> Html:
    families = dict.fromkeys(one.family for one in result.defended)
    groups = [_costs(family, [one for one in result.defended if one.family == family]) for family in families]
    return section(
        "defences",
        "What the defences cost",
        "Time is for a round, or a run where there are no rounds; upload is for a client and round.",
        grouped("Cost of each defence, by kind of attack", COSTS, groups)
        if groups
        else element("p", "No defence was measured."),
        needs="tr[data-defence]",
    )


def _costs(family: str, found: Sequence[Defended]) -> Html:
    base = next((one.utility.value for one in found if one.defence == UNDEFENDED), math.nan)
    rows = []
    for one in found:
        change = one.utility.value - base
        against = "reference" if one.defence == UNDEFENDED else "+" + number(change) if change > 0 else number(change)
        cells = [
            defence_name(one.defence),
            join([f"{one.utility_measure} ", measured(one.utility)]),
            against,
            seconds(one.seconds),
            size(one.upload_bytes),
            size(one.memory_bytes),
        ]
        rows.append(row(COSTS, cells, data_family=family, data_defence=one.defence))
    title = element("tr", element("th", capital(family), colspan=len(COSTS), scope="rowgroup"), class_="group")
    return element("tbody", title, *rows, data_family=family, data_needs="tr[data-defence]")


def claims(result: AuditResult) -> Html:
    """A claim that several families meet is one row: the verdict of whichever measured something against it."""
    alike: dict[tuple[str, str, Outcome | None], list[Defended]] = {}
    for one in result.defended:
        key = (one.claim.claim, one.claim.outcome) if one.claim else ("", None)
        alike.setdefault((one.defence, *key), []).append(one)
    rows = [_claim(found) for found in alike.values()]
    return section(
        "claims",
        "Claims and verdicts",
        "A guarantee holds if it is proven and nothing measured contradicts it. Without a proof, the best that "
        "measurement can say is not refuted. A lower bound on epsilon above the claim is a violation.",
        table("Claims of privacy and what became of them", CLAIMS, rows)
        if rows
        else element("p", "Nothing is claimed."),
        needs="tbody tr",
    )


def _claim(found: Sequence[Defended]) -> Html:
    families = list(dict.fromkeys(row.family for row in found))
    one = next((row for row in found if row.claim and row.claim.lower_bound is not None), found[0])
    claim = one.claim
    formal = claim is not None and claim.proven and math.isfinite(claim.epsilon)
    cells = [
        join([defence_name(one.defence), element("span", ", ".join(families), class_="by")]),
        _statement(claim)
        if claim and formal
        else join([element("strong", "None"), element("span", _rest(claim) or "nothing is claimed", class_="by")]),
        claim.trust if claim else "–",
        join([lower_bound(claim), _gauge(claim) if claim else None]),
        outcome_badge(claim.outcome) if claim else "no claim to judge",
        element("ul", *[element("li", ground) for ground in claim.evidence], class_="evidence") if claim else "–",
    ]
    return row(CLAIMS, cells, data_family="\n".join(families), data_defence=one.defence)


def _statement(claim: ClaimVerdict) -> Html:
    rest = _rest(claim)
    return join(
        [
            element("strong", f"ε = {number(claim.epsilon)}"),
            f", δ = {power(claim.delta)}, {claim.level} level",
            element("span", rest, class_="by") if rest else None,
        ]
    )


def _rest(claim: ClaimVerdict | None) -> str:
    """Of the sentence, what neither the numbers nor the other columns say."""
    if claim is None:
        return ""
    text = claim.claim.removesuffix(claim.trust).strip("; ").removesuffix("Trust:").strip()
    if text.startswith("("):
        return text.partition(" level, ")[2]
    return text.removeprefix("no formal guarantee: ")


def _gauge(claim: ClaimVerdict) -> Html | None:
    """The claimed epsilon as a bar and the measured lower bound as a needle; a needle beyond the bar is a violation."""
    if claim.lower_bound is None or not (math.isfinite(claim.epsilon) and math.isfinite(claim.lower_bound)):
        return None
    span = 1.1 * max(claim.epsilon, claim.lower_bound) or 1.0
    return element(
        "div",
        element("span", class_="claimed", style=f"width:{100 * claim.epsilon / span:.1f}%"),
        element("span", class_="needle", style=f"left:{100 * claim.lower_bound / span:.1f}%"),
        class_="gauge",
        title=f"claimed: ε = {number(claim.epsilon)}\nmeasured: ε ≥ {number(claim.lower_bound)}",
        aria_hidden="true",
    )
