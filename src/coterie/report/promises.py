"""What each defence costs, what it promises, and whether measurement contradicts the promise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.claims import Outcome, Promise
from coterie.measure.findings import UNDEFENDED, AuditResult, Defended
from coterie.report.markup import Html, element, join
from coterie.report.parts import details, grouped, measured, outcome_badge, row, section, table
from coterie.report.values import (
    capital,
    defence_name,
    ledger,
    lower_bound,
    number,
    power,
    seconds,
    size,
    with_interval,
)

COSTS = ("Defence", "Utility", "Without the federation", "Against undefended", "Time", "Upload", "Peak memory")
CLAIMS = ("Defence", "Formal guarantee", "Trust model", "Measured", "Verdict", "Evidence")


def defences(result: AuditResult) -> Html:
    rows = [*result.as_configured, *result.defended]
    families = dict.fromkeys(one.family for one in rows)
    groups = [
        _costs(family, [one for one in rows if one.family == family], result.as_configured) for family in families
    ]
    return section(
        "defences",
        "What the defences cost",
        "Beside each utility stands what clients would have without the federation. Where they are not known to gain "
        "over that, the federation has learnt nothing, and no price of a defence is given. Time is for a round, or a "
        "run where there are no rounds; upload is for a client and round.",
        grouped("Cost of each defence, by kind of attack", COSTS, groups)
        if groups
        else element("p", "No defence was measured."),
        needs="tr[data-defence]",
    )


def _costs(family: str, found: Sequence[Defended], configured: Sequence[Defended]) -> Html:
    base = next((one for one in found if one.defence == UNDEFENDED), None)
    nothing = base is not None and _learnt_nothing(base, configured)
    rows = []
    for one in found:
        cells = [
            defence_name(one.defence),
            join([f"{one.utility_measure} ", measured(one.utility), element("div", element("small", one.clusters))]),
            _without(one, configured),
            _price(one, base, nothing),
            seconds(one.seconds),
            size(one.upload_bytes),
            size(one.memory_bytes),
        ]
        rows.append(row(COSTS, cells, data_family=family, data_defence=one.defence))
    title = element("tr", element("th", capital(family), colspan=len(COSTS), scope="rowgroup"), class_="group")
    return element("tbody", title, *rows, data_family=family, data_needs="tr[data-defence]")


def _learnt_nothing(base: Defended, configured: Sequence[Defended]) -> bool:
    """Of a kind of attack, which has no baselines of its own: where the configured run has learnt nothing of this."""
    same = [one for one in configured if (one.defence, one.utility_measure) == (base.defence, base.utility_measure)]
    return base.learnt_nothing or (not base.gains and any(one.learnt_nothing for one in same))


def _without(one: Defended, configured: Sequence[Defended]) -> Html:
    """What clients would have, and whether the federation is known to be better; once of what is the same run."""
    told = [
        element("span", f"{name} {number(known.estimate)}{_gain(one, name)}", class_="by")
        for name, known in one.baselines.items()
    ]
    same = [run for run in configured if (run.defence, run.utility) == (one.defence, one.utility)]
    if one.learnt_nothing or (not one.gains and any(run.learnt_nothing for run in same)):
        told.insert(0, element("strong", "learnt nothing"))
    return join(told or ["–"])


def _gain(one: Defended, name: str) -> str:
    """Why a baseline counts as not beaten: what decides is the gain of each client, not where two averages lie."""
    return f" (not beaten: gain, client by client, {with_interval(one.gains[name])})" if name in one.unbeaten else ""


def _price(one: Defended, base: Defended | None, nothing: bool) -> str:
    """What the defence takes; none where there was nothing to take."""
    if one.defence == UNDEFENDED or base is None:
        return "reference"
    if nothing:
        return "no price: undefended, it has learnt nothing"
    change = one.utility.estimate - base.utility.estimate
    return "+" + number(change) if change > 0 else number(change)


def claims(result: AuditResult) -> Html:
    """A claim that several families meet is one row: the verdict of whichever measured something against it."""
    alike: dict[tuple[str, str, Outcome | None], list[Defended]] = {}
    for one in (*result.as_configured, *result.defended):
        key = (one.promise.claim, one.promise.outcome) if one.promise else ("", None)
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
    one = max(found, key=_measured)  # the first of those that measured most
    promise = one.promise
    cells = [
        join([defence_name(one.defence), element("span", ", ".join(families), class_="by")]),
        _statement(promise) if promise else _none("nothing is claimed"),
        promise.guarantee.trust.value if promise else "–",
        join([lower_bound(promise), _gauge(promise) if promise else None, _spent(found)]),
        _verdict(promise),
        element("ul", *[element("li", ground) for ground in promise.evidence], class_="evidence") if promise else "–",
    ]
    return row(CLAIMS, cells, data_family="\n".join(families), data_defence=one.defence)


def _measured(one: Defended) -> float:
    bound = one.promise.lower_bound if one.promise else None
    return -1.0 if bound is None else bound


def _verdict(promise: Promise | None) -> Html | str:
    """As ``Promise.verdict`` has it: the outcome as a badge, and what else there is to say of it."""
    if promise is None or promise.claims_nothing:
        return "no claim to judge" if promise is None else promise.verdict
    more = promise.verdict.removeprefix(promise.outcome.value).strip()
    return join([outcome_badge(promise.outcome), element("span", more, class_="by") if more else None])


def _spent(found: Sequence[Defended]) -> Html | None:
    spent = [one.spent for one in found if one.spent is not None]
    return element("span", ledger(max(spent)), class_="by") if spent else None


def _statement(promise: Promise) -> Html:
    said = promise.guarantee
    if not said.proven:
        stated = f" (stated: ε = {number(said.epsilon)})" if math.isfinite(said.epsilon) else ""
        return join([_none(said.why_not + stated), *_attainable(promise)])
    stated = _priced(said.epsilon, said.delta, said.level.value)
    return join([stated, *_lines([said.neighbours.value, *said.provisos])])


def _priced(epsilon: float, delta: float, level: str) -> Html:
    return join([element("strong", f"ε = {number(epsilon)}"), f", δ = {power(delta)}, {level} level"])


def _lines(said: Sequence[str]) -> list[Html]:
    return [element("span", one, class_="by") for one in said]


def _attainable(promise: Promise) -> list[Html]:
    """What would be proven of other runs, folded away: nobody shall take it for a claim of this one."""
    several = len(promise.guarantee.attainable) > 1  # which then begin with what tells them apart
    return [
        details(
            f"attainable: ε = {number(one.guarantee.epsilon)} at {one.guarantee.level.value} level"
            + (f", with {one.changes[0]}" if several else ""),
            element("p", "What would be proven by the same defence, with"),
            element("ul", *[element("li", change) for change in one.changes], class_="evidence"),
            _priced(one.guarantee.epsilon, one.guarantee.delta, one.guarantee.level.value),
            *_lines([one.guarantee.neighbours.value, one.guarantee.trust.value, *one.guarantee.provisos]),
        )
        for one in promise.guarantee.attainable
    ]


def _none(why: str) -> Html:
    return join([element("strong", "No formal guarantee"), element("span", why, class_="by")])


def _gauge(promise: Promise) -> Html | None:
    """The claimed epsilon as a bar and the measured lower bound as a needle; a needle beyond the bar is a violation."""
    claimed, shown = promise.guarantee.epsilon, promise.lower_bound
    if shown is None or not (math.isfinite(claimed) and math.isfinite(shown)):
        return None
    span = 1.1 * max(claimed, shown) or 1.0
    return element(
        "div",
        element("span", class_="claimed", style=f"width:{100 * claimed / span:.1f}%"),
        element("span", class_="needle", style=f"left:{100 * shown / span:.1f}%"),
        class_="gauge",
        title=f"claimed: ε = {number(claimed)}\nmeasured: ε ≥ {number(shown)}",
        aria_hidden="true",
    )
